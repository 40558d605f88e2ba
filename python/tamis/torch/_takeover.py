# SPDX-License-Identifier: MIT
"""The optimizer behind an exchange: taken over for update mode, or one that sparse means harm."""

import functools
import gc
import types
import warnings
import weakref
from typing import TYPE_CHECKING, AbstractSet, Any, Dict, List, Optional, Tuple

import torch

from . import _update

if TYPE_CHECKING:
    from ._state import SparseState

Call = Tuple[Tuple[Any, ...], Dict[str, Any]]

# Figures: docs/measured/fidelity.md, a character model, AdamW.
HARMED = (
    "{name} gets sparse means of gradients, which harm adaptive optimizers: at 1 % of the entries a"
    " small language model lost 39 % against dense, and 4 % where the ranks exchange steps. Write"
    " {line}; where sparse means are meant, reduce=\"gradient\""
)
TWICE = (
    "update={rule!r} makes the optimizer's step, and {name} makes one of it again: step by"
    " torch.optim.SGD without momentum, or write state = tamis.torch.attach(ddp,"
    " optimizer=optimizer) in place of update="
)
SUPPORTS = "_step_supports_amp_scaling"  # an attribute of optimizers that a GradScaler asks for
ATTACH = "tamis.torch.attach(ddp, optimizer=optimizer), before the first step"
WRAP = 'tamis.torch.DistributedOptimizer(optimizer, model, reduce="update")'
SLOW = (
    "beta2 is {beta2:g}: in update mode a second moment that slow follows too late (1 % of the"
    " entries, two small models: 3 and 11 % lost, not 1 and 3 %). Give the optimizer betas=(0.0,"
    " 0.99) for less than 5 % of the entries, (0.9, 0.99) from there on"
)


def innermost(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer of torch inside those that accelerate and Lightning put around it."""
    if hasattr(optimizer, "tamis"):
        raise TypeError(
            "a DistributedOptimizer exchanges by itself: give attach the optimizer inside, or leave"
            " DistributedDataParallel out"
        )
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, torch.optim.Optimizer):
        return innermost(inner)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"a {type(optimizer).__name__} is not a torch.optim.Optimizer")
    return optimizer


def take_over(
    optimizer: torch.optim.Optimizer,
    reduce: Optional[str],
    factor: Dict[str, Optional[float]],
    options: Dict[str, Any],
) -> Optional[_update.Taken]:
    """Take over the rule, which becomes an option of the state; None: it steps by itself."""
    factor = {name: value for name, value in factor.items() if value is not None}
    if reduce not in (None, "gradient", "update"):
        raise ValueError(f'reduce is {reduce!r}, not "gradient" or "update"')
    if options.get("update") is not None or (factor and reduce != "update"):
        raise TypeError(
            'update, scale and match belong to reduce="update", which makes the update'
        )
    if reduce != "update":
        if reduce is None and is_adaptive(optimizer):
            warn(HARMED, type(optimizer).__name__, line=WRAP)
        return None
    taken = _update.Taken(optimizer)
    options["update"] = dict(taken.rule, **factor)
    beta2 = taken.rule.get("beta2", 0.0)
    if beta2 > 0.995:
        warn(SLOW, type(optimizer).__name__, beta2=beta2)
    return taken


def check_groups(optimizer: torch.optim.Optimizer, known: AbstractSet[int]) -> None:
    """Every parameter that the optimizer changes must be exchanged, or replicas drift apart."""
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) in known:
                continue
            if parameter.requires_grad and parameter.numel():
                raise ValueError(
                    f"param_groups[{number}] has a parameter of shape {tuple(parameter.shape)} that"
                    " was not named, or required no gradient, when the optimizer was wrapped: it"
                    " is not exchanged, and replicas would drift apart; pass all parameters that"
                    " the optimizer changes, and make a new DistributedOptimizer, or attach anew,"
                    " where some come later"
                )


# ----------------------------------------------------------------- optimizers that were not given


def is_adaptive(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it divides by what gradients were, or takes their sign: then it has eps, or betas."""
    return any("eps" in group or "betas" in group for group in optimizer.param_groups)


def warn(text: str, name: str, **words: Any) -> None:
    warnings.warn(text.format(name=name, **words), RuntimeWarning, stacklevel=4)


def warn_of_others(state: "SparseState") -> None:
    """After the first step: find the optimizer that the gradients end in, and judge it."""
    given = None if state.update is None else state.update["rule"]
    for group in _param_groups_of(state.groups[0].parameters[0]):
        name = "an optimizer with " + ", ".join(
            f"{key}={group[key]}" for key in ("betas", "alpha", "eps", "momentum") if key in group
        )
        adaptive = "eps" in group or "betas" in group
        if given is None and adaptive:
            warn(HARMED, name, line=ATTACH)
        elif given is not None and (adaptive or group.get("momentum")):
            warn(TWICE, name, rule=given)


def _param_groups_of(parameter: torch.Tensor) -> List[Dict[str, Any]]:
    """The param_groups that a parameter is in.

    Not by gc.get_objects, which holds all tensors for a while: within backward, torch 1.13 then
    frees some that are still needed.
    """
    lists = [found for found in gc.get_referrers(parameter) if type(found) is list]
    known = set(map(id, lists))
    found = gc.get_referrers(*lists) if lists else []
    return [row for row in found if type(row) is dict and id(row.get("params")) in known]


# ------------------------------------------------------------- the optimizer that attach was given


class Attached:
    """An optimizer whose own step() applies the updates that a hook has left in the gradients.

    From backward() to step() they must stay as they are: what changes them (clipping, a scaler that
    the state does not know, a second backward pass) means gradients, and these are steps.
    """

    def __init__(self, taken: _update.Taken, state: "SparseState") -> None:
        self._taken, self._state = taken, weakref.proxy(state)
        self._known = frozenset(state._index)
        self._exchanged = False  # step() has something to apply
        # By parameter: the address of its gradient, and what shows a change, torch's count of them
        # or the sum of values. The sum costs a pass, for callers that multiply by 1 to log a norm.
        self._rows: Dict[int, Tuple[int, float]] = {}
        # The smallest parameter and its gradient, held: one made anew may have the address of old.
        self._witness: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
        self.by_value = False
        self._hidden: Optional[_update.Hidden] = None
        self._open = True
        around(taken.optimizer, self._before, self._after)
        # Torch does not count what a GradScaler changes. True has one leave gradients as they are
        # and give itself away; False has one unscale them, also for a fused optimizer.
        self._unscales = getattr(taken.optimizer, SUPPORTS, False)
        setattr(taken.optimizer, SUPPORTS, state.scaler is None)

    def close(self) -> None:
        self._open = False
        setattr(self._taken.optimizer, SUPPORTS, self._unscales)

    # -- told by the hook

    def begin(self) -> None:
        """The first bucket of a step. A gradient that still holds a step has been added to."""
        if self._witness is not None and self._witness[0].grad is self._witness[1]:
            raise RuntimeError(
                f"{self._here()}backward() came twice without step() or zero_grad(): the gradients"
                " held the step of the first. Wrap all backward passes of a step but the last in"
                " `with ddp.no_sync():`; where a step is left out, call zero_grad(set_to_none=True)"
            )

    def ended(self, lost: bool) -> None:
        """backward() has ended, and results are in the gradients."""
        self._exchanged = True
        rows = [p for p in ([] if lost else self._parameters()) if p.grad is not None]
        self._rows = {id(p): (p.grad.data_ptr(), self._mark(p.grad)) for p in rows}
        smallest = min(rows, key=torch.Tensor.numel, default=None)
        self._witness = None if smallest is None else (smallest, smallest.grad)

    # -- around the optimizer's step

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Optional[Call]:
        if not self._open:
            return None
        self._state.check()
        if self._state.scaler is None and scaled(optimizer, kwargs):
            raise RuntimeError(
                f"{self._here()}a GradScaler steps the optimizer, which tamis was not told of, and"
                " would divide steps by its scale: write attach(..., scaler=scaler)"
            )
        args, kwargs = _run_closure(args, dict(kwargs))
        exchanged, self._exchanged = self._exchanged, False
        rows, self._rows = self._rows, {}
        self._witness = None
        if exchanged:
            self._check_untouched(rows)
            check_groups(optimizer, self._known)
            self._taken.step()
        elif any(parameter.grad is not None for parameter in self._parameters()):
            raise RuntimeError(
                f"{self._here()}step() without an exchange: backward() did not go through the"
                " DistributedDataParallel that tamis is attached to, or only within no_sync(), so"
                " replicas would drift apart"
            )
        self._hidden = _update.Hidden(optimizer)
        return args, kwargs

    def _after(self, *_: Any) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.restore()

    def _mark(self, gradient: torch.Tensor) -> float:
        return gradient.abs().sum().item() if self.by_value else gradient._version

    def _check_untouched(self, rows: Dict[int, Tuple[int, float]]) -> None:
        # A scaler that the state knows divides once: a change that means no harm.
        allowed = float(self._state.scaler is not None)
        for parameter in self._parameters():
            row = rows.get(id(parameter))
            if row is None:
                continue
            address, mark = row
            same = parameter.grad is not None and parameter.grad.data_ptr() == address
            if not same or not 0.0 <= self._mark(parameter.grad) - mark <= allowed:
                name = self._name(parameter)
                raise RuntimeError(
                    f"{self._here()}the gradient of {name!r} was changed between backward() and"
                    " step(). In update mode it is a step already. To clip, write attach(...,"
                    " clip_norm=1.0) in place of clip_grad_norm_ (Trainer: max_grad_norm=0); with a"
                    " GradScaler write attach(..., scaler=scaler); to add to gradients, do it"
                    " before the exchange, in the loss"
                )

    def _parameters(self) -> Any:
        for group in self._taken.optimizer.param_groups:
            yield from group["params"]

    def _name(self, parameter: torch.Tensor) -> str:
        found = self._state._index.get(id(parameter))
        return found[0].names[found[1]] if found else "?"

    def _here(self) -> str:
        return f"rank {self._state.comm.rank}: "


def _run_closure(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
    """Run the closure of step(closure), if any, and leave one that only returns its loss."""
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    kwargs["closure"] = lambda: loss
    return args[:1], kwargs


def scaled(optimizer: Any, kwargs: Dict[str, Any]) -> bool:
    """Whether a GradScaler steps an optimizer for which SUPPORTS is True."""
    return "grad_scaler" in kwargs or vars(optimizer).get("found_inf") is not None


def around(optimizer: torch.optim.Optimizer, before: Any, after: Any) -> None:
    """Have step() call before(optimizer, args, kwargs), which may change these, and then after(),
    also where it raises: hooks of torch are then not called."""
    hooks = hasattr(optimizer, "register_step_pre_hook")  # torch 2
    if hooks:
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)  # accelerate may put back the step of before
    inner = optimizer.step

    @functools.wraps(inner)  # a scheduler may have counted itself in
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        changed = None if hooks else before(self, (self, *args), kwargs)
        args, kwargs = (args, kwargs) if changed is None else (changed[0][1:], changed[1])
        try:
            return inner(*args, **kwargs)
        finally:
            after()

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
