# SPDX-License-Identifier: MIT
"""Processes that join an elastic run. After a commit all ranks look who waits:

    rank 0     commit 7   grow -> reducers migrate -> what is shared -----+   train begins anew
    rank 1     commit 7   grow -> reducers migrate                        |   train begins anew
    newcomer              join -> reducers migrate <- of commit 7 --------+   train begins

What ranks have in common is that of the commit, so nobody goes back. If a rank dies meanwhile, those
that are left recover, and whoever still lacks it gets it then.
"""

import logging
import os
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Union

from . import _vendor
from ._core import Comm, Error
from ._elastic_parts import give
from ._limits import gave_up, lost, sentence
from ._pack import decode, encode

if TYPE_CHECKING:
    from .elastic import ElasticState

log = logging.getLogger("tamis")


class Joined(BaseException):
    """Ends train where ranks have joined: it begins anew. No `except Exception` takes it."""


def address_of(grow: Union[bool, str]) -> Optional[str]:
    """None: TAMIS_RENDEZVOUS."""
    return grow if isinstance(grow, str) else None


def check(grow: Union[bool, str], join: bool, comm: Comm) -> None:
    """Errors: ValueError"""
    if join and not grow:
        raise ValueError("join=True, but grow does not say to which job: pass its host:port")
    if join and comm.nranks > 1:
        raise ValueError(
            f"join=True in one of {comm.nranks} ranks: each process joins by itself, with a"
            " communicator of its own (start it alone, or with WORLD_SIZE=1)"
        )
    if grow and not join and comm.transport != "ucx":
        raise ValueError(
            f"grow={grow!r} over {comm.transport}: processes can join over ucx alone"
            " (transport='ucx')"
        )


def take_in(state: "ElasticState", address: Optional[str]) -> bool:
    """After a commit. Collective. @return whether anybody has joined"""
    larger = state.comm.grow(address)
    if larger is not None:
        _go_on(state, larger)
    return larger is not None


def join(state: "ElasticState", address: Optional[str]) -> None:
    """In place of the first commit, and of what a folder holds."""
    _vendor.load_ucx()
    try:
        larger = Comm.join_ucx(address)
    except Error as error:  # what it has begun alone is no job
        remedy = "Start the job, or give the address at which its ranks listen."
        raise gave_up(f"{sentence(error)}. {remedy}", error, remedy) from error
    _go_on(state, larger)


def _go_on(state: "ElasticState", larger: Comm) -> None:
    old = state.has_commit
    state.replace_comm(larger)
    state.joins += larger.joined
    state.fresh = larger.joined
    try:
        _compare(state)
        state.migrate_all()
        hand_over(state)
        state.begin_anew("Where ranks have joined, at")
    except Error as error:
        if old and not lost(error):
            _leave_newcomers(state, error)
        raise
    log.info("rank %d of %d: %d have joined", larger.rank, larger.nranks, larger.joined)


def _leave_newcomers(state: "ElasticState", error: Error) -> None:
    """They do not fit, as all ranks have found: those from before go on. Raises `Error`, lost."""
    state.only = list(range(state.comm.nranks - state.comm.joined))
    log.warning("rank %d: newcomers are not taken in: %s", state.comm.rank, sentence(error))
    state.comm.abort()
    state.comm.allgather(b"")


def _lacking(state: "ElasticState") -> List[bool]:
    """Which ranks have no commit of the job yet. Collective."""
    return [one == b"\0" for one in state.comm.allgather(bytes([state.has_commit]))]


def _compare(state: "ElasticState") -> None:
    """A newcomer with other rows or reducers leaves before anything has changed. Collective.

    Errors: ValueError, there
    """
    lacking, own = _lacking(state), state.describe()
    root = lacking.index(False)
    job = decode(state.comm.broadcast(encode(own, "what is shared"), root))
    for what in own if lacking[state.comm.rank] else ():
        if own[what] != job[what]:
            raise ValueError(f"this process cannot join: {what} is {own[what]} here, {job[what]} there")


def hand_over(state: "ElasticState") -> None:
    """What is shared, from the first rank that has it to those that lack it. Collective."""
    lacking = _lacking(state)
    if True not in lacking:
        return
    root = lacking.index(False)
    sent = encode(common_of(state), "what is shared") if state.comm.rank == root else b""
    common = decode(state.comm.broadcast(sent, root))
    if lacking[state.comm.rank]:
        state.grows = common["address"]  # the text that the others compare
        state.adopt(common)


def common_of(state: "ElasticState") -> Dict[str, Any]:
    number, step, shared = state.last_shared()
    parts: List[Any] = [part.common() for part in state.parts]
    address = address_of(state.grows) or os.environ.get("TAMIS_RENDEZVOUS", "")
    return {"number": number, "step": step, "shared": shared, "parts": parts, "address": address}


def put_shared(targets: Dict[str, Any], saved: Dict[str, bytes]) -> None:
    """Errors: ValueError"""
    if set(targets) != set(saved):
        raise ValueError(f"shared is {sorted(targets)} here, but {sorted(saved)} in the job")
    for name, target in targets.items():
        give(target, decode(saved[name]), repr(name))
