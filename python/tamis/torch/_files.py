# SPDX-License-Identifier: MIT
"""A file for each rank in the folder of a checkpoint: tamis-rank0.pt, tamis-rank1.pt, ..."""

import os
import pathlib
from typing import TYPE_CHECKING, Any, Dict, List, Union

import torch

from .. import _core, launcher

if TYPE_CHECKING:
    from ._state import SparseState

Folder = Union[str, "os.PathLike[str]"]


def save(state: "SparseState", folder: Folder) -> pathlib.Path:
    """Whole, or as it was before."""
    path = _path(folder, state.comm.rank, state.suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    torch.save(state.state_dict(), part)
    os.replace(part, path)
    return path


def load(state: "SparseState", folder: Folder) -> None:
    """All ranks, or none: what one could not find the others do not load."""
    states: List[Dict[str, Any]] = []
    failure, found = None, "nothing"
    try:
        states, found = _read(state, folder)
    except Exception as error:
        failure = error
    try:
        _core.check_equal(state.comm, found.encode())
    except _core.Error as error:
        if failure is not None or error.status != "TAMIS_E_MISMATCH":
            raise failure or error
        raise launcher.error(
            f"Rank {state.comm.rank} has found {found} in {folder}, but another rank has not.",
            "Give all ranks the folder of one checkpoint.",
            error.status,
        ) from error
    if failure is not None:
        raise failure
    state.load_state_dict(states)


def _read(state: "SparseState", folder: Folder) -> Any:
    """The own state, or all of another number of ranks, as rank 0's file says if it is there."""
    rank, nranks = state.comm.rank, state.comm.nranks
    own, first = _path(folder, rank, state.suffix), _path(folder, 0, state.suffix)
    if not own.exists() and not first.exists():
        raise FileNotFoundError(f"rank {rank}: there is no {own}: this checkpoint has no state of tamis")
    saved = _open(first if first.exists() else own)
    head = next(iter(saved.values()))
    old = head["nranks"]
    if old != nranks:
        states = [_open(_path(folder, number, state.suffix)) for number in range(old)]
    else:
        states = [saved if _is_of(saved, rank) else _open(own)]
    steps = {next(iter(one.values()))["steps"] for one in states}
    return states, f"states of {old} ranks, {head['scheme']}, at step {sorted(steps)}"


def _is_of(saved: Dict[str, Any], rank: int) -> bool:
    return bool(next(iter(saved.values()))["rank"] == rank)


def _open(path: pathlib.Path) -> Dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}, which other files of the checkpoint belong to")
    try:
        saved: Dict[str, Any] = torch.load(path)
        next(iter(saved.values()))["nranks"]
    except Exception as error:
        raise ValueError(f"{path} is damaged, or no state of tamis: {error}") from error
    return saved


def _path(folder: Folder, rank: int, suffix: str) -> pathlib.Path:
    return pathlib.Path(folder, f"tamis-rank{rank}{suffix}.pt")
