# SPDX-License-Identifier: MIT
"""Training that goes on when ranks are lost: in place with those that are left, or started again
by a launcher (torchrun) from the newest complete set of states.

                       fails                        all that are left
    rank 0   commit 7 . . . . .  shrink -> the newest commit that all have: 7 -> migrate, check
    rank 1   commit 7  commit 8  shrink ->                back from 8 to 7 -> migrate, check
    rank 2   dies

A rank whose last exchange failed where others made the step is one commit behind them. So every
rank holds two, and no parameters need travel: what a rank goes back to is its own.
"""

import logging
import os
import struct
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, NoReturn, Optional, Sequence
from typing import TypeVar, Union

from . import _core, _limits, launch, launcher
from ._core import Comm, Error
from ._elastic_parts import check_target, give, part_of, take
from ._limits import GaveUp, Limits, Regroup, lost, sentence
from ._pack import decode, encode
from ._sets import Sets

log = logging.getLogger("tamis")

Result = TypeVar("Result")


class Commit(NamedTuple):
    """A copy of a state, as bytes."""

    number: int
    step: int
    shared: Dict[str, bytes]
    own: Dict[str, bytes]
    reducers: List[bytes]


class ElasticState:
    """What a run goes back to, and goes on with, when ranks are lost.

    comm      the communicator of all reducers, of host memory (not NCCL). It belongs to the state
              from here on, which replaces it by a smaller one and closes it
    shared    by name, what is equal on all ranks: parameters, the optimizer's state. Arrays of
              numpy, tensors of torch (written in place), or objects with state_dict() and
              load_state_dict(): modules, optimizers, schedulers. An optimizer of torch whose steps
              are exchanged has moments of its own on each rank, which go with `reducers`
    own       the same, of what each rank has for itself: statistics of BatchNorm, random numbers. A
              rank that joins a run keeps what it began with
    reducers  tamis.Reducer, and of tamis.torch SparseState and DistributedOptimizer (the optimizer
              inside is a row of `shared`), in the same order on all ranks. Not with
              DistributedDataParallel, except to be started again
    step      the number of finished steps; the caller counts it

    `train` reads comm, step and reducers[i] anew whenever it is called: after a recovery they are
    others. `recoveries` counts those of this process; `gone` lists, for each, the ranks that were
    lost, as numbered before it.

    Errors: TypeError, ValueError
    """

    def __init__(
        self,
        comm: Comm,
        shared: Mapping[str, Any],
        own: Optional[Mapping[str, Any]] = None,
        reducers: Sequence[Any] = (),
        step: int = 0,
    ) -> None:
        self.comm, self.step = comm, step
        self.recoveries = 0
        self.gone: List[List[int]] = []
        self._shared, self._own = dict(shared), dict(own or {})
        for name, target in [*self._shared.items(), *self._own.items()]:
            check_target(target, repr(name))
        self._parts = [part_of(one, number) for number, one in enumerate(reducers)]
        for part in self._parts:
            self._shared = {name: part.shared_of(one) for name, one in self._shared.items()}
        self._commits: List[Commit] = []
        self._old: List[Comm] = []  # to be closed
        self._sets: Optional[Sets] = None
        self._save_every = 1
        self._back_at: Optional[int] = None  # a recovery under way has gone back to this commit

    @property
    def reducers(self) -> List[Any]:
        return [part.object for part in self._parts]

    def commit(self) -> None:
        """Copy the state: what a recovery goes back to. Between steps, on all ranks after the same
        ones. Every Nth writes a set, if run_elastic was given a folder.

        Cost:   a copy of everything in host memory, of which two are held, and three while it
                is made; with a set also a write and a flush, and an exchange of some bytes
        Errors: `Error` of that exchange; the copy is then made. A set that cannot be written is
                logged, and the run goes on
        """
        number = self._commits[-1].number + 1 if self._commits else 0
        self._commits = [*self._commits[-1:], self._copy(number)]
        if self._sets is not None and number % self._save_every == 0:
            self._sets.save(self.comm, self.step, encode(self._commits[-1]._asdict(), "the state"))

    def close(self) -> None:
        """Close reducers and communicator. Over local, ranks that are left wait for one that died
        without this, until the deadline."""
        for part in self._parts:
            if self.comm.status != "TAMIS_OK":
                part.quiesce()
            part.object.close()
        for comm in [*self._old, self.comm]:
            _limits.close(comm)

    # --- copies

    def _copy(self, number: int) -> Commit:
        return Commit(
            number,
            self.step,
            {name: encode(take(one), repr(name)) for name, one in self._shared.items()},
            {name: encode(take(one), repr(name)) for name, one in self._own.items()},
            [encode(part.save(), f"reducers[{i}]") for i, part in enumerate(self._parts)],
        )

    def _put_values(self, commit: Commit, own: bool = True) -> None:
        self._match_names(commit)
        for name, target in self._shared.items():
            give(target, decode(commit.shared[name]), repr(name))
        for name, target in self._own.items() if own else ():
            give(target, decode(commit.own[name]), repr(name))
        self.step = commit.step

    def _match_names(self, commit: Commit) -> None:
        rows = (("shared", self._shared, commit.shared), ("own", self._own, commit.own))
        for what, mine, saved in rows:
            if set(mine) != set(saved):
                raise ValueError(f"{what} is {sorted(mine)}, but {sorted(saved)} was saved")
        if len(commit.reducers) != len(self._parts):
            raise ValueError(
                f"there are {len(self._parts)} reducers, but {len(commit.reducers)} were saved"
            )

    def _check_equal(self, when: str, remedy: str) -> None:
        """What is shared must be equal on all ranks. Collective."""
        rows = [("the step", struct.pack("<q", self.step))]
        rows += [(repr(name), encode(take(one), name)) for name, one in self._shared.items()]
        for what, data in rows:
            try:
                _core.check_equal(self.comm, data)
            except Error as error:
                if error.status != "TAMIS_E_MISMATCH":
                    raise
                raise launcher.error(
                    f"{when} {what} is not the same on all ranks ({sentence(error)}).",
                    remedy,
                    error.status,
                ) from error

    # --- sets

    def _begin(self, folder: Union[None, str, "os.PathLike[str]"], save_every: int) -> None:
        """Load the newest set, if there is one, and make the first commit. Collective."""
        self._sets = Sets(os.fspath(folder)) if folder is not None else None
        self._save_every = save_every
        found = self._sets.choose(self.comm) if self._sets is not None else None
        if found is not None:
            self._load(found.step, found.nranks)
        self._check_equal(
            "Before the first step",
            "Begin with equal values (tamis.torch.broadcast_parameters), and count the same steps;"
            " what differs from rank to rank belongs into own.",
        )
        self._commits = [self._copy(0)]

    def _load(self, step: int, nranks: int) -> None:
        rank = self.comm.rank
        joins = rank >= nranks
        mine = self._read(step, 0 if joins else rank)
        self._put_values(mine, own=not joins)
        if nranks == self.comm.nranks:
            for part, data in zip(self._parts, mine.reducers):
                part.load(decode(data))
        else:
            every = [self._read(step, old).reducers for old in range(nranks)]
            for number, part in enumerate(self._parts):
                part.load_all([decode(row[number]) for row in every])
        log.info(
            "rank %d of %d: goes on from the set of step %d of %d ranks%s",
            rank,
            self.comm.nranks,
            step,
            nranks,
            "; it joins, with the parameters of rank 0 and no residual" if joins else "",
        )

    def _read(self, step: int, rank: int) -> Commit:
        assert self._sets is not None
        return Commit(**decode(self._sets.read(step, rank)))

    def newest_set(self) -> Optional[int]:
        """The step of the newest set with a manifest in run_elastic's folder. Not collective."""
        steps = self._sets.complete() if self._sets is not None else []
        return steps[0] if steps else None

    # --- recovery

    def _recover(self, limits: Limits, cause: Error) -> None:
        """Go on with the ranks that are left; again if more are lost meanwhile."""
        if self.comm.status == "TAMIS_OK":
            self.comm.abort()  # else a step under way would wait
        for part in self._parts:
            part.quiesce()
        while True:
            if self.recoveries >= limits.max_recoveries:
                self._give_up(f"{self.recoveries} recoveries were made, as many as allowed", cause)
            self.recoveries += 1
            try:
                self._shrink(limits, cause)
                self._go_back()
                self._migrate()
                break
            except Error as error:
                if not lost(error):
                    raise
                log.warning("rank %d: the recovery failed: %s", self.comm.rank, error)
                cause = error
        number, self._back_at = self._commits[-1].number, None
        self._commits = [self._copy(number)]
        for comm in self._old:
            _limits.close(comm)
        self._old = []
        rank, nranks = self.comm.rank, self.comm.nranks
        log.info("goes on as rank %d of %d from step %d", rank, nranks, self.step)

    def _shrink(self, limits: Limits, cause: Error) -> None:
        old = self.comm
        if old.transport == "callback" and limits.regroup is None:
            self._give_up("over callback it must be given regroup, which says who is left", cause)
        try:
            if limits.regroup is not None:
                ranks, callbacks = limits.regroup(old)
                smaller = old.shrink(ranks, callbacks)
            else:
                smaller = old.shrink()
        except Error as error:
            if lost(error):
                raise
            self._give_up(f"the ranks that are left cannot go on: {error}", cause)
        left = [smaller.rank_before(rank) for rank in range(smaller.nranks)]
        self.gone.append([rank for rank in range(old.nranks) if rank not in left])
        self._old.append(old)
        self.comm = smaller
        launch.remember(smaller)
        if smaller.nranks < limits.min_ranks:
            self._give_up(
                f"{smaller.nranks} ranks are left, fewer than min_ranks, {limits.min_ranks}; gone:"
                f" {', '.join(map(str, self.gone[-1]))} of {old.nranks}",
                cause,
            )

    def _go_back(self) -> None:
        """To the newest commit that all ranks have. Migrated reducers are there already."""
        mine = struct.pack("<QQ", self._commits[0].number, self._commits[-1].number)
        told = [struct.unpack("<QQ", one) for one in self.comm.allgather(mine)]
        number = min(newest for _, newest in told)
        oldest = max(oldest for oldest, _ in told)
        if oldest > number:
            raise launcher.error(
                f"Rank {self.comm.rank}: no commit is held by all ranks that are left: the newest"
                f" of one is number {number}, the oldest of another {oldest}.",
                "Call commit() after the same steps on all ranks, and exchange between two.",
                "TAMIS_E_MISMATCH",
            )
        if self._back_at == number:
            return
        commit = next(commit for commit in self._commits if commit.number == number)
        self._put_values(commit)
        for part, data in zip(self._parts, commit.reducers):
            part.load(decode(data))
        self._commits, self._back_at = [commit], number

    def _migrate(self) -> None:
        for number, part in enumerate(self._parts):
            report = part.migrate(self.comm)
            log.info("rank %d: reducers[%d] has migrated: %s", self.comm.rank, number, report)
        self._check_equal(
            f"After the loss of ranks, back at step {self.step},",
            "Put all that steps change into shared, and what differs from rank to rank into own.",
        )

    def _give_up(self, why: str, cause: Error) -> NoReturn:
        step = self.newest_set()
        remedy = "Start again with the ranks that there are"
        if step is not None and self._sets is not None:
            remedy += f", from the set of step {step} in {self._sets.folder}"
        remedy += "."
        here = f"Rank {self.comm.rank} of {self.comm.nranks}, at step {self.step}"
        made = GaveUp(
            f"{here}: run_elastic gives up: {why}. The cause: {sentence(cause)}. {remedy}"
        )
        made.status, made.lost, made.remedy = cause.status, cause.lost, remedy
        raise made from cause


def run_elastic(
    train: Callable[[ElasticState], Result],
    state: ElasticState,
    *,
    max_recoveries: int = 3,
    min_ranks: int = 1,
    regroup: Optional[Regroup] = None,
    folder: Union[None, str, "os.PathLike[str]"] = None,
    save_every: int = 1,
) -> Result:
    """Call train(state), and call it again whenever ranks were lost. Returns what it returns.

        def train(state):
            while state.step < steps:
                grad[:] = gradient(w, batch(state.step, state.comm.rank, state.comm.nranks))
                state.reducers[0].start(grad); state.reducers[0].wait()
                w[:] -= lr * grad
                state.step += 1
                state.commit()

        state = tamis.ElasticState(comm, {"w": w}, reducers=[reducer])
        tamis.run_elastic(train, state, folder="sets")

    An `Error` from `train` that loses the communicator (TIMEOUT, TRANSPORT, ABORTED) makes the
    ranks that are left shrink it, go back to the newest commit() that all of them have,
    migrate the reducers, check that `shared` is equal on all, and begin `train` anew. Residuals of
    the ranks that are gone are lost.

    max_recoveries  in this process; 0: none, for launchers that start all ranks again
    min_ranks       with fewer it gives up
    regroup         over callback: called with the lost communicator, returns what Comm.shrink
                    takes: the ranks that are left, and the all-gather of their network
    folder          of sets, the same for all ranks: the newest complete one is loaded first, with
                    another number of ranks too, and commits write them. Two are kept
    save_every      commits from one set to the next

    Over MPI without ULFM, NCCL and torch.distributed the ranks that are left cannot go on in place:
    it raises, and a launcher that starts all of them again (torchrun --max-restarts) goes on from
    the folder.

    Collective: all ranks call it at the same point, with the same arguments
    Errors:     `Error` that names the rank and the cause, when it gives up. What else `train`
                raises, after abandoning the communicator so that the others notice, unless they
                get the same (MISMATCH, NONFINITE). The reducers stay, so that their state can be
                saved; then close the state
    """
    limits = Limits(max_recoveries, min_ranks, regroup)
    _limits.check(limits, save_every, state.comm, state._parts)
    try:
        state._begin(folder, save_every)
        while True:
            try:
                result = train(state)
                state.comm.allgather(b"end")  # a rank that missed the last step makes all notice
                return result
            except Error as error:
                if not lost(error):
                    raise
                log.warning("rank %d, after step %d: %s", state.comm.rank, state.step, error)
                cause = error
            state._recover(limits, cause)
    except BaseException as error:
        _limits.leave(state.comm, state.step, error)
        raise
