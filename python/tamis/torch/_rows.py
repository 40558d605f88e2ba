# SPDX-License-Identifier: MIT
"""The parameters of a step of the own optimizer, before it, after it, and after the exchange."""

from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import torch

from ._group import Place
from ._parameters import flat

if TYPE_CHECKING:
    from ._state import SparseState


class Row:
    """The parameters of a param_group that are exchanged: their memory, beside copies."""

    def __init__(
        self,
        group: Dict[str, Any],
        known: List[torch.Tensor],
        pairs: List[Tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        self.group, self.known, self.pairs = group, known, pairs
        self.lr, self.keeps = 0.0, [1.0] * len(known)
        self.moving = [False] * len(known)

    def hold(self, decoupled: bool, agreed: bool) -> None:
        """Copy the parameters.

        agreed  a gradient that is None is so on all ranks: its parameter does not decay, as without
                tamis
        """
        self.lr = float(self.group["lr"])
        decay = float(self.group.get("weight_decay", 0.0)) if decoupled else 0.0
        # One that was frozen since, or has a rate of 0, ends as it was.
        self.moving = [p.requires_grad and self.lr != 0.0 for p in self.known]
        decays = [m and not (agreed and p.grad is None) for m, p in zip(self.moving, self.known)]
        self.keeps = [1.0 - self.lr * decay if one else 1.0 for one in decays]
        self._copy()

    @torch.no_grad()
    def _copy(self) -> None:
        for parameter, held in self.pairs:
            held.copy_(parameter)

    def give(self, rate: float) -> None:
        """The optimizer has stepped: make of it what is exchanged, as it were at `rate`."""
        raise NotImplementedError

    def apply(self, factor: float) -> None:
        """Let the parameters hold what the exchange, times a factor, has made of them."""
        raise NotImplementedError

    def place(self, state: "SparseState") -> Place:
        found = [state.locate(parameter) for parameter in self.known]
        runs = [flat(memory) for memory, _ in self.pairs]
        return Place(found[0][0], [segment for _, segment in found], runs, self.before())

    def before(self) -> Optional[List[torch.Tensor]]:
        """What the exchange itself takes the parameters of a place from."""
        return None

    def set_rates(self, place: Place) -> None:
        """Set what belongs to this step alone."""

    @torch.no_grad()
    def restore(self) -> None:
        for parameter, held in self.pairs:
            parameter.copy_(held)

    @torch.no_grad()
    def spoil(self, place: Place) -> bool:
        """Have all ranks skip what was given. Returns whether it could."""
        place.tensors[0][0] = float("nan")
        return True


class Subtracted(Row):
    """Three passes: the step is computed in the memory of the parameters, exchanged, applied."""

    def _base(self, number: int) -> torch.Tensor:
        """As weight decay alone would leave a parameter."""
        held, keep = self.pairs[number][1], self.keeps[number]
        return held * keep if keep != 1.0 else held

    @torch.no_grad()
    def give(self, rate: float) -> None:
        for i, (parameter, _) in enumerate(self.pairs):
            if not self.moving[i]:
                parameter.zero_()
                continue
            torch.sub(self._base(i), parameter, out=parameter)
            if self.lr != rate:
                parameter.mul_(rate / self.lr)

    @torch.no_grad()
    def apply(self, factor: float) -> None:
        for i, (parameter, held) in enumerate(self.pairs):
            if self.moving[i]:  # rounded twice, as the library does where it applies by itself
                moved = parameter.mul(self.lr * factor)
                torch.sub(self._base(i), moved, out=parameter)
            else:
                parameter.copy_(held)


class Moved(Row):
    """The exchange takes parameters after and before, and applies its result itself.

    Copies are of what weight decay alone would make of the parameters. So a step that is lost leaves
    them as they were but for a rounding, which is the same on all ranks.
    """

    @torch.no_grad()
    def _copy(self) -> None:
        for (parameter, held), keep in zip(self.pairs, self.keeps):
            torch.mul(parameter, keep, out=held)

    @torch.no_grad()
    def restore(self) -> None:
        for (parameter, held), keep in zip(self.pairs, self.keeps):
            torch.div(held, keep, out=parameter)

    def give(self, rate: float) -> None:
        pass

    def apply(self, factor: float) -> None:
        pass

    def before(self) -> Optional[List[torch.Tensor]]:
        return [flat(held) for _, held in self.pairs]

    def set_rates(self, place: Place) -> None:
        place.rates = [self.lr if moves else 0.0 for moves in self.moving]

    @torch.no_grad()
    def spoil(self, place: Place) -> bool:
        """What has a rate of 0 would not be looked at."""
        moving = next((i for i, moves in enumerate(self.moving) if moves), None)
        if moving is not None:
            place.tensors[moving][0] = float("nan")
        return moving is not None
