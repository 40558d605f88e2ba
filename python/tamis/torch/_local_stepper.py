# SPDX-License-Identifier: MIT
"""Steps of the own optimizer: each rank's steps from its own gradient; what it made is exchanged.

    base = p (1 - lr wd)        where weight decay is apart from the gradient; else p
    step()                      the optimizer's own, with its own state
    u    = (base - p) / lr      in the memory of p
    x    = what the reducer makes of u: residual, norm, the mean over ranks of what was chosen
    p    = base - lr x          the same bits on all ranks; where the step is lost, as before
"""

from typing import TYPE_CHECKING, Any, Dict, List, Tuple, Type

import torch

from .. import _core
from ._exchange import Exchange
from ._group import Place
from ._guard import agreed_hash
from ._kinds import Kind
from ._parameters import local
from ._rows import Moved, Row, Subtracted
from ._scaling import Scaling
from ._stepper import Stepper

if TYPE_CHECKING:
    from ._steps import Steps


class LocalStepper(Stepper):
    """Lets the optimizer step by the rank's own gradient, and exchanges what that has moved."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, kind: Kind, state: "Steps", exchange: Exchange
    ) -> None:
        self._exchange = exchange
        self._held: Dict[int, torch.Tensor] = {}
        self._rows: List[Row] = []  # of a step that is under way
        self._density = exchange.groups[0].density  # its
        self._places: List[Place] = []
        self._located_at: List[List[Tuple[type, int, int]]] = []
        self._scaling = Scaling(optimizer)
        # Adagrad of torch makes its state with the optimizer, and misses it where it is gone.
        rows = [own for own in optimizer.state.values() if isinstance(own, dict)]
        self._begins_lazily = not optimizer.state or any("step" in own for own in rows)
        super().__init__(optimizer, kind, state)

    def close(self) -> None:
        if self._alive() is not None and self._exchange.steps and self._state.comm.nranks > 1:
            self._apart = True
        super().close()
        self._scaling.close()
        self._held.clear()

    def before(self, kwargs: Dict[str, Any]) -> None:
        self.failed()  # if a step before raised where nothing could see it
        self._state.begin()
        self._density = self._exchange.groups[0].density
        # Anew in every step: load_state_dict makes other param_groups.
        way = self._way()
        rows = [way(group, *self._known(group)) for group in self.optimizer.param_groups]
        for row in rows:  # before a scaler's skip hides gradients
            row.hold(self.kind.decoupled(row.group), self._state.by_ddp)
            if not sound_rate(abs(row.lr)):
                raise ValueError(f"{self.here()}the learning rate is {row.lr}: float32 has no inverse of it")
        self._scaling.heed(kwargs)
        if self._leaves_out():
            self._scaling.skip()  # the optimizer steps, for schedulers, and nothing moves
            rows = []
        self._rows = rows

    def _leaves_out(self) -> bool:
        try:
            scaling = self._scaling
            return bool(self._state.limit(self.optimizer, scaling.scale, scaling.seen))
        except BaseException as error:
            self._state.fail(error)
            raise

    def _way(self) -> Type[Row]:
        """One pass over float32 in host memory, where nothing else needs the steps by themselves."""
        groups, param_groups = self._exchange.groups, self.optimizer.param_groups
        fits = len(groups) == 1 and groups[0].takes_before
        plain = all(sound_rate(float(g["lr"])) and self._factor(g) == 1.0 for g in param_groups)
        slow = all(float(g["lr"]) * float(g.get("weight_decay", 0.0)) < 0.5 for g in param_groups)
        return Moved if fits and plain and slow and not self._clears() else Subtracted

    def _clears(self) -> bool:
        momentum = any(group.get("momentum") for group in self.optimizer.param_groups)
        return momentum and self.kind.clears_at(self._density)

    def _known(
        self, group: Dict[str, Any]
    ) -> Tuple[List[torch.Tensor], List[Tuple[torch.Tensor, torch.Tensor]]]:
        """Its parameters that are exchanged, and their memory beside that of copies."""
        pairs, known = [], [p for p in group["params"] if self._state.known(p) is not None]
        for parameter in known:
            if self._state.locate(parameter)[0] not in self._exchange.groups:
                raise ValueError(
                    f"{self.here()}parameter {self._state.known(parameter)[0]!r} came to"
                    f" {type(self.optimizer).__name__} after tamis was attached, when it was not"
                    " this optimizer's: attach anew"
                )
            memory, held = local(parameter).detach(), self._held.get(id(parameter))
            if held is None or held.stride() != memory.stride():
                held = self._held[id(parameter)] = torch.empty_like(memory)
            pairs.append((memory, held))
        return known, pairs

    def after(self) -> None:
        rows, self._rows = self._rows, []
        self._scaling.end()
        if not rows:
            return
        try:
            lost = not self._trade(rows)
        except BaseException as error:
            late = getattr(error, "late", False)
            for row in rows:
                row.apply(self._factor(row.group)) if late else row.restore()
            self._repair()
            if self._scaling.seen and isinstance(error, _core.Error) and error.lost == "step":
                self._tell_scaler()
                return
            self._state.fail(error)
            raise
        if lost:
            self._repair()
            self._tell_scaler()

    def failed(self) -> None:
        rows, self._rows = self._rows, []
        self._scaling.end()
        for row in rows:
            row.restore()

    def _trade(self, rows: List[Row]) -> bool:
        """Exchange the steps. Returns whether they were applied, or, where a device reports late,
        those before."""
        moved = isinstance(rows[0], Moved)
        rate = 1.0 if moved else next((row.lr for row in rows if row.lr != 0.0), 1.0)
        for row in rows:
            row.give(rate)
        full = [row for row in rows if row.pairs]
        places = self._located(full)
        for row, place in zip(full, places):
            row.set_rates(place)
        spoiled = self._state.spoiled_inside([memory for row in full for memory, _ in row.pairs])
        if self._scaling.skips or spoiled:
            _spoil(full, places)
        factors = [one for row in rows for one in (row.lr, self._factor(row.group), *row.keeps)]
        self._exchange.begin(agreed_hash([self.optimizer], factors), 1.0 / rate)
        for place in places:
            self._exchange.mark(place)
        told: bool = self._state.finish(self._exchange)
        applied: bool = told or self._exchange.late
        if applied and not moved and self._clears():
            self._clear_applied(rows)
        for row in rows:
            row.apply(self._factor(row.group)) if applied else row.restore()
        return told

    def _factor(self, group: Dict[str, Any]) -> float:
        """What suits the density and the momentum, which the reducer does not know."""
        clears = self.kind.rule == "momentum"
        return self.kind.scale_at(self._density, group) if clears else 1.0

    @torch.no_grad()
    def _clear_applied(self, rows: List[Row]) -> None:
        """Factor masking of Deep Gradient Compression (arXiv 1712.01887): a direction that was applied
        does not push on."""
        for row in rows:
            for parameter, (applied, _) in zip(row.known, row.pairs):
                momentum = self.optimizer.state.get(parameter, {}).get(self.kind.clears)
                if momentum is not None:
                    local(momentum).masked_fill_(applied != 0, 0.0)

    def _located(self, rows: List[Row]) -> List[Place]:
        """Where the parameters are, one for each row; anew if one was given other memory."""
        now = [[(type(row), m.data_ptr(), held.data_ptr()) for m, held in row.pairs] for row in rows]
        if now != self._located_at:
            self._places = [row.place(self._state) for row in rows]
            self._located_at = now
        return self._places

    def forget_places(self) -> None:
        self._located_at = []

    def _repair(self) -> None:
        """Let the optimizer begin anew with what a bad gradient has made of its state: NaN would stay
        in it, and spoil every step from here on."""
        for parameter, own in list(self.optimizer.state.items()):
            if not isinstance(own, dict) or not any(map(_is_bad, own.values())):
                continue
            if self._begins_lazily:
                del self.optimizer.state[parameter]
                continue
            for value in filter(_is_bad, own.values()):
                local(value).nan_to_num_(0.0, 0.0, 0.0)

    def _tell_scaler(self) -> None:
        """A rank's Inf is all ranks': have each scaler lower its scale."""
        per_optimizer = getattr(self._state.scaler, "_per_optimizer_states", {})
        if id(self.optimizer) in per_optimizer:
            for found in per_optimizer[id(self.optimizer)]["found_inf_per_device"].values():
                found.fill_(1.0)


def _spoil(rows: List[Row], places: List[Place]) -> None:
    """Have all ranks skip the step. Where nothing moves they apply nothing in any case."""
    for row, place in zip(rows, places):
        if row.spoil(place):
            return


def _is_bad(value: Any) -> bool:
    """Whether it is a tensor with NaN or Inf."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return not bool(local(value).isfinite().all())


def sound_rate(lr: float) -> bool:
    """Whether its inverse is a number of float32."""
    return lr == 0.0 or 1.2e-38 < lr < 3e38
