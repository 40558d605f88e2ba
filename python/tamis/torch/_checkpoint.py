# SPDX-License-Identifier: MIT
"""What a checkpoint holds of a SparseState: residuals and moments by name, the rest as bytes."""

import ctypes
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

import torch

from ._group import Group

if TYPE_CHECKING:
    from ._state import SparseState

FORMAT = 1


def _belongs(state: "SparseState") -> Dict[str, Any]:
    """What must be the same when a saved state is loaded."""
    return {
        "format": FORMAT,
        "rank": state.comm.rank,
        "nranks": state.comm.nranks,
        "scheme": state.scheme,
        "op": state.op,
        "warmup": state.warmup,
        "update": state.update,
    }


def _shapes(state: "SparseState") -> Dict[str, List[Any]]:
    return {
        name: [_dtype(group), *parameter.shape]
        for group in state.groups
        for name, parameter in zip(group.names, group.parameters)
    }


def _dtype(group: Group) -> str:
    return str(group.dtype).split(".")[1]


def save(state: "SparseState") -> Dict[str, Any]:
    vectors: Dict[str, Dict[str, torch.Tensor]] = {"residual": {}}
    passes: Dict[str, int] = {}
    control: Dict[str, torch.Tensor] = {}
    for group in state.groups:
        wholes, passes[_dtype(group)] = group.vectors()
        for kind, whole in wholes.items():
            vectors.setdefault(kind, {}).update(group.pieces(whole))
        # A tensor: torch.load(weights_only=True) takes it in all versions, unlike bytes.
        data = bytearray(group.sparse.control())
        control[_dtype(group)] = torch.frombuffer(data, dtype=torch.uint8)
    return dict(
        _belongs(state),
        density=state.density,
        steps=state.steps,
        parameters=_shapes(state),
        control=control,
        passes=passes,
        **vectors,
    )


def load(
    state: "SparseState",
    given: Union[Dict[str, Any], Sequence[Dict[str, Any]]],
    strict: bool,
) -> List[str]:
    saved: Any = given
    if isinstance(given, (list, tuple)):
        for one in given:
            _check_format(one)
        saved = _regroup(given, state.comm.rank, state.comm.nranks)
    _check_format(saved)
    if strict:
        _compare(state, saved)
    elif (saved.get("update") is None) != (state.update is None):
        raise ValueError(
            "a residual of gradients cannot serve updates: the state was saved with update"
            f" {saved.get('update')}, here it is {state.update}"
        )
    taken: List[str] = []
    _restore(state, saved, strict, taken)
    if strict:
        state.steps = saved["steps"]
        state.density = saved["density"]
        state._follow_density()
        state._choose()
    return taken


def _check_format(saved: Any) -> None:
    if not isinstance(saved, dict) or "residual" not in saved or "parameters" not in saved:
        raise ValueError("this is not a result of SparseState.state_dict()")
    if saved.get("format") != FORMAT:
        raise ValueError(f"format {saved.get('format')} of a saved state; this tamis has {FORMAT}")


def _regroup(states: Sequence[Dict[str, Any]], rank: int, nranks: int) -> Dict[str, Any]:
    """The state with which rank `rank` of `nranks` continues the run that saved `states`.

        old ranks     0 1 2 3 4
        new rank 0    0 + 2 + 4    residuals; with op "mean" times new / old, for a rank's part in
        new rank 1    1 + 3        the mean is 1 / ranks
        every one     mean of all moments
    """
    old = len(states)
    for number, one in enumerate(states):
        if (one.get("rank"), one.get("nranks")) != (number, old):
            raise ValueError(
                f"number {number} of {old} saved states is of rank {one.get('rank')} of"
                f" {one.get('nranks')}: give those of all ranks, in their order"
            )
    if old == nranks:
        return states[rank]
    share = nranks / old if states[0]["op"] == "mean" else 1.0
    merged = dict(states[0], rank=rank, nranks=nranks, control=None)
    merged["residual"] = _sums(states, "residual", range(rank, old, nranks), share)
    for kind in ("first", "second"):
        if kind in merged:
            merged[kind] = _sums(states, kind, range(old), 1.0 / old)
    return merged


def _sums(
    states: Sequence[Dict[str, Any]], kind: str, ranks: Sequence[int], factor: float
) -> Dict[str, torch.Tensor]:
    """Sums in the order of the ranks, so that every process gets the same bits."""
    sums = {name: torch.zeros_like(tensor) for name, tensor in states[0][kind].items()}
    for rank in ranks:
        for name, sum_ in sums.items():
            sum_ += states[rank][kind][name]
    return {name: sum_.mul_(factor) for name, sum_ in sums.items()}


def _compare(state: "SparseState", saved: Dict[str, Any]) -> None:
    here = f"rank {state.comm.rank}: the saved state does not fit"
    for key, value in _belongs(state).items():
        if saved.get(key) != value:
            raise ValueError(f"{here}: {key} is {value}, {saved.get(key)} was saved")
    mine, theirs = _shapes(state), saved["parameters"]
    for name in mine:
        if name not in theirs:
            raise ValueError(f"{here}: it has no parameter {name!r}")
        if list(theirs[name]) != mine[name]:
            raise ValueError(f"{here}: {name!r} is {mine[name]}, {list(theirs[name])} was saved")
    for name in theirs:
        if name not in mine:
            raise ValueError(f"{here}: {name!r} was saved, but is no parameter of this state")
    if list(mine) != list(theirs):
        raise ValueError(f"{here}: its parameters are in another order")


def _restore(state: "SparseState", saved: Dict[str, Any], strict: bool, taken: List[str]) -> None:
    """Restore all groups or none: when a later one refuses, undo those already changed."""
    undo = []
    try:
        for group in state.groups:
            before = (group.sparse.control(), *group.vectors())
            wholes = {kind: whole.clone() for kind, whole in before[1].items()}
            for kind, whole in wholes.items():
                names = _fill(group, kind, whole, saved.get(kind, {}), strict)
                taken.extend(names if kind == "residual" else [])
            control: Optional[bytes] = None
            if strict and saved["control"] is not None:
                control = _bytes(saved["control"][_dtype(group)])
            undo.append((group, before))
            if strict and control is None and saved["density"] != state.density:
                group.sparse.set_density(saved["density"])
            group.restore(control, wholes, saved.get("passes", {}).get(_dtype(group), before[2]))
    except BaseException:
        for group, before in undo:
            group.restore(*before)
        raise


def _fill(
    group: Group, kind: str, whole: torch.Tensor, saved: Dict[str, torch.Tensor], strict: bool
) -> List[str]:
    """Names of the parameters for which something was saved."""
    taken = []
    for name, piece in group.pieces(whole).items():
        source = saved.get(name)
        if source is not None and source.shape == piece.shape:
            piece.copy_(source)
            taken.append(name)
        elif strict:
            raise ValueError(f"the {kind} of {name!r} is missing or has another shape")
    return taken


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
