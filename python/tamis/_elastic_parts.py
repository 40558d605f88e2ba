# SPDX-License-Identifier: MIT
"""What an ElasticState holds: reducers of each kind behind one form, and named values."""

import logging
from typing import Any, Dict, List, Sequence

from . import launcher
from ._arrays import put, zeros, zeros_like
from ._core import Comm, Error, Local, Reducer

log = logging.getLogger("tamis")


def part_of(reducer: Any, number: int) -> Any:
    """Errors: TypeError for what is no reducer"""
    if isinstance(reducer, Reducer):
        return PlainPart(reducer)
    state = getattr(reducer, "tamis", reducer)  # of a DistributedOptimizer
    if callable(getattr(reducer, "migrate", None)) and hasattr(state, "groups"):
        return TorchPart(reducer, state)
    if isinstance(getattr(reducer, "local", None), Local):
        return LocalPart(reducer)
    raise TypeError(
        f"reducers[{number}] is a {type(reducer).__name__}; a tamis.Reducer, SparseState,"
        " DistributedOptimizer or LocalSGD can go on with other ranks"
    )


class PlainPart:
    """A tamis.Reducer."""

    def __init__(self, reducer: Reducer) -> None:
        self.object = reducer

    @property
    def comms(self) -> List[Comm]:
        return [self.object.comm]

    def shared_of(self, target: Any) -> Any:
        return target

    def may_change_ranks(self) -> None:
        """Before a run in which ranks may be lost, or may join."""

    def quiesce(self) -> None:
        """After a failure: end the step under way, if there is one."""
        try:
            self.object.wait()
        except Error:
            pass

    def _moments(self) -> Dict[str, Any]:
        update = self.object.update
        found = {}
        if update is not None and update["beta1"] > 0:
            found["first"] = zeros(self.object.residual_length)
        if update is not None and update["rule"] == "adam":
            found["second"] = zeros(self.object.residual_length)
        return found

    def save(self) -> Dict[str, Any]:
        saved: Dict[str, Any] = {"control": self.object.control(), "residual": None, "passes": 0}
        residual = zeros(self.object.residual_length)
        try:
            self.object.residual(residual)
            saved["residual"] = residual
        except Error as error:
            if error.status != "TAMIS_E_UNSUPPORTED":  # scheme dense has none
                raise
        moments = self._moments()
        if self.object.update is not None:
            saved["passes"] = self.object.moments(moments.get("first"), moments.get("second"))
        return dict(saved, **moments)

    def load(self, saved: Dict[str, Any]) -> None:
        """What save gave, on this rank and with as many ranks."""
        self.object.restore(saved["control"], saved["residual"])
        self._load_moments(saved, saved)

    def load_all(self, states: Sequence[Dict[str, Any]]) -> None:
        """What save gave on all ranks of a run with another number of them.

        Rank r takes the residuals of old ranks r, r + P', ..., so a rank that joins begins with
        none; what is pending in the result stays. All take the mean of the moments.
        """
        comm, old = self.object.comm, len(states)
        rank, nranks = comm.rank, comm.nranks
        if self.object.residual_length != self.object.layout.length:
            raise launcher.error(
                f"Rank {rank}: a reducer with ranks_per_node cannot go on with {nranks} ranks in"
                f" place of {old}.",
                "Start as many as before.",
                "TAMIS_E_UNSUPPORTED",
            )
        self._load_control(states[0]["control"])
        if states[0]["residual"] is not None:
            share = nranks / old if self.object.op == "mean" else 1.0
            self.object.restore(None, _sum(states, "residual", range(rank, old, nranks), share))
        means = {kind: _sum(states, kind, range(old), 1.0 / old) for kind in self._moments()}
        self._load_moments(means, states[0])

    def _load_control(self, control: bytes) -> None:
        """Step number and thresholds, which may not fit another number of ranks."""
        try:
            self.object.restore(control, None)
        except Error as error:
            if error.status != "TAMIS_E_FORMAT":
                raise
            log.warning("thresholds and the step number of a reducer begin anew: %s", error)

    def _load_moments(self, moments: Dict[str, Any], saved: Dict[str, Any]) -> None:
        if self.object.update is not None:
            self.object.restore_moments(
                moments.get("first"), moments.get("second"), saved["passes"]
            )

    def common(self) -> None:
        """What a newcomer gets beside what Reducer.migrate gives it."""

    def adopt(self, common: None) -> None:
        """What common gave on another rank."""

    def migrate(self, other: Comm, joins: bool) -> Dict[str, Any]:
        """@param joins  this rank has joined"""
        old = self.object
        self.object, report = old.migrate(other)
        old.close()
        return report


def _sum(states: Sequence[Dict[str, Any]], kind: str, ranks: Sequence[int], factor: float) -> Any:
    """In the order of the ranks, so that every process gets the same bits."""
    sum_ = zeros_like(states[0][kind])
    for rank in ranks:
        sum_ += states[rank][kind]
    sum_ *= factor
    return sum_


class TorchPart:
    """A SparseState of tamis.torch, or a DistributedOptimizer above one."""

    def __init__(self, object_: Any, state: Any) -> None:
        self.object, self.state = object_, state

    @property
    def comms(self) -> List[Comm]:
        return [group.comm for group in self.state.groups]

    def shared_of(self, target: Any) -> Any:
        """What is equal on all ranks of a row of `shared`."""
        own = any(target is optimizer for optimizer in self.state.local_optimizers())
        return Groups(target) if own else target

    def may_change_ranks(self) -> None:
        self.state.may_change_ranks()

    def quiesce(self) -> None:
        self.state.quiesce()

    def save(self) -> Dict[str, Any]:
        saved: Dict[str, Any] = self.state.state_dict()
        return saved

    def load(self, saved: Dict[str, Any]) -> None:
        self.state.load_state_dict(saved)

    def load_all(self, states: List[Dict[str, Any]]) -> None:
        self.state.load_state_dict(states)

    def common(self) -> Dict[str, Any]:
        """The density asked for, which may have been set since, and what optimizers keep that step by
        each rank's own gradient."""
        saved = [one.state_dict() for one in self.state.local_optimizers()]
        return {"density": self.state.density, "optimizers": saved}

    def adopt(self, common: Dict[str, Any]) -> None:
        self.state.density = common["density"]  # migrate brings those of its reducers
        for one, saved in zip(self.state.local_optimizers(), common["optimizers"]):
            one.load_state_dict(saved)

    def migrate(self, other: Comm, joins: bool) -> Dict[str, Any]:
        report: Dict[str, Any] = self.object.migrate(other)
        return report


class LocalPart:
    """A LocalSGD of tamis.torch. A commit is made between rounds, when all ranks have the same parameters; the
    optimizer inside has a state of its own on each rank, which is saved with the rest."""

    def __init__(self, object_: Any) -> None:
        self.object = object_

    @property
    def comms(self) -> List[Comm]:
        return [self.object.comm]

    def shared_of(self, target: Any) -> Any:
        own = target is self.object or target is self.object.optimizer
        return Groups(self.object.optimizer) if own else target

    def may_change_ranks(self) -> None:
        """A LocalSGD is of a bare model."""

    def quiesce(self) -> None:
        try:
            self.object.reducer.wait()
        except Error:
            pass

    def save(self) -> Dict[str, Any]:
        saved: Dict[str, Any] = self.object.state_dict()
        return saved

    def load(self, saved: Dict[str, Any]) -> None:
        self.object.load_state_dict(saved)

    def load_all(self, states: Sequence[Dict[str, Any]]) -> None:
        """Residuals as of a tamis.Reducer; the state of the optimizer is that of one old rank."""
        local = [state["tamis_local"] for state in states]
        rows = [
            dict(control=bytes(bytearray(one["control"].tolist())), residual=one["residual"], passes=0)
            for one in local
        ]
        PlainPart(self.object.reducer).load_all(rows)
        own = dict(states[self.object.comm.rank % len(states)])
        own.pop("tamis_local")
        whole = bytes(bytearray(local[0]["local"].tolist()))
        self.object.take_common({"local": whole, "optimizer": own})

    def common(self) -> Dict[str, Any]:
        common: Dict[str, Any] = self.object.common()
        return common

    def adopt(self, common: Dict[str, Any]) -> None:
        self.object.take_common(common)

    def migrate(self, other: Comm, joins: bool) -> Dict[str, Any]:
        report: Dict[str, Any] = self.object.migrate(other, joins)
        return report


class Groups:
    """What is equal in an optimizer that has a state of its own on each rank, which the reducer
    saves with its own: rates and the like."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> Dict[str, Any]:
        return {"param_groups": self._optimizer.state_dict()["param_groups"]}

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        self._optimizer.load_state_dict(dict(self._optimizer.state_dict(), **saved))


# --- named values


def take(target: Any) -> Any:
    """The value of an array, a tensor, or an object with state_dict()."""
    return target.state_dict() if hasattr(target, "state_dict") else target


def give(target: Any, value: Any, what: str) -> None:
    if hasattr(target, "load_state_dict"):
        target.load_state_dict(value)
    else:
        put(target, value, what)


def check_target(target: Any, what: str) -> None:
    """Errors: TypeError for what could not be put back"""
    both = hasattr(target, "state_dict") and hasattr(target, "load_state_dict")
    if not both and not (hasattr(target, "shape") and hasattr(target, "__dlpack__")):
        raise TypeError(
            f"{what} is a {type(target).__name__}: give an array of numpy, a tensor of torch, or an"
            " object with state_dict() and load_state_dict()"
        )
