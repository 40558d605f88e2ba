# SPDX-License-Identifier: MIT
"""What suits which optimizer: a table, by the names of classes. Figures: docs/measured/fidelity.md

    gradient   the optimizer gets the mean over ranks of sparse gradients
    step       each rank's optimizer steps from its own gradient; the largest entries of the steps
               are exchanged (_local_stepper.py)
"""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch


class Kind(NamedTuple):
    """How the parameters of an optimizer are exchanged."""

    mode: str  # "gradient" or "step"
    residual_decay: Optional[float] = None
    norm_matching: Optional[float] = None  # of tamis_update; None: by density; 0: no norms
    decouples: bool = False  # weight decay is apart from the gradient: p *= 1 - lr wd
    density: float = 0.0  # 0: what suits its rule
    scheme: str = "tamis-update"
    value_codec: str = "auto"
    sum_codec: str = "auto"
    rule: str = "step"  # of tamis_update; momentum: budgets follow norms
    clears: str = ""  # momentum in the optimizer's state that is cleared where it was applied
    doubt: str = ""  # what measurements say against it

    def decoupled(self, group: Dict[str, Any]) -> bool:
        """Whether it is so in a param_group. Since torch 2.7 Adam has the option."""
        return bool(group.get("decoupled_weight_decay", self.decouples))

    def clears_at(self, density: float) -> bool:
        """Above, an entry travels so often that its momentum is never old."""
        return bool(self.clears) and density < 0.4

    def scale_at(self, density: float, group: Dict[str, Any]) -> float:
        """Factor on what is applied, with which the rate of a dense run suits.

        A momentum m that is cleared every T = 1 / density steps gives a gradient
        1 - m (1 - m^T) / (T (1 - m)) of what it would give in the end; Nesterov's, which looks a
        step ahead, 1 - m^2 (1 - m^T) / (T (1 - m)).
        """
        momentum = float(group.get("momentum", 0.0)) if self.clears_at(density) else 0.0
        interval = 1.0 / density
        ahead = momentum if group.get("nesterov") else 1.0
        kept = 1.0 - math.pow(momentum, interval)
        return 1.0 / (1.0 - ahead * momentum * kept / (interval * (1.0 - momentum)))


WHOLE = ("dense", "quantized")  # schemes that send everything
SCALE_WITHOUT_NORMS = 1.25  # as the library's for Adam with beta1 = 0
GRADIENT = Kind("gradient", scheme="tamis")


def whole(kind: Kind) -> Kind:
    """The kind where every element is sent, in few bits, and what rounding takes is kept."""
    if kind.rule == "momentum":  # its steps are sums of gradients
        return GRADIENT
    return kind._replace(residual_decay=1.0, norm_matching=1.0, scheme="quantized", value_codec="fp2")


# With these, sparse steps lost 5 to 10 %, where two bits of everything lost 0 to 2.
_WHOLE = whole(Kind("step", 0.0, decouples=True))

# The first row whose word is in the name of the class, or of one of its bases, in lower case.
_ROWS: List[Tuple[str, Kind]] = [
    ("nadam", Kind("step", 0.9, 1.0, density=0.08, value_codec="fp4")),
    ("rmsprop", Kind("step", 0.9, 1.0, density=0.08, value_codec="fp4")),
    ("adamw", Kind("step", 0.0, decouples=True)),
    ("adam", Kind("step", 0.0)),
    ("muon", _WHOLE),
    ("lion", _WHOLE),
    ("adafactor", _WHOLE),
    (
        "sgd",
        Kind(
            "step",
            1.0,
            0.0,
            scheme="tamis",
            rule="momentum",
            clears="momentum_buffer",
            value_codec="fp2",
            sum_codec="fp2",
        ),
    ),
]
_UNKNOWN = whole(
    Kind(
        "step",
        doubt="what suits it was not measured. It gets what suited every optimizer that was: its"
        " steps, whole, in two bits; density is not used. Compare with a dense run, and with"
        ' reduce="gradient" (docs/measured/fidelity.md)',
    )
)

_REFUSED: Dict[str, str] = {
    "lbfgs": "it evaluates the loss several times a step, on parameters that differ between ranks",
    "schedulefree": "it trains and evaluates at two points, one of which would differ between ranks",
    "asgd": "it averages what each rank has been through, which differs from rank to rank",
    "lookahead": "it keeps slow weights of its own, which would differ from rank to rank",
    "prodigy": "it finds its rate from how far parameters went, which differs from rank to rank",
    "dadapt": "it finds its rate from how far parameters went, which differs from rank to rank",
    "zeroredundancyoptimizer": "it divides its state among the ranks, which here have one of their"
    " own: give the optimizer inside",
}

def sparse(kind: Kind) -> Kind:
    """One of whole() where the caller insists on a scheme that chooses."""
    if kind.scheme != "quantized":
        return kind
    return kind._replace(
        residual_decay=0.0, norm_matching=None, scheme="tamis-update", value_codec="auto"
    )


def names(optimizer: torch.optim.Optimizer) -> List[str]:
    return [base.__name__.lower() for base in type(optimizer).__mro__[:-2]]


def kind_of(optimizer: torch.optim.Optimizer) -> Kind:
    """What suits an optimizer.

    Errors: TypeError for one whose steps cannot be exchanged
    """
    found = names(optimizer)
    for word, why in _REFUSED.items():
        if any(word in name for name in found):
            raise TypeError(f"{type(optimizer).__name__} cannot be exchanged sparsely: {why}")
    for word, kind in _ROWS:
        if any(word in name for name in found):
            return _without_momentum(kind) if _is_momentless(word, optimizer) else kind
    return _UNKNOWN


def _is_momentless(word: str, optimizer: torch.optim.Optimizer) -> bool:
    return word in ("adam", "adamw") and optimizer.param_groups[0].get("betas", (1.0,))[0] == 0.0


def _without_momentum(kind: Kind) -> Kind:
    """Adam with beta1 = 0: the residual is its momentum (docs/fidelity.md)."""
    return kind._replace(residual_decay=0.98, norm_matching=0.0, density=0.033)


def is_adaptive(group: Dict[str, Any]) -> bool:
    """Whether an optimizer with such a param_group divides by what gradients were, or takes their
    sign: then it has eps, or betas."""
    return "eps" in group or "betas" in group
