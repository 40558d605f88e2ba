# SPDX-License-Identifier: MIT
"""The keywords of SparseState, attach and DistributedOptimizer: for editors and type checkers, and
checks of what they mean together."""

import difflib
import warnings
from typing import Any, Dict, Optional, Sequence, TypedDict, Union

from .. import _core, energy


class ReducerOptions(TypedDict, total=False):
    """Those that go on to tamis.Reducer."""

    bucket_budget: str
    block: int
    overselect: float
    capacity: float
    rows_capacity: int
    threshold: float
    threads: int
    density_max: float
    byte_share: float
    slowdown: float
    link_latency_us: float
    link_gbit: float
    index_codec: str
    value_codec: str
    sum_codec: str
    sum_order: str
    ranks_per_node: int
    residual_decay: Optional[float]
    worker: str


class StateOptions(ReducerOptions, total=False):
    """Those of SparseState, DistributedOptimizer and attach."""

    scheme: Optional[str]
    transport: str
    overlap: bool
    bucket_length: Union[int, str]
    nonfinite: str
    op: str
    warmup: int
    scaler: Optional[Any]
    check_every: Optional[int]
    timeout_s: Optional[float]
    comm: Union[_core.Comm, Sequence[_core.Comm], None]
    meter: Optional[energy.Meter]
    clip_norm: Optional[float]
    skip_norm: Optional[float]
    discards: bool


class AttachOptions(StateOptions, total=False):
    """Those of attach, but for what every call names."""

    reduce: Optional[str]
    norm_matching: Optional[float]


def check_options(
    options: Dict[str, Any],
    density: Optional[float],
    warmup: int,
    check_every: Optional[int],
    norms: Dict[str, Optional[float]],
    local: bool,
    parts: int,
    nonfinite: str,
) -> None:
    if options.get("update") is not None:
        raise TypeError(
            "update= is that of tamis.Reducer: here give the optimizer itself, by"
            " tamis.torch.attach(ddp, optimizer=optimizer)"
        )
    _check_names(options)
    if density is not None and not 0.0 < density <= 1.0:
        raise ValueError(f"density is {density}, not a share in (0, 1]: 3 % is 0.03")
    if type(density) is int:
        warnings.warn(
            f"density={density} is the whole gradient: for 1 % write 0.01, and 1.0 where all is meant",
            RuntimeWarning,
            stacklevel=4,
        )
    if local and nonfinite == "drop":
        raise ValueError(
            'nonfinite="drop" would leave NaN in the optimizer\'s own state, and with it the entries'
            ' for good: "skip" leaves the step out'
        )
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}, not a number of steps from 0 on")
    if warmup and local:
        raise ValueError(
            f"warmup is {warmup}, which exchanges whole gradients, but the optimizer steps by each"
            " rank's own: begin with a high density (density_max, set_density) instead"
        )
    if check_every is not None and check_every < 0:
        raise ValueError(f"check_every is {check_every}, not a number of steps, or 0 for never")
    for name, norm in norms.items():
        if norm is not None and not norm > 0:
            raise ValueError(f"{name} is {norm}, not a norm above 0, or None")
        if norm is not None and parts > 1:
            raise ValueError(
                f"{name} is of one gradient, and {parts} parts of it are exchanged apart, by"
                " optimizers: clip by torch.nn.utils.clip_grad_norm_ before they step"
            )


def _check_names(options: Dict[str, Any]) -> None:
    known = ["density", "optimizer", *AttachOptions.__annotations__]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TypeError(
                f"there is no option {name!r}{f', but {near[0]!r}' if near else ''}; options are: "
                + ", ".join(sorted(known))
            )
