# SPDX-License-Identifier: MIT
"""How an elastic run goes on with the ranks that are left."""

import logging
import struct
from typing import TYPE_CHECKING, NoReturn

from . import _grow, launch, launcher
from ._core import Error
from ._limits import Limits, gave_up, lost, sentence
from ._pack import decode

if TYPE_CHECKING:
    from .elastic import ElasticState

log = logging.getLogger("tamis")

_NONE = 2**64 - 1  # no commit


def recover(state: "ElasticState", limits: Limits, cause: Error) -> None:
    """Go on with the ranks that are left; again if more are lost meanwhile."""
    if state.comm.status == "TAMIS_OK":
        state.comm.abort()  # else a step under way would wait
    for part in state.parts:
        part.quiesce()
    while True:
        if state.recoveries >= limits.max_recoveries:
            _give_up(state, f"{state.recoveries} recoveries were made, as many as allowed", cause)
        state.recoveries += 1
        try:
            _shrink(state, limits, cause)
            _go_back(state)
            state.migrate_all()
            _grow.hand_over(state)
            state.begin_anew("After the loss of ranks, back at")
            break
        except Error as error:
            if not lost(error):
                raise
            log.warning("rank %d: the recovery failed: %s", state.comm.rank, error)
            cause = error
    rank, nranks = state.comm.rank, state.comm.nranks
    log.info("goes on as rank %d of %d from step %d", rank, nranks, state.step)


def _shrink(state: "ElasticState", limits: Limits, cause: Error) -> None:
    old = state.comm
    if old.transport == "callback" and limits.regroup is None:
        _give_up(state, "over callback it must be given regroup, which says who is left", cause)
    try:
        if limits.regroup is not None:
            ranks, callbacks = limits.regroup(old)
            smaller = old.shrink(ranks, callbacks)
        else:
            only, state.only = state.only, None
            smaller = old.shrink(only)
    except Error as error:
        if "went on without this rank" in str(error):
            _give_up(state, "it was left behind", error)
        if lost(error):
            raise
        _give_up(state, f"the ranks that are left cannot go on: {error}", cause)
    left = [smaller.rank_before(rank) for rank in range(smaller.nranks)]
    state.gone.append([rank for rank in range(old.nranks) if rank not in left])
    if min(state.gone[-1], default=0) >= old.nranks - state.fresh:
        state.recoveries -= 1  # newcomers alone, before they have made a step: no loss of the job
    state._old.append(old)
    state.comm = smaller
    launch.remember(smaller)
    if smaller.nranks < limits.min_ranks:
        _give_up(
            state,
            f"{smaller.nranks} ranks are left, fewer than min_ranks, {limits.min_ranks}; gone:"
            f" {', '.join(map(str, state.gone[-1]))} of {old.nranks}",
            cause,
        )


def _go_back(state: "ElasticState") -> None:
    """To the newest commit that all ranks have. Migrated reducers are there already."""
    mine = struct.pack("<QQ", 0, _NONE)
    if state._commits:
        mine = struct.pack("<QQ", state._commits[0].number, state._commits[-1].number)
    told = [struct.unpack("<QQ", one) for one in state.comm.allgather(mine)]
    number = min(newest for _, newest in told)
    oldest = max(oldest for oldest, _ in told)
    if oldest > number:
        raise launcher.error(
            f"Rank {state.comm.rank}: no commit is held by all ranks that are left: the newest"
            f" of one is number {number}, the oldest of another {oldest}.",
            "Call commit() after the same steps on all ranks, and exchange between two.",
            "TAMIS_E_MISMATCH",
        )
    if number == _NONE:
        raise launcher.error(
            f"Rank {state.comm.rank}: the ranks that are left have all joined, and got no state.",
            "Start again.",
            "TAMIS_E_STATE",
        )
    if state._back_at == number or not state._commits:
        return
    commit = next(commit for commit in state._commits if commit.number == number)
    state._put_values(commit)
    for part, data in zip(state.parts, commit.reducers):
        part.load(decode(data))
    state._commits, state._back_at = [commit], number


def _give_up(state: "ElasticState", why: str, cause: Error) -> NoReturn:
    step = state.newest_set()
    remedy = "Start again with the ranks that there are"
    if step is not None and state._sets is not None:
        remedy += f", from the set of step {step} in {state._sets.folder}"
    remedy += "."
    here = f"Rank {state.comm.rank} of {state.comm.nranks}, at step {state.step}"
    words = f"{here}: run_elastic gives up: {why}. The cause: {sentence(cause)}. {remedy}"
    raise gave_up(words, cause, remedy) from cause
