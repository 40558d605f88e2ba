# SPDX-License-Identifier: MIT
"""The keywords of SparseState, attach and DistributedOptimizer, for editors and type checkers."""

from typing import Any, Dict, Optional, Sequence, TypedDict, Union

from .. import _core, energy


class ReducerOptions(TypedDict, total=False):
    """Those that go on to tamis.Reducer."""

    share: str
    block: int
    overselect: float
    capacity: float
    rows_capacity: int
    threshold: float
    threads: int
    density_max: float
    link_latency_us: float
    link_gbit: float
    index_format: str
    wire_type: str
    wire_type_sum: str
    sum_order: str
    ranks_per_node: int
    residual_decay: Optional[float]
    update: Union[None, str, Dict[str, Any]]
    worker: str


class StateOptions(ReducerOptions, total=False):
    """Those of SparseState."""

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
