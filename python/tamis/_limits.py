# SPDX-License-Identifier: MIT
"""How far an elastic run may go, and how it ends."""

import logging
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

from ._core import Comm, Error

log = logging.getLogger("tamis")

AllGather = Callable[[memoryview, memoryview], None]
Regroup = Callable[[Comm], Tuple[Sequence[int], AllGather]]


class GaveUp(Error):
    """Ends a run: the ranks that are left do not go on."""


def gave_up(sentence_: str, cause: Error, remedy: str = "") -> GaveUp:
    made = GaveUp(sentence_)
    made.status, made.lost, made.remedy = cause.status, cause.lost, remedy or cause.remedy
    return made


class Limits(NamedTuple):
    max_recoveries: int
    min_ranks: int
    regroup: Optional[Regroup]


def lost(error: BaseException) -> bool:
    """Whether ranks that are left can go on after it."""
    statuses = ("TAMIS_E_TIMEOUT", "TAMIS_E_TRANSPORT", "TAMIS_E_ABORTED")
    if not isinstance(error, Error) or isinstance(error, GaveUp):
        return False
    return error.lost == "comm" and error.status in statuses


def reaches_all(error: BaseException) -> bool:
    """Whether all ranks get it, each by itself: none needs to abort the communicator, which would
    hide the cause from those that are still on the way to it."""
    statuses = ("TAMIS_E_MISMATCH", "TAMIS_E_NONFINITE")
    return isinstance(error, Error) and error.status in statuses


def sentence(error: Error) -> str:
    """What an error says without its remedy."""
    return str(error).replace(error.remedy, "").strip(". ")


def check(limits: Limits, save_every: int, comm: Comm, parts: Sequence[Any]) -> None:
    """Errors: ValueError"""
    rows = (
        ("max_recoveries", limits.max_recoveries, 0),
        ("min_ranks", limits.min_ranks, 1),
        ("save_every", save_every, 1),
    )
    for name, value, least in rows:
        if value < least:
            raise ValueError(f"{name} is {value}, not a number from {least} on")
    if comm.transport == "nccl":
        raise ValueError(
            "an ElasticState over NCCL: give it a communicator of host memory"
            " (tamis.torch.carrier()), and max_recoveries=0"
        )
    elsewhere = [number for number, part in enumerate(parts) if part.comms != [comm]]
    if elsewhere and limits.max_recoveries > 0:
        raise ValueError(
            f"reducers[{elsewhere[0]}] is over another communicator than the state, or over"
            " several: it cannot migrate; give max_recoveries=0 and let a launcher start all"
            " ranks again"
        )
    if comm.nranks < limits.min_ranks:
        raise ValueError(f"min_ranks is {limits.min_ranks}, but there are {comm.nranks} ranks")


def leave(comm: Comm, step: int, error: BaseException) -> None:
    """The others must not wait for this rank longer than they have to; but of what all of them get
    they must hear, and not go on without it."""
    log.error("rank %d of %d leaves at step %d: %r", comm.rank, comm.nranks, step, error)
    if reaches_all(error):
        return
    try:
        comm.abort()
    except Error as closed:
        log.debug("rank %d: %s", comm.rank, closed)


def close(comm: Comm) -> None:
    """A reducer that train made itself may still use it; then it ends with that."""
    try:
        comm.close()
    except Error as error:
        log.debug("%s", error)
