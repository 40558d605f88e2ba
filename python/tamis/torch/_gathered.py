# SPDX-License-Identifier: MIT
"""The states of all ranks in one dictionary, for checkpoints that one rank writes."""

import io
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from ._state import SparseState

_groups: List[Any] = []  # over gloo, if torch's own cannot carry what is in host memory


class Gathered:
    """state_dict() and load_state_dict() of a SparseState, of all ranks together."""

    def __init__(self, state: "SparseState") -> None:
        self._state = state

    def state_dict(self) -> Dict[str, Any]:
        """The states of all ranks, on rank 0 of torch.distributed; elsewhere an empty dictionary.
        Collective."""
        own = self._state.state_dict()
        inside = self._state.ranks_inside
        if dist.is_initialized() and dist.get_world_size() != self._state.comm.nranks * inside:
            raise RuntimeError(
                f"the state is of {self._state.comm.nranks} ranks, torch.distributed has"
                f" {dist.get_world_size()}: let each rank save its own, by state.save(folder)"
            )
        if not dist.is_initialized() or dist.get_world_size() == 1:
            if self._state.comm.nranks > 1:
                raise RuntimeError(
                    "states are gathered over torch.distributed, which is not initialised: let each"
                    " rank save its own, by state.save(folder)"
                )
            return own
        return _merge(own)

    def load_state_dict(
        self, saved: Union[Dict[str, Any], Sequence[Dict[str, Any]]], strict: bool = True
    ) -> None:
        """Every rank is given all, and takes its own."""
        self._state.load_state_dict(saved, strict)


def _merge(own: Dict[str, Any]) -> Dict[str, Any]:
    group, rank = _group(), dist.get_rank()
    data = io.BytesIO()
    torch.save(own, data)
    sent = torch.frombuffer(data.getbuffer(), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([sent.numel()]), group=group)
    if rank != 0:
        dist.send(sent, 0, group=group)
        return {}
    merged = dict(own)
    for source, size in list(enumerate(sizes))[1:]:
        came = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(came, source, group=group)
        merged.update(torch.load(io.BytesIO(came.numpy().tobytes())))
    return merged


def _group() -> Any:
    if "gloo" in str(dist.get_backend()):
        return None
    if not _groups:
        _groups.append(dist.new_group(backend="gloo"))
    return _groups[0]
