# SPDX-License-Identifier: MIT
"""A GradScaler beside optimizers whose steps ranks make together.

A GradScaler calls no step() that it skips, and it may skip on one rank alone, for which the others
would wait. SUPPORTS has it call step() in any case, and say there what it found.
"""

import contextlib
from typing import Any, Dict, Iterator, Optional

import torch

SUPPORTS = "_step_supports_amp_scaling"  # an attribute of optimizers that a GradScaler asks for


def scaled(optimizer: Any, kwargs: Dict[str, Any]) -> bool:
    """Whether a GradScaler steps an optimizer for which SUPPORTS is True."""
    return "grad_scaler" in kwargs or vars(optimizer).get("found_inf") is not None


class Scaling:
    """Does for an optimizer what one does that supports scaling: unscale gradients, skip a step."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._own = getattr(optimizer, SUPPORTS, False)
        self.seen = self.skips = False
        self.scale = 1.0  # that gradients still have when the optimizer steps
        self._hidden: Optional[Hidden] = None
        setattr(optimizer, SUPPORTS, True)

    def close(self) -> None:
        setattr(self._optimizer, SUPPORTS, self._own)

    def heed(self, kwargs: Dict[str, Any]) -> None:
        """Before a step."""
        optimizer = self._optimizer
        self.seen, self.scale = scaled(optimizer, kwargs), 1.0
        found = getattr(optimizer, "found_inf", None) if self.seen else None
        self.skips = found is not None and float(found) != 0.0
        scale = getattr(optimizer, "grad_scale", None) if self.seen else None
        if self._own and scale is not None:
            self.scale = float(scale)
        if not self.seen or self._own:
            return
        if scale is not None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(1.0 / float(scale))
        for name in ("grad_scale", "found_inf"):  # optimizers that are not fused take none
            if name in vars(optimizer):
                setattr(optimizer, name, None)
        if self.skips:
            self.skip()

    def skip(self) -> None:
        self.skips = True
        if self._hidden is None:
            self._hidden = Hidden(self._optimizer)

    def end(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None:
            hidden.restore()


@contextlib.contextmanager
def handed_on(wrapper: Any, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """What a GradScaler, which was given the wrapper, has written there, is the optimizer's."""
    told = [name for name in ("grad_scale", "found_inf") if name in vars(wrapper)]
    for name in told:
        setattr(optimizer, name, vars(wrapper)[name])
    try:
        yield
    finally:
        for name in told:
            delattr(optimizer, name)


class Hidden:
    """Takes the gradients away while the optimizer steps: nothing moves, but schedulers count it."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._rows = [(p, p.grad) for group in optimizer.param_groups for p in group["params"]]
        for parameter, _ in self._rows:
            parameter.grad = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        self.restore()

    def restore(self) -> None:
        for parameter, gradient in self._rows:
            parameter.grad = gradient
