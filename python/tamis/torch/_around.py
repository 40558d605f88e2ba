# SPDX-License-Identifier: MIT
"""What is called before and after each step of an optimizer."""

import functools
import types
from typing import Any, List

import torch


class Around:
    """Calls before(optimizer, args, kwargs), which may change these, and after the step after();
    where it raises, failed().

    By torch 2 also where somebody puts back the step of before, as accelerate does. A step() that
    calls that of its base class is one step, though hooks see two.
    """

    def __init__(self, before: Any, after: Any, failed: Any) -> None:
        self.before, self.after, self.failed = before, after, failed
        self.inside, self.depth, self.called = False, 0, False
        self.handles: List[Any] = []

    def hook_before(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        self.called = True
        self.depth = self.depth + 1 if self.inside else 1
        return self.before(optimizer, args, kwargs) if self.depth == 1 else None

    def hook_after(self, *_: Any) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.after()

    def enter(self) -> None:
        self.inside, self.depth, self.called = True, 0, False

    def check(self, hooks: bool) -> None:
        """A step() that somebody put in the place of torch's does not call torch's hooks."""
        if hooks and self.handles and not self.called:
            raise RuntimeError(
                "the optimizer's step() was replaced by one that torch's hooks do not see, so ranks"
                " made steps of their own: attach to an optimizer whose class defines step()"
            )

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []


def around(optimizer: torch.optim.Optimizer, before: Any, after: Any, failed: Any) -> Around:
    calls = Around(before, after, failed)
    hooks = hasattr(optimizer, "register_step_pre_hook")  # torch 2
    if hooks:
        calls.handles = [
            optimizer.register_step_pre_hook(calls.hook_before),
            optimizer.register_step_post_hook(calls.hook_after),
        ]
        # Hooks of the script are to see parameters that all ranks have.
        hooks_after: Any = optimizer._optimizer_step_post_hooks
        hooks_after.move_to_end(calls.handles[1].id, last=False)
    inner = optimizer.step

    @functools.wraps(inner)  # a scheduler may have counted itself in
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        changed = None if hooks else before(self, (self, *args), kwargs)
        args, kwargs = (args, kwargs) if changed is None else (changed[0][1:], changed[1])
        calls.enter()
        try:
            found = inner(*args, **kwargs)
        except BaseException:
            failed()
            raise
        finally:
            calls.inside = False
        calls.check(hooks)
        after()
        return found

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    return calls
