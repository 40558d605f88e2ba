# SPDX-License-Identifier: MIT
"""A state as hooks, steppers and exchanges see it: its parameters, and the step that is under way."""

import time
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

import torch

from .. import _core, energy
from .._limits import reaches_all
from . import _comm, _guard, _others, _plan, _report
from ._exchange import Exchange
from ._figures import Figures, merged
from ._group import Group, Place
from ._kinds import Kind
from ._limits import Limits
from ._local_stepper import LocalStepper
from ._stepper import GradientStepper, Stepper
from ._wrapped import Wrapped, wrapped_of


class Steps:
    """Base of SparseState, which makes it and adds what callers use."""

    optimizers: List[torch.optim.Optimizer]
    device: torch.device
    scheme: str
    density: Optional[float]  # None: several optimizers have each its own
    op: str
    warmup: int
    overlap: bool
    scaler: Any
    check_every: int
    discards: bool
    meter: Optional[energy.Meter]
    comm: _core.Comm
    groups: List[Group]
    limits: Limits
    figures: Figures
    error: Optional[BaseException]
    _known: Dict[int, Tuple[str, str]]  # by id: name and form
    _index: Dict[int, Tuple[Group, int]]
    _inside: Any  # the process group of a node, where parameters are sharded
    _own_comms: List[_core.Comm]
    _checked: int  # steps made when parameters were last compared; -1: not yet among these ranks
    _cache: Dict[Any, Any]  # of the hook, or of a DistributedOptimizer
    _tell_adaptive: bool
    _told: bool  # what is exchanged, and how
    _closed: bool
    _unused: Any  # warns where no step was made
    by_ddp: bool
    wrapped: Optional[Wrapped] = None  # of attach

    def _make_exchanges(self, families: List[_plan.Family], kinds: List[Kind]) -> None:
        """One for gradients, and one for each optimizer whose steps are exchanged."""
        self._index = {
            id(parameter): (group, segment)
            for group in self.groups
            for segment, parameter in enumerate(group.parameters)
        }
        self.exchanges: List[Exchange] = []
        self.steppers: List[Stepper] = []
        self.hooked: Optional[Exchange] = None  # that of gradients
        for owner in dict.fromkeys(family.owner for family in families):
            pairs = zip(families, self.groups)
            groups = [group for family, group in pairs if family.owner == owner]
            one = None if owner is None else self.optimizers[owner]
            exchange = Exchange(self, groups, one)
            self.exchanges.append(exchange)
            if one is None or owner is None:
                self.hooked = exchange
            else:
                self.steppers.append(LocalStepper(one, kinds[owner], self, exchange))

    # ------------------------------------------------------------------------------- parameters

    def known(self, parameter: torch.Tensor) -> Optional[Tuple[str, str]]:
        """Name and form of a parameter when the state was made; None if it has no part."""
        return self._known.get(id(parameter))

    def known_ids(self) -> FrozenSet[int]:
        return frozenset(self._known)

    def locate(self, parameter: torch.Tensor) -> Tuple[Group, int]:
        found = self._index.get(id(parameter))
        if found is None:
            raise RuntimeError(
                f"rank {self.comm.rank}: a gradient came for a parameter of shape"
                f" {tuple(parameter.shape)} that the state does not know: a state serves the one"
                " model that it was made for, with the parameters that required a gradient then"
            )
        return found

    def local_optimizers(self) -> List[torch.optim.Optimizer]:
        """Those that step by this rank's own gradient."""
        return [one.optimizer for one in self.steppers if isinstance(one, LocalStepper)]

    def parameters_of(self, optimizer: torch.optim.Optimizer) -> List[torch.Tensor]:
        return [p for group in optimizer.param_groups for p in group["params"]]

    def may_change_ranks(self) -> None:
        """Before a run in which ranks may be lost, or may join: nothing else needs those of now.

        Errors: ValueError, for a DistributedDataParallel that does
        """
        wrapped = wrapped_of(self, f"rank {self.comm.rank}: ")
        if wrapped is not None:
            wrapped.begin_anew(self)

    def not_given(self) -> List[torch.Tensor]:
        """One parameter of each dtype whose optimizer the state does not know."""
        given = {id(p) for one in self.optimizers for p in self.parameters_of(one)}
        groups = [] if self.hooked is None else self.hooked.groups
        left = [[p for p in group.parameters if id(p) not in given] for group in groups]
        return [parameters[0] for parameters in left if parameters]

    # ---------------------------------------------------------------------------------- a step

    @property
    def steps(self) -> int:
        """Steps made; with several optimizers those of the one that made most."""
        return max(exchange.steps for exchange in self.exchanges)

    def begin(self) -> None:
        """A step begins, and parameters are those that all ranks have in common."""
        self.check()
        made, due = self.steps, self.check_every
        if self.comm.nranks == 1 or due == 0 or made == self._checked:
            return
        if self._checked < 0 or made % due == 0:
            rows = [row for group in self.groups for row in zip(group.names, group.memory())]
            _guard.check_parameters(rows, self.comm, made)
            _guard.check_rates(self.optimizers, self.comm, made)
            _guard.check_moments(self._outside(), self.comm, made)
            self._checked = made

    def limit(self, optimizer: torch.optim.Optimizer, scale: float, scaled: bool) -> bool:
        """Clip this rank's gradient, which is held times `scale`, before the optimizer steps by it.
        Returns whether all ranks leave the step out."""
        if not self.limits:
            return False
        gradients = [p.grad for p in self.parameters_of(optimizer) if p.grad is not None]
        self.figures.gradient_norm, leaves = self.limits.heed(gradients, 1.0 / scale, scaled)
        self.figures.lost += leaves
        return leaves

    def spoiled_inside(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a rank of this node has NaN or Inf in its shards. Those that hold other shards
        exchange with other ranks, and must lose the same steps."""
        if self._inside is None:
            return False
        sound = all(bool(tensor.isfinite().all()) for tensor in tensors)
        bad = torch.tensor([0.0 if sound else 1.0], device=self.device)
        torch.distributed.all_reduce(bad, torch.distributed.ReduceOp.MAX, group=self._inside)
        return bool(bad.item())

    def mark(self, place: Place, hold: bool = False) -> None:
        """Gradients are complete."""
        assert self.hooked is not None
        if not self.hooked.under_way:
            if self.dropped():
                self.discard()
            self.begin()
            self.hooked.begin(_guard.agreed_hash(self._outside()))
        self.hooked.mark(place, hold)

    def dropped(self) -> bool:
        """Whether no step followed the last backward pass."""
        means = [one for one in self.steppers if isinstance(one, GradientStepper)]
        exchanged = self.hooked is not None and self.hooked.may_discard
        return exchanged and bool(means) and all(one.fresh for one in means)

    def discard(self) -> None:
        """Where gradients are exchanged: forget the last backward pass, bit for bit. Collective.

        For a pass whose gradients are thrown away, between it and the next one. Where steps are
        exchanged nothing is to be forgotten, and this does nothing.

        Errors: RuntimeError without `discards`, and where there is no such pass
        """
        self.check()
        if self.hooked is None:
            return
        if self.hooked.under_way or not self.hooked.may_discard:
            raise RuntimeError(
                f"rank {self.comm.rank}: there is no backward pass to forget"
                + ("" if self.discards else ": write attach(..., discards=True)")
            )
        self.hooked.discard()
        for stepper in self.steppers:
            if isinstance(stepper, GradientStepper):
                stepper.fresh = False

    def _outside(self) -> List[torch.optim.Optimizer]:
        """Those that step by the mean of gradients."""
        own = set(map(id, self.local_optimizers()))
        return [one for one in self.optimizers if id(one) not in own]

    def finish(self, exchange: Exchange) -> bool:
        """Put results in place of what was exchanged. Returns whether there are any."""
        with torch.profiler.record_function("tamis: finish"):
            begin_s, failure, applied = time.perf_counter(), None, False
            try:
                applied = exchange.finish(f"rank {self.comm.rank}: ")
            except _core.Error as error:
                if error.lost != "step":
                    raise _guard.named(error, self.optimizers, self.comm)
                failure = error
            if exchange.left_out:
                self.figures.lost += 1
                return False
            self._count(exchange, time.perf_counter() - begin_s, not applied)
            if failure is not None:
                raise failure
            return applied

    def _count(self, exchange: Exchange, waited_s: float, lost: bool) -> None:
        rows = [group.reducer.stats() for group in exchange.groups]
        if exchange.gradient_norm is not None:
            self.figures.gradient_norm = exchange.gradient_norm
        self.figures.add(self.exchanges.index(exchange), exchange.groups, rows, waited_s, lost)
        self._unused.detach()
        if self.meter is not None:
            self.meter.step(merged(rows, lost))
        if not self._told and self.comm.rank == 0:
            _report.log.info(_report.at_a_glance(self))
        self._told = True
        self._choose()
        if self._tell_adaptive:
            self._tell_adaptive = False
            _others.warn_of_others(self)

    def _choose(self) -> None:
        warm = self.steps >= self.warmup
        if any([exchange.choose(warm) for exchange in self.exchanges]):
            self.forget_places()

    def forget_places(self) -> None:
        self._cache.clear()
        for stepper in self.steppers:
            stepper.forget_places()

    def fail(self, error: BaseException) -> None:
        """A step raised. If only the step is lost, the next one starts afresh; else end here."""
        for exchange in self.exchanges:
            exchange.clear()
        lost_step = isinstance(error, _core.Error) and error.lost == "step"
        if self.error is not None or self._closed or lost_step:
            return
        self.error = error
        self._unused.detach()
        if not reaches_all(error):
            for group in self.groups:
                group.comm.abort()
        self._leave_comms()

    def _leave_comms(self) -> None:
        for comm in self._own_comms:
            _comm.leave(comm)

    def check(self) -> None:
        """Raise the error that ended the state, if there is one, or that it was closed."""
        if self.error is not None:
            raise self.error
        if self._closed:
            raise RuntimeError(
                f"rank {self.comm.rank}: this state was closed, so ranks would train apart: attach"
                " anew, or train another model"
            )
