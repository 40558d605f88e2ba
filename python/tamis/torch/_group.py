# SPDX-License-Identifier: MIT
"""Parameters of one dtype: one communicator, one reducer, and the thread that waits for it."""

import threading
import weakref
from queue import Empty, SimpleQueue
from typing import Any, Dict, List, Optional, Tuple

import torch

from .. import _core
from ._kinds import WHOLE
from ._parameters import DTYPES, local, shaped


class Waiter:
    """A thread that waits for reducers whose transport has no thread of its own."""

    def __init__(self) -> None:
        self._todo: "SimpleQueue[Any]" = SimpleQueue()
        self._done: "SimpleQueue[Any]" = SimpleQueue()
        self._waiting = False
        # A daemon, so that a process that ends by an exception does not wait for other ranks.
        threading.Thread(target=self._run, name="tamis-wait", daemon=True).start()

    def _run(self) -> None:
        for reducer in iter(self._todo.get, None):
            try:
                reducer.wait()
                self._done.put(None)
            except BaseException as error:  # join() raises it, whatever it is
                self._done.put(error)
            reducer = None

    def begin(self, reducer: _core.Reducer) -> None:
        """Start to wait for the step that `reducer` has begun. Nothing if a wait is under way."""
        if not self._waiting:
            self._waiting = True
            self._todo.put(reducer)

    def join(self) -> None:
        """Wait for the wait that was begun, and raise what it raised."""
        error = self._done.get()
        self._waiting = False
        if error is not None:
            raise error

    @property
    def waiting(self) -> bool:
        return self._waiting

    def quiesce(self, limit_s: float) -> None:
        """After the communicator was abandoned: let the wait that was begun end, within limit_s."""
        try:
            if self._waiting:
                self._done.get(timeout=limit_s)
                self._waiting = False
        except Empty:  # later calls of the reducer then report that it is in use
            pass

    def stop(self) -> None:
        self._todo.put(None)


class Place:
    """The places of some segments' gradients. Holds the tensors, so their memory is not reused.

    With `before` they are parameters after a step and before it; rates, one a segment, are then to
    be set in every step.
    """

    __slots__ = ("group", "segments", "tensors", "plan", "rates")

    def __init__(
        self,
        group: "Group",
        segments: List[int],
        tensors: List[torch.Tensor],
        before: Optional[List[torch.Tensor]] = None,
    ) -> None:
        self.group, self.segments, self.tensors = group, segments, tensors
        self.plan = group.reducer.plan(segments, tensors, before)
        self.rates: Optional[List[float]] = None


class Group:
    """The parameters of one dtype. Segment i of the layout is parameter i."""

    def __init__(
        self,
        rows: List[Tuple[str, torch.Tensor]],
        comm: _core.Comm,
        options: Dict[str, Any],
        warmup: bool,
        overlap: bool,
        host_waits: bool,
    ) -> None:
        self.names = [name for name, _ in rows]
        self.parameters = [parameter for _, parameter in rows]
        self.dtype = rows[0][1].dtype
        self.comm = comm
        self.layout = _core.Layout([(name, local(p).numel()) for name, p in rows])
        options = dict(options, dtype=DTYPES[self.dtype])
        self.sparse = _core.Reducer(comm, self.layout, **options)
        self.scheme = options["scheme"]
        self.update = self.sparse.update
        self.has_residual = self.scheme != "dense"  # a residual
        self.ranks_per_node = max(1, options.get("ranks_per_node", 0))
        self.held = held(self.sparse) if self.ranks_per_node > 1 else None
        self.dense = None
        if warmup:
            common = ("dtype", "device", "op", "nonfinite", "bucket_length", "worker", "meter")
            shared = {name: options[name] for name in common if name in options}
            self.dense = _core.Reducer(comm, self.layout, scheme="dense", density=1.0, **shared)
        self.reducer = self.dense or self.sparse
        threadless = comm.transport in ("callback", "local")
        self.waiter = None
        if overlap and threadless and comm.nranks > 1:
            self.waiter = Waiter()
            weakref.finalize(self, self.waiter.stop)
        self.host_waits = host_waits
        self._joined: Optional[_core.Reducer] = None  # whose device made the last step
        self._untold = False  # nobody has asked for its outcome
        self.late = False  # what finish() says is of the step before
        self._kept: Optional[Tuple[bytes, torch.Tensor]] = None
        # Steps by reducer, as these count them. One that a device runs they count when it has ended.
        self._made = self._counted()

    @property
    def density(self) -> float:
        """Share of the entries that the next step sends."""
        return self.sparse.density

    def asked(self, density: Optional[float]) -> float:
        """What a state's density is for this group; None: its own."""
        if density is None or self.scheme in WHOLE:
            return self.sparse.density
        return float(density)

    def set_density(self, density: float) -> None:
        if self.scheme not in WHOLE:
            self.sparse.set_density(density)

    def memory(self) -> List[torch.Tensor]:
        """Where the parameters are on this rank."""
        return [local(parameter) for parameter in self.parameters]

    @property
    def takes_before(self) -> bool:
        """Whether the reducer of the next step takes parameters before and after a step."""
        update, here = self.sparse.update, self.parameters[0].device.type == "cpu"
        moments = update is None or update["rule"] == "adam" or update["beta1"] != 0.0
        return here and self.dtype == torch.float32 and self.reducer is self.sparse and not moments

    def choose(self, warm: bool) -> bool:
        """Choose the reducer of the next steps. True if it changed: old plans are then void."""
        before = self.reducer
        self.reducer = self.sparse if warm or self.dense is None else self.dense
        return self.reducer is not before

    def _reducers(self) -> List[_core.Reducer]:
        return [self.sparse] if self.dense is None else [self.sparse, self.dense]

    def _counted(self) -> List[int]:
        return [int(reducer.stats()["steps"]) for reducer in self._reducers()]

    def count(self) -> None:
        """The step that the reducer was given counts as made."""
        self._made[self._reducers().index(self.reducer)] += 1

    def uncount(self, made: Optional[List[int]] = None) -> int:
        """Only these steps were made; None: those that the reducers have counted. Returns how many
        fewer there are now."""
        before, self._made = self._made, self._counted() if made is None else made
        return sum(before) - sum(self._made)

    def resync(self) -> List[int]:
        """Bring the ranks to the same step. Returns the steps made, by reducer."""
        return [int(reducer.resync()) for reducer in self._reducers()]

    def ready(self, place: Place, scale: float, stream: int, agreed: int) -> None:
        self.reducer.ready(place.plan, scale, stream, place.rates, agreed)
        if self.waiter is not None:
            self.waiter.begin(self.reducer)

    def finish(self, stream: int) -> bool:
        """Put the result into the gradients, or raise. Returns whether there is one.

        A device that runs a step by itself puts it there in the order of the stream, and what
        became of the step is known later. So this reports on the step before, on all ranks.
        """
        self.late = False
        if self.waiter is not None and self.waiter.waiting:
            self.waiter.join()
        elif self.host_waits:
            self.reducer.wait()
        else:
            return self._join(stream)
        return not self.reducer.stats()["skipped"]

    def _join(self, stream: int) -> bool:
        before, self._joined = self._joined, self.reducer
        self.reducer.join(stream)
        if self.reducer.driver[0] == "host":  # join has waited
            return not self.reducer.stats()["skipped"]
        self._untold = self.late = True
        if before is None:
            return True
        try:
            return before.outcome(1 if before is self.reducer else 0)
        except _core.Error as error:
            setattr(error, "late", True)  # of the step before: this one has a result
            raise

    def outcome(self) -> None:
        """Wait for the last step and raise what became of it, once. The next step does, too, for
        it must do so on all ranks, and this is asked on some."""
        untold, self._untold = self._untold, False
        if untold and self._joined is not None:
            self._joined.outcome()

    def residual(self) -> torch.Tensor:
        """A copy of this rank's residual: float32, one element per element of the layout.

        With nodes it is zero outside this rank's shard.
        """
        part = torch.empty(self.sparse.residual_length)
        self.sparse.residual(part)
        return self._whole(part)

    def _whole(self, part: torch.Tensor) -> torch.Tensor:
        if self.held is None:
            return part
        whole = torch.zeros(self.layout.length)
        whole[self.held] = part
        return whole

    def restore(self, control: Optional[bytes], residual: Optional[torch.Tensor]) -> None:
        """Restore what control() and residual() gave. Control None: thresholds and step number stay."""
        if residual is not None and self.held is not None:
            part = residual[self.held]
            if part.count_nonzero() != residual.count_nonzero():
                raise ValueError(
                    f"rank {self.comm.rank}: this residual is of another shard of the node: with"
                    " ranks_per_node a state goes to the rank that saved it"
                )
            residual = part
        if control is not None or residual is not None:
            self.sparse.restore(control, residual)
        self._made[0] = int(self.sparse.stats()["steps"])

    def keep(self) -> None:
        """What the next step begins with, for discard()."""
        before, self._kept = self._kept, None
        if self.has_residual and self.reducer is self.sparse:
            part = torch.empty(self.sparse.residual_length) if before is None else before[1]
            self.sparse.residual(part)
            self._kept = (self.sparse.control(), part)

    def saved(self, before: bool) -> Tuple[bytes, Optional[torch.Tensor]]:
        """What a checkpoint holds: control and residual, as they are, or as they were at keep()."""
        if not before or self._kept is None:
            return self.sparse.control(), self.residual() if self.has_residual else None
        control, part = self._kept
        return control, self._whole(part.clone())

    def discard(self) -> None:
        """Forget the step before which keep() was called, bit for bit."""
        if self._kept is not None:
            self.sparse.restore(*self._kept)
            self._made[0] = int(self.sparse.stats()["steps"])

    def take_back(self, results: torch.Tensor, op: str) -> None:
        """Return the results of a step that is not applied (float32, whole) to the residual.

        Every rank adds the mean, so that the sum over ranks is restored; with nodes the rank that
        holds the element adds it for all ranks of its node.
        """
        share = self.ranks_per_node / (1 if op == "mean" else self.comm.nranks)
        residual = self.residual().add_(results, alpha=share)
        self.sparse.restore(None, residual if self.held is None else residual[self.held])

    def pieces(self, whole: torch.Tensor) -> Dict[str, torch.Tensor]:
        """The runs of `whole` that belong to the parameters, in their shapes. Views."""
        memory = self.memory()
        runs = torch.split(whole, [tensor.numel() for tensor in memory])
        rows = zip(self.names, runs, memory)
        return {name: shaped(run, parameter) for name, run, parameter in rows}

    def quiesce(self, limit_s: float) -> None:
        """After a failure, before the reducer's state is read: end the step under way."""
        if self.waiter is not None:
            self.waiter.quiesce(limit_s)
        try:
            self.reducer.wait()
        except _core.Error:  # the communicator is lost, or no step is under way
            pass

    def migrate(self, smaller: _core.Comm) -> Dict[str, Any]:
        """Go on over a communicator of fewer ranks, then choose(). Plans made before are void.
        The report is that of `sparse`, but for "steps": those made, by reducer."""
        self.sparse, report, *steps = self._migrated(self.sparse, smaller)
        if self.dense is not None:
            self.dense, _, step = self._migrated(self.dense, smaller)
            steps.append(step)
        self.comm = smaller
        self._joined, self._untold = None, False
        return dict(report, steps=steps)

    @staticmethod
    def _migrated(
        old: _core.Reducer, smaller: _core.Comm
    ) -> Tuple[_core.Reducer, Dict[str, Any], int]:
        made, report = old.migrate(smaller)
        old.close()
        return made, report, int(report["step"])

    def close(self) -> None:
        """Errors: `Error` while the waiting thread is inside a call."""
        if self.waiter is not None:
            self.waiter.stop()
        self.sparse.close()
        if self.dense is not None:
            self.dense.close()


def held(reducer: _core.Reducer) -> torch.Tensor:
    """Indices of the layout's elements that the residual holds, in its order."""
    runs = []
    for bucket in sorted(reducer.buckets(), key=lambda bucket: bucket["residual_begin"]):
        number = torch.arange(bucket["residual_length"])
        run, first = max(1, bucket["shard_run"]), bucket["begin"] + bucket["shard_first"]
        row = number.div(run, rounding_mode="floor")
        runs.append(first + row * bucket["shard_stride"] + number % run)
    return torch.cat(runs)
