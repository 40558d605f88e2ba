# SPDX-License-Identifier: MIT
"""Which parameters are exchanged together, and how: by their optimizer and their dtype."""

import warnings
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch

from . import _kinds
from ._kinds import GRADIENT, Kind
from ._stepper import innermost

Rows = List[Tuple[str, torch.Tensor]]

FEW = (
    "{} with density={}: at 1 % small language models ended 10 % above dense, for entries whose"
    " momentum is never among the surest hardly move. byte_share=0.007 has three times the entries in"
    " two bits, and ended up to 9 % above, in the median 3 %"
)


class Family(NamedTuple):
    """Parameters of one dtype that one reducer exchanges."""

    kind: Kind
    owner: Optional[int]  # number of the optimizer whose steps it exchanges
    rows: Rows


def optimizers_of(given: Any) -> List[torch.optim.Optimizer]:
    if given is None:
        return []
    several = list(given) if isinstance(given, (list, tuple)) else [given]
    found = [innermost(one) for one in several]
    if len(set(map(id, found))) != len(found):
        raise ValueError("the same optimizer was given twice")
    return found


def kinds_of(
    optimizers: Sequence[torch.optim.Optimizer],
    reduce: Optional[str],
    density: Optional[float],
    scheme: Optional[str],
    norm_matching: Optional[float],
) -> List[Kind]:
    if reduce not in (None, "gradient", "step"):
        raise ValueError(f'reduce is {reduce!r}, not "gradient" or "step"')
    if reduce == "step" and not optimizers:
        raise TypeError(
            'reduce="step" needs the optimizer: tamis.torch.attach(ddp, optimizer=optimizer)'
        )
    kinds = [_kind_of(optimizer, reduce, density, scheme) for optimizer in optimizers]
    if norm_matching is None:
        return kinds
    if not any(kind.mode == "step" and kind.rule == "step" for kind in kinds):
        raise ValueError(
            "norm_matching is of steps that follow norms, which here are none: give an optimizer"
            " such as AdamW, by optimizer=, and a density below 1"
        )
    return [
        kind._replace(norm_matching=norm_matching) if kind.rule == "step" else kind
        for kind in kinds
    ]


def _kind_of(
    optimizer: torch.optim.Optimizer,
    reduce: Optional[str],
    density: Optional[float],
    scheme: Optional[str],
) -> Kind:
    if reduce == "gradient":
        return GRADIENT
    kind = _kinds.kind_of(optimizer)
    if scheme is not None:
        kind = _kinds.whole(kind) if scheme == "quantized" else _kinds.sparse(kind)
    if reduce == "step":
        return kind
    if (density is not None and density >= 1) or scheme == "dense":  # nothing is left out: as dense
        return GRADIENT
    if kind.doubt:
        warnings.warn(f"{type(optimizer).__name__}: {kind.doubt}", RuntimeWarning, stacklevel=5)
    if density is not None and density < 0.02 and kind.norm_matching is None and scheme is None:
        warnings.warn(FEW.format(type(optimizer).__name__, density), RuntimeWarning, stacklevel=5)
    return kind


def families_of(
    rows: Rows, optimizers: Sequence[torch.optim.Optimizer], kinds: Sequence[Kind]
) -> List[Family]:
    """In the order in which they first appear, the same on all ranks."""
    owners: Dict[int, int] = {}
    for number, optimizer in enumerate(optimizers):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if owners.setdefault(id(parameter), number) != number:
                    raise ValueError(
                        f"a parameter of shape {tuple(parameter.shape)} is in two of the optimizers"
                        f" ({', '.join(type(one).__name__ for one in optimizers)}): one must step it"
                    )
    found: Dict[Tuple[Optional[int], torch.dtype], Family] = {}
    for name, parameter in rows:
        owner = owners.get(id(parameter))
        kind = GRADIENT if owner is None else kinds[owner]
        if kind.mode == "gradient":
            owner = None
        elif parameter.dtype != torch.float32:
            raise TypeError(
                f"parameter {name!r} is {parameter.dtype}: the step of"
                f" {type(optimizers[owner or 0]).__name__} is exchanged as what it changes, which"
                " 16 bits round away; keep parameters in float32 and compute in autocast, or pass"
                ' reduce="gradient"'
            )
        key = (owner, parameter.dtype)
        found.setdefault(key, Family(kind, owner, [])).rows.append((name, parameter))
    return list(found.values())


def options_of(
    kind: Kind,
    optimizer: Optional[torch.optim.Optimizer],
    density: Optional[float],
    options: Dict[str, Any],
) -> Dict[str, Any]:
    """The options of its reducer; those that the caller gave stay."""
    own = 0.0 if options.get("byte_share") else kind.density
    options = dict(options, density=own if density is None else density)
    rounds = options["scheme"] in (None, kind.scheme) and options["density"] != 1.0
    options["scheme"] = options["scheme"] or kind.scheme
    if options.get("byte_share") and options["scheme"] in _kinds.WHOLE:
        name = type(optimizer).__name__ if optimizer is not None else "gradients"
        raise ValueError(
            f"byte_share: of {name} every element is sent (scheme {options['scheme']!r})"
        )
    if rounds and options.get("value_codec", "auto") == "auto":
        options["value_codec"] = kind.value_codec
        if kind.sum_codec != "auto" and options.get("sum_codec", "auto") == "auto":
            options["sum_codec"] = kind.sum_codec
    if kind.mode == "gradient" or optimizer is None:
        return options
    if kind.rule == "momentum":
        # The scale follows density and momentum: Kind.scale_at.
        options["update"] = dict(rule="momentum", beta1=0.0, scale=1.0)
    else:
        matching = kind.norm_matching
        options["update"] = dict(rule="step")
        if matching is not None:
            scale = 0.0 if matching else _kinds.SCALE_WITHOUT_NORMS
            options["update"] = dict(rule="step", norm_matching=matching, scale=scale)
    if options.get("residual_decay") is None:
        options["residual_decay"] = kind.residual_decay
    return options
