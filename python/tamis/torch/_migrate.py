# SPDX-License-Identifier: MIT
"""A SparseState goes on with the ranks that are left."""

from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

from .. import _core
from ._streams import on
from ._wrapped import wrapped_of

if TYPE_CHECKING:
    from ._state import SparseState


def migrate(
    state: "SparseState", smaller: Union[_core.Comm, Sequence[_core.Comm]]
) -> Dict[str, Any]:
    comms = [smaller] if isinstance(smaller, _core.Comm) else list(smaller)
    _check(state, comms)
    state.quiesce()
    with on(state.device):
        reports = [group.migrate(comm) for group, comm in zip(state.groups, comms)]
    made = {group: report["steps"] for group, report in zip(state.groups, reports)}
    for exchange in state.exchanges:
        now = [made[group] for group in exchange.groups]
        if min(now) != max(now):
            raise RuntimeError(
                f"rank {state.comm.rank}: the exchanges of {len(now)} dtypes stopped at steps {now}:"
                " begin again from a checkpoint"
            )
    _rename(state, comms)
    for exchange in state.exchanges:
        exchange.steps -= min([group.uncount(made[group]) for group in exchange.groups])
    state._choose()
    _forget_step(state)
    if state.wrapped is not None:
        state.wrapped.begin_anew(state)
    return {
        "step": state.steps,
        "gone": reports[0]["gone"],
        "kept_square": sum(report["kept_square"] for report in reports),
        "lost_square": sum(report["lost_square"] for report in reports),
    }


def _check(state: "SparseState", comms: List[_core.Comm]) -> None:
    here = f"rank {state.comm.rank}: SparseState.migrate"
    if state._closed:
        raise RuntimeError(f"{here}: this state was closed")
    wrapped = wrapped_of(state, f"{here}: ")
    if wrapped is not None:
        wrapped.check(f"{here}: ")
    if len(comms) != len(state.groups):
        raise ValueError(
            f"{here}: {len(state.groups)} reducers need a communicator each, but {len(comms)} came"
        )


def _rename(state: "SparseState", comms: List[_core.Comm]) -> None:
    """What belonged to the old communicators: their own ones are closed, places are void."""
    old, state._own_comms = state._own_comms, comms if state._own_comms else []
    state.comm = comms[0]
    state.error = None
    state._checked = -1  # a newcomer has not checked its parameters yet: all do, once more
    state.forget_places()
    for exchange in state.exchanges:
        exchange.clear()
    with on(state.device):
        state.limits.begin(comms[0])
    for comm in old:
        comm.close()


def _forget_step(state: "SparseState") -> None:
    """What the step that failed has left: an error on its way to backward(), and gradients, to
    which the next backward pass would add."""
    state._telling = False
    state._futures.clear()
    for exchange in state.exchanges:
        exchange.may_discard = False
    for stepper in state.steppers:
        stepper.forget_step()
    for group in state.groups:
        for parameter in group.parameters:
            parameter.grad = None
