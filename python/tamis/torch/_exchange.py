# SPDX-License-Identifier: MIT
"""Groups whose steps end together: they take all that is exchanged in a step, or none of it."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional

import torch

from .. import _core
from . import _parameters
from ._group import Group, Place
from ._streams import Streams

if TYPE_CHECKING:
    from ._steps import Steps


class Exchange:
    """One step at a time: begin, mark every place, finish.

    What is exchanged lies where the result appears: gradients, or the steps of an optimizer in the
    memory of its parameters; or these themselves, beside what they were before (Place.before).
    """

    def __init__(
        self, state: "Steps", groups: List[Group], owner: Optional[torch.optim.Optimizer]
    ) -> None:
        """owner: the optimizer whose steps are exchanged; None: gradients are."""
        gradients = owner is None
        self.groups = groups
        self.name = "gradients" if owner is None else f"steps of {type(owner).__name__}"
        self.steps = 0
        self._overlap, self._scaler = state.overlap, state.scaler if gradients else None
        self._limits = state.limits if gradients else None
        self._discards = state.discards and gradients
        self.may_discard = False  # the last step
        self.left_out = False  # it was not exchanged at all
        self._op, self._streams = state.op, Streams(state.device)
        self._number = sum(len(group.parameters) for group in groups)
        self.gradient_norm: Any = None
        self.clear()

    def clear(self) -> None:
        self._places: List[Place] = []
        self._held: List[Place] = []  # those of _places not handed over yet
        self._marked = 0
        self._scale, self._agreed = 1.0, 0
        self._streams.clear()

    @property
    def form(self) -> str:
        """In words: the scheme, and what an update does."""
        group = self.groups[0]
        words = str(group.scheme)
        if group.update is not None:
            norm_matching, scale = group.update["norm_matching"], group.update["scale"]
            matches = f", norm_matching {norm_matching:.3g}"
            words += matches if norm_matching else f", scale {scale:.3g}"
            words += f", residual decay {group.sparse.residual_decay:.3g}"
        return words

    @property
    def under_way(self) -> bool:
        return self._marked > 0

    @property
    def late(self) -> bool:
        """Whether what finish() returned is of the step before, and this one has a result."""
        return any(group.late for group in self.groups)

    def begin(self, agreed: int, scale: float = 1.0) -> None:
        """
        agreed  a number that all ranks must have in common in this step: `agreed_hash`
        scale   what is exchanged is that much times what the tensors hold
        """
        self._agreed, self._scale = agreed, scale
        for group in self.groups if self._discards else ():
            group.keep()
        if self._scaler is not None:
            self._scale = _inverse(self._scaler.get_scale())

    def mark(self, place: Place, hold: bool = False) -> None:
        """The tensors of a place are complete. `hold`: they leave in finish."""
        self._marked += len(place.segments)
        self._places.append(place)
        self._streams.arrive()
        if self._overlap and not hold and not self._limits:
            self._leave(place)
        else:
            self._held.append(place)

    def _leave(self, place: Place) -> None:
        with torch.profiler.record_function("tamis: start"):
            place.group.ready(place, self._scale, self._streams.given(), self._agreed)

    @torch.no_grad()
    def _limit(self) -> bool:
        """Check this rank's gradient, which is all held. Returns whether all ranks leave it out."""
        tensors = [tensor for place in self._held for tensor in place.tensors]
        assert self._limits is not None
        scaled = self._scaler is not None
        self.gradient_norm, leaves = self._limits.heed(tensors, self._scale, scaled)
        for tensor in tensors if leaves else ():
            tensor.zero_()
        self._streams.arrive()
        return leaves

    def finish(self, here: str) -> bool:
        """Put the results of all groups, or of none, into the tensors. Returns whether there are any.

        Errors: that of a group which lost the step, when all groups have ended it
        """
        if self._marked != self._number:
            raise RuntimeError(self._missing(here))
        self._streams.gather()
        self.left_out = bool(self._limits) and self._limit()
        if self.left_out:
            self.may_discard = False
            self.clear()
            return False
        for place in self._held:
            self._leave(place)
        failure, lost = None, False
        for group in self.groups:
            try:
                lost |= not group.finish(self._streams.now())
            except _core.Error as error:
                if error.lost != "step":
                    raise
                failure = error
        lost = lost or failure is not None
        if lost and len(self.groups) > 1:
            self._take_back()
        self._unscale(lost)
        self.steps += 1
        for group in self.groups:
            group.count()
        self.clear()
        self.may_discard = self._discards
        if lost and self._discards:
            self.discard()
        if failure is not None:
            raise failure
        return not lost

    def discard(self) -> None:
        """Forget the last step, whose result is applied nowhere."""
        self.may_discard = False
        self.steps -= 1
        for group in self.groups:
            group.discard()

    def _take_back(self) -> None:
        """One group lost the step, so no group applies it: return results to the residual."""
        for group in self.groups:
            if group.reducer.stats()["skipped"]:
                continue
            views: Dict[int, torch.Tensor] = {}
            for place in self._places:
                if place.group is group:
                    views.update(zip(place.segments, place.tensors))
            if group.scheme != "dense":
                runs = [_parameters.flat(views[segment]) for segment in range(len(views))]
                group.take_back(torch.cat(runs).float().cpu(), self._op)
            for view in views.values():
                view.zero_()

    def _unscale(self, lost: bool) -> None:
        """Give the scaler results in its units; a lost step gives it Inf."""
        if self._scaler is None:
            return
        if lost:
            self._places[0].tensors[0].view(-1)[0] = float("inf")
        elif self._scale != 1.0:
            for place in self._places:
                for tensor in place.tensors:
                    tensor.mul_(1.0 / self._scale)

    def _missing(self, here: str) -> str:
        found = {(id(place.group), s) for place in self._places for s in place.segments}
        names = [
            name
            for group in self.groups
            for segment, name in enumerate(group.names)
            if (id(group), segment) not in found
        ]
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return (
            f"{here}{len(names)} of {self._number} parameters of the state got no gradient in this"
            f" step ({some}): the state belongs to another model, or this one has changed since the"
            " state was made"
        )

    def choose(self, warm: bool) -> bool:
        """Choose the reducers of the next step. True if places made before are void."""
        return any([group.choose(warm) for group in self.groups])


def _inverse(scale: float) -> float:
    """Errors: ValueError for a scale whose inverse float32 cannot hold"""
    if not 1e-37 <= scale <= 1e37:
        raise ValueError(
            f"the GradScaler has sunk to a scale of {scale:g}: every step has NaN or Inf in its"
            " gradients whatever the scale is, so look for what makes them in the model, or the rate"
        )
    return 1.0 / scale
