# SPDX-License-Identifier: MIT
"""Training that goes on when ranks are lost: in place with those that are left, or started again
by a launcher (torchrun) from the newest complete set of states. More may join (_grow.py).

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
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence
from typing import Tuple, TypeVar, Union

from . import _core, _grow, _limits, _recovery, launch, launcher
from ._core import Comm, Error
from ._elastic_parts import check_target, give, part_of, take
from ._limits import Limits, Regroup, lost, sentence
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
    reducers  tamis.Reducer, and of tamis.torch SparseState, DistributedOptimizer (the optimizer
              inside is a row of `shared`) and LocalSGD, whose commits are made after a round, with
              the bare optimizer nowhere else; in the same order on all ranks. The state that
              attach makes of a DistributedDataParallel, too: see there
    step      the number of finished steps; the caller counts it

    `train` reads comm, step and reducers[i] anew whenever it is called: after a recovery they are
    others, and so they are when ranks have joined. `recoveries` counts those of this process;
    `gone` lists, for each, the ranks that were lost, as numbered before it; `joins` counts the
    ranks that have joined since this one came, itself included.

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
        self.recoveries = self.joins = 0
        self.gone: List[List[int]] = []
        self._shared, self._own = dict(shared), dict(own or {})
        for name, target in [*self._shared.items(), *self._own.items()]:
            check_target(target, repr(name))
        self.parts = [part_of(one, number) for number, one in enumerate(reducers)]
        for part in self.parts:
            self._shared = {name: part.shared_of(one) for name, one in self._shared.items()}
        self._commits: List[Commit] = []
        self._old: List[Comm] = []  # to be closed
        self._sets: Optional[Sets] = None
        self._save_every = 1
        self._back_at: Optional[int] = None  # all are at this commit in a recovery under way
        self.grows: Union[bool, str] = False
        self.fresh = 0  # of the ranks, the last, that have joined since the last commit
        self.only: Optional[List[int]] = None  # those that go on where newcomers do not fit

    @property
    def reducers(self) -> List[Any]:
        return [part.object for part in self.parts]

    def commit(self) -> None:
        """Copy the state: what a recovery goes back to. Between steps, on all ranks after the same
        ones. Every Nth writes a set, if run_elastic was given a folder. With grow, who waits joins
        here, and `train` begins anew.

        Cost:   a copy of everything in host memory, of which two are held, and three while it
                is made; with a set also a write and a flush, and an exchange of some bytes, as
                with grow
        Errors: `Error` of that exchange; the copy is then made. A set that cannot be written is
                logged, and the run goes on
        """
        number = self._commits[-1].number + 1 if self._commits else 0
        self._commits = [*self._commits[-1:], self._copy(number)]
        self.fresh = 0
        if self._sets is not None and number % self._save_every == 0:
            self._sets.save(self.comm, self.step, encode(self._commits[-1]._asdict(), "the state"))
        if self.grows and _grow.take_in(self, _grow.address_of(self.grows)):
            raise _grow.Joined

    def close(self) -> None:
        """Close reducers and communicator. Over local, ranks that are left wait for one that died
        without this, until the deadline."""
        for part in self.parts:
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
            [encode(part.save(), f"reducers[{i}]") for i, part in enumerate(self.parts)],
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
        if len(commit.reducers) != len(self.parts):
            raise ValueError(
                f"there are {len(self.parts)} reducers, but {len(commit.reducers)} were saved"
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

    def begin(self, folder: Union[None, str, "os.PathLike[str]"], save_every: int) -> None:
        """Load the newest set, if there is one, and make the first commit. Collective."""
        self.open_sets(folder, save_every)
        found = self._sets.choose(self.comm) if self._sets is not None else None
        if found is not None:
            self._load(found.step, found.nranks)
        self._check_equal(
            "Before the first step",
            "Begin with equal values (tamis.torch.broadcast_parameters), and count the same steps;"
            " what differs from rank to rank belongs into own.",
        )
        self._commits = [self._copy(0)]

    def open_sets(self, folder: Union[None, str, "os.PathLike[str]"], save_every: int) -> None:
        self._sets = Sets(os.fspath(folder)) if folder is not None else None
        self._save_every = save_every

    def _load(self, step: int, nranks: int) -> None:
        rank = self.comm.rank
        joins = rank >= nranks
        mine = self._read(step, 0 if joins else rank)
        self._put_values(mine, own=not joins)
        if nranks == self.comm.nranks:
            for part, data in zip(self.parts, mine.reducers):
                part.load(decode(data))
        else:
            every = [self._read(step, old).reducers for old in range(nranks)]
            for number, part in enumerate(self.parts):
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

    # --- other communicators

    def migrate_all(self) -> None:
        for number, part in enumerate(self.parts):
            report = part.migrate(self.comm, not self.has_commit)
            log.info("rank %d: reducers[%d] has migrated: %s", self.comm.rank, number, report)

    def begin_anew(self, when: str) -> None:
        """What is shared is equal on all ranks, from which a new run of `train` goes on."""
        self._check_equal(
            f"{when} step {self.step},",
            "Put all that steps change into shared, and what differs from rank to rank into own.",
        )
        number, self._back_at = self._commits[-1].number, None
        self._commits = [self._copy(number)]
        for comm in self._old:
            _limits.close(comm)
        self._old = []

    @property
    def has_commit(self) -> bool:
        """False: of a newcomer that has not got what is shared yet."""
        return bool(self._commits)

    def replace_comm(self, other: Comm) -> None:
        """All are at the last commit, if they have one."""
        self._old.append(self.comm)
        self.comm = other
        launch.remember(other)
        self._back_at = self._commits[-1].number if self._commits else None

    def describe(self) -> Dict[str, Any]:
        """What must be the same on a rank that joins."""
        rows = {
            name: [str(one.dtype), list(one.shape)] if hasattr(one, "dtype") else type(one).__name__
            for name, one in self._shared.items()
        }
        return {
            "shared": rows,
            "reducers": [type(part.object).__name__ for part in self.parts],
            "whether there is a folder": self._sets is not None,
            "save_every": self._save_every,
        }

    def last_shared(self) -> Tuple[int, int, Dict[str, bytes]]:
        last = self._commits[-1]
        return last.number, last.step, last.shared

    def adopt(self, common: Dict[str, Any]) -> None:
        """What _grow.common_of gave. Errors: ValueError"""
        _grow.put_shared(self._shared, common["shared"])
        self.step = common["step"]
        for part, one in zip(self.parts, common["parts"]):
            part.adopt(one)
        self._commits = [self._copy(common["number"])]
        self._back_at = common["number"]


def run_elastic(
    train: Callable[[ElasticState], Result],
    state: ElasticState,
    *,
    max_recoveries: int = 3,
    min_ranks: int = 1,
    regroup: Optional[Regroup] = None,
    folder: Union[None, str, "os.PathLike[str]"] = None,
    save_every: int = 1,
    grow: Union[bool, str] = False,
    join: bool = False,
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
    grow            over ucx: processes that wait at this host:port (True:
                    TAMIS_RENDEZVOUS) join after a commit, the same on all ranks. The host is one of
                    the job's; 0.0.0.0 stands for all. Where `train` catches BaseException, it must raise it again
    join            this process comes to a job that runs, at `grow`. It has begun alone: its
                    communicator has one rank, its reducers the options of the others. It gets
                    shared, and its optimizers' own moments from the job's; its residuals are zero

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
    _limits.check(limits, save_every, state.comm, state.parts)
    _grow.check(grow, join, state.comm)
    state.grows = grow
    for part in state.parts if max_recoveries or grow else ():
        part.may_change_ranks()
    try:
        if not join:
            state.begin(folder, save_every)
        while True:
            try:
                if join:
                    join = False
                    state.open_sets(folder, save_every)
                    _grow.join(state, _grow.address_of(grow))
                result = train(state)
                state.comm.allgather(b"end")  # a rank that missed the last step makes all notice
                return result
            except _grow.Joined:
                continue
            except Error as error:
                if not lost(error):
                    raise
                log.warning("rank %d, after step %d: %s", state.comm.rank, state.step, error)
                cause = error
            _recovery.recover(state, limits, cause)
    except BaseException as error:
        _limits.leave(state.comm, state.step, error)
        raise
    finally:
        state.grows = False
