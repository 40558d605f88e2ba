# SPDX-License-Identifier: MIT
"""The user's optimizer, between whose step and the next backward pass ranks must agree.

    gradient   backward() leaves the mean in the gradients; step() is checked, and is the user's
    step       each rank's optimizer steps from its own gradient; what it made is exchanged
               (_local_stepper.py)
"""

import logging
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch

from ._around import around
from ._kinds import Kind
from ._parameters import form, local
from ._scaling import SUPPORTS, Hidden, scaled

if TYPE_CHECKING:
    from ._steps import Steps

MARK = "tamis_steps"  # in state_dict() of the optimizer, since torch 2.3: what it belongs to
Call = Tuple[Tuple[Any, ...], Dict[str, Any]]
log = logging.getLogger("tamis")


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


class Stepper:
    """Checks an optimizer's steps, and calls what its kind of exchange does around them."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: Kind, state: "Steps") -> None:
        self.optimizer, self.kind = optimizer, kind
        self._state: Any = weakref.proxy(state)
        self._alive = weakref.ref(state)
        self._open = True
        self._loaded: Optional[int] = None  # steps of the run whose state the optimizer was given
        self._accepted = False  # the state was loaded since the last step
        self._apart = False  # closed, with moments that differ from rank to rank
        release(optimizer)
        optimizer._tamis_stepper = self  # type: ignore[attr-defined]
        self._marks = self._mark()
        self._calls = around(optimizer, self._before, self._after, self._failed)

    def close(self) -> None:
        self._open = False
        self._calls.remove()
        for handle in self._marks[:1]:  # what is loaded later makes ranks equal
            handle.remove()

    def _mark(self) -> List[Any]:
        """Not in a param_group: torch's distributed checkpoints want the same keys in all."""
        if not hasattr(self.optimizer, "register_state_dict_post_hook"):
            return []
        return [
            self.optimizer.register_state_dict_post_hook(self._saved),
            self.optimizer.register_load_state_dict_pre_hook(self._loading),
        ]

    def _saved(self, _: torch.optim.Optimizer, state_dict: Dict[str, Any]) -> None:
        if self._alive() is not None:
            state_dict[MARK] = self._state.steps

    def _loading(self, _: torch.optim.Optimizer, state_dict: Dict[str, Any]) -> None:
        """After the state's own even one without a mark is of another rank, as torch's calls make it."""
        self._loaded = state_dict.get(MARK, 0 if self._accepted else None)
        self._apart = False

    def accept(self) -> None:
        """A state was loaded, and the optimizer's belongs to it."""
        self._loaded, self._accepted = None, True

    def _check_loaded(self) -> None:
        found, self._loaded, self._accepted = self._loaded, None, False
        if found is not None:
            of = f" of step {found}" if found else ""
            warnings.warn(
                f"{self.here()}a checkpoint{of} of a run with tamis was loaded into the optimizer, but the"
                " state of tamis was not, or before: what had not travelled is lost, and all ranks have"
                " the moments of one. Save it, too, and load it after the optimizer's:"
                " state.save(folder), state.load(folder)",
                RuntimeWarning,
                stacklevel=6,
            )

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Optional[Call]:
        if not self._open:
            return None
        if self._alive() is None:
            raise RuntimeError(
                "the state that exchanges for this optimizer is gone, so replicas would drift apart:"
                " keep what attach returned, or the DistributedOptimizer, or close() it"
            )
        self._state.check()
        args, kwargs = _run_closure(args, dict(kwargs))
        check_groups(optimizer, self._state)
        self._check_loaded()
        self.before(kwargs)
        return args, kwargs

    def _after(self) -> None:
        if self._open:
            self.after()
        elif self._apart and self.optimizer._tamis_stepper is self:  # type: ignore[attr-defined]
            self._apart = False
            warnings.warn(
                f"{type(self.optimizer).__name__} goes on after the state of tamis was closed, with moments"
                " that differ from rank to rank, so replicas drift apart under dense training: give all"
                " ranks those of one, by optimizer.load_state_dict, or make a new optimizer",
                RuntimeWarning,
                stacklevel=4,
            )

    def _failed(self) -> None:
        if self._open:
            self.failed()

    def before(self, kwargs: Dict[str, Any]) -> None:
        """The optimizer is about to step."""

    def after(self) -> None:
        """It has stepped. Called once or twice."""

    def failed(self) -> None:
        """It raised."""

    def forget_places(self) -> None:
        """Plans that were made before are void."""

    def forget_step(self) -> None:
        """What was under way has failed, and is made again."""

    def here(self) -> str:
        return f"rank {self._state.comm.rank}: "


def release(optimizer: torch.optim.Optimizer) -> None:
    """One state at a time exchanges for an optimizer; one that nobody holds any more is none."""
    before = getattr(optimizer, "_tamis_stepper", None)
    if before is None or not before._open:
        return
    if before._alive() is not None:
        raise RuntimeError(
            f"another state exchanges for this {type(optimizer).__name__} already: close() it first"
        )
    before.close()


# ------------------------------------------------------------------------------ means of gradients


class GradientStepper(Stepper):
    """Sees that what the optimizer steps by is the result of an exchange."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: Kind, state: "Steps") -> None:
        super().__init__(optimizer, kind, state)
        self.fresh = False  # an exchange has ended since the last step
        self._lost = self._told = False
        self._hidden: Optional[Hidden] = None
        self._own = getattr(optimizer, SUPPORTS, False)
        if state.scaler is None:
            setattr(optimizer, SUPPORTS, True)  # has a scaler give itself away

    def close(self) -> None:
        super().close()
        setattr(self.optimizer, SUPPORTS, self._own)

    def ended(self, lost: bool) -> None:
        """An exchange. lost: all ranks skip the step."""
        self._lost = lost
        if self.fresh and not self._told and not self._state.discards:
            self._told = True
            log.warning(
                "%sa backward pass was exchanged, and no step followed: what it left in the residual"
                " comes later all the same. Where passes are dropped (GAN, SAM, skipped steps) leave"
                " reduce= out, or write discards=True; where several make one step, wrap all but the"
                " last in no_sync()",
                self.here(),
            )
        self.fresh = True

    def before(self, kwargs: Dict[str, Any]) -> None:
        if self._state.scaler is None and scaled(self.optimizer, kwargs):
            raise RuntimeError(
                f"{self.here()}a GradScaler steps the optimizer, which tamis was not given, so"
                " the residual would be in units of its scale: write attach(..., scaler=scaler)"
            )
        fresh, self.fresh = self.fresh, False
        moves = any(float(group["lr"]) != 0.0 for group in self.optimizer.param_groups)
        given = any(p.grad is not None for p in self._state.parameters_of(self.optimizer))
        if not fresh and given and moves:
            raise RuntimeError(
                f"{self.here()}step() without an exchange: backward() did not go through the"
                " DistributedDataParallel that tamis is attached to, or only within no_sync(), so"
                " replicas would drift apart"
            )
        if self._lost:  # zeros would still move momentum
            self._hidden = Hidden(self.optimizer)

    def after(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.restore()

    failed = after

    def forget_step(self) -> None:
        self.fresh = self._lost = False


# ------------------------------------------------------------------------------ of any optimizer


def check_groups(optimizer: torch.optim.Optimizer, state: "Steps") -> None:
    """Every parameter that the optimizer changes must be exchanged, or replicas drift apart."""
    for number, group in enumerate(optimizer.param_groups):
        if not isinstance(group.get("lr"), (int, float, torch.Tensor)):
            raise TypeError(
                f"param_groups[{number}] of {type(optimizer).__name__} has the rate"
                f" {group.get('lr')!r}: ranks apply what they have exchanged by a rate, so give lr= a"
                " number (to Adafactor of transformers with relative_step=False)"
            )
        for parameter in group["params"]:
            if not parameter.requires_grad or not local(parameter).numel():
                continue
            known = state.known(parameter)
            if known is None:
                raise ValueError(
                    f"param_groups[{number}] has a parameter of shape {tuple(parameter.shape)} that"
                    " was not named, or required no gradient, when tamis was attached: it is not"
                    " exchanged, and replicas would drift apart; pass all parameters that the"
                    " optimizer changes, and attach anew (or make a new DistributedOptimizer) where"
                    " some come later"
                )
            name, then = known
            if form(parameter) != then:
                raise ValueError(
                    f"parameter {name!r} has {form(parameter)} now, it had {then} when tamis was"
                    " attached: close the state and attach anew"
                )


def _run_closure(args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Call:
    """Run the closure of step(closure), if any, and leave one that only returns its loss, once.

    Errors: RuntimeError, when it is called, for an optimizer that wants other gradients of it
    """
    closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
    if closure is None:
        return args, kwargs
    with torch.enable_grad():
        loss = closure()
    groups, calls = args[0].param_groups, []
    had = any(_has_gradient(group) for group in groups)

    def once() -> Any:
        calls.append(loss)
        if len(calls) > 1 or had and not any(_has_gradient(group) for group in groups):
            raise RuntimeError(
                f"{type(args[0]).__name__} evaluates the closure by itself, on other parameters or"
                " more than once, which ranks cannot do each for itself: give attach the optimizer"
                " that is inside, and write the passes out (as SAM's first_step, second_step)"
            )
        return loss

    kwargs["closure"] = once
    return args[:1], kwargs


def _has_gradient(group: Dict[str, Any]) -> bool:
    return any(p.grad is not None and bool(local(p.grad).any()) for p in group["params"])
