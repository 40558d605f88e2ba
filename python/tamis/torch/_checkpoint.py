# SPDX-License-Identifier: MIT
"""What a checkpoint holds of a SparseState: residuals by name, and the rest as bytes."""

import ctypes
from typing import TYPE_CHECKING, Any, Dict, List

import torch

from ._group import Group

if TYPE_CHECKING:
    from ._state import SparseState

FORMAT = 1


def _belongs(state: "SparseState") -> Dict[str, Any]:
    """What must be the same where it is taken back."""
    return {
        "format": FORMAT,
        "rank": state.comm.rank,
        "nranks": state.comm.nranks,
        "scheme": state.scheme,
        "average": state.average,
        "warmup": state.warmup,
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
    residual: Dict[str, torch.Tensor] = {}
    control: Dict[str, torch.Tensor] = {}
    for group in state.groups:
        if state.scheme != "dense":
            residual.update(group.pieces(group.residual()))
        # A tensor, which torch.load(weights_only=True) takes in all versions; bytes it does not.
        data = bytearray(group.sparse.control())
        control[_dtype(group)] = torch.frombuffer(data, dtype=torch.uint8)
    return dict(
        _belongs(state),
        density=state.density,
        steps=state.steps,
        parameters=_shapes(state),
        residual=residual,
        control=control,
    )


def load(state: "SparseState", saved: Dict[str, Any], strict: bool) -> List[str]:
    if not isinstance(saved, dict) or "residual" not in saved or "parameters" not in saved:
        raise ValueError("this is not what SparseState.state_dict() gave")
    if saved.get("format") != FORMAT:
        raise ValueError(f"format {saved.get('format')} of a saved state; this tamis has {FORMAT}")
    if strict:
        _compare(state, saved)
    taken: List[str] = []
    _restore(state, saved, strict, taken)
    if strict:
        state.steps = saved["steps"]
        state.density = saved["density"]
        state._choose()
    return taken


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
        raise ValueError(f"{here}: its parameters come in another order")


def _restore(state: "SparseState", saved: Dict[str, Any], strict: bool, taken: List[str]) -> None:
    """All groups or none: those that were changed are put back when a later one refuses."""
    undo = []
    try:
        for group in state.groups:
            before = group.sparse.control(), None
            residual = None
            if state.scheme != "dense":
                residual = group.residual()
                before = before[0], residual.clone()
                _fill(group, residual, saved["residual"], strict, taken)
            control = _bytes(saved["control"][_dtype(group)]) if strict else None
            group.sparse.restore(control, residual)
            undo.append((group, before))
    except BaseException:
        for group, (control, residual) in undo:
            group.sparse.restore(control, residual)
        raise


def _fill(
    group: Group,
    residual: torch.Tensor,
    saved: Dict[str, torch.Tensor],
    strict: bool,
    taken: List[str],
) -> None:
    for name, piece in group.pieces(residual).items():
        source = saved.get(name)
        if source is not None and source.shape == piece.shape:
            piece.copy_(source)
            taken.append(name)
        elif strict:
            raise ValueError(f"the residual of {name!r} is missing or has another shape")


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
