# SPDX-License-Identifier: MIT
"""Which ranks a state exchanges with, and over what: its communicators."""

from typing import Any, List, Optional, Sequence, Union

import torch

from .. import _core, launch
from . import _comm, _parameters


def communicators(
    parameters: _parameters.Parameters,
    given: Union[_core.Comm, Sequence[_core.Comm], None],
    number: int,
    transport: str,
    timeout_s: Optional[float],
    device: torch.device,
) -> List[_core.Comm]:
    """One per dtype: reducers that share one would have to start in the same order on all ranks."""
    _need_cuda(device)
    group = _subgroup_of(parameters)
    if given is not None:
        comms = _counted(given, number)
    elif group is not None:
        comms = _of_subgroup(group, number, transport, timeout_s, device)
    else:
        comms = [launch.comm(transport, timeout_s, device.type) for _ in range(number)]
    _check_ranks(parameters, comms)
    return comms


def _need_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        return
    feature = next(row for row in _core.features() if row["name"] == "cuda")
    if not feature["available"]:
        raise RuntimeError(
            f"the parameters are on {device}, but this tamis cannot use CUDA: {feature['reason']}"
        )


def _subgroup_of(parameters: _parameters.Parameters) -> Optional[Any]:
    """The process group of a DDP that works over some ranks only, or of shards; else None."""
    if isinstance(parameters, _parameters.Shards):
        return parameters.group
    if not isinstance(parameters, torch.nn.parallel.DistributedDataParallel):
        return None
    group, every = parameters.process_group, torch.distributed.get_world_size()
    return group if torch.distributed.get_world_size(group) != every else None


def _of_subgroup(
    group: Any, number: int, transport: str, timeout_s: Optional[float], device: torch.device
) -> List[_core.Comm]:
    """Communicators of the ranks of a process group that is not all of them."""
    taken, reason = launch.choose(transport, device.type)
    if taken == "mpi" and transport == "auto":
        taken = launch.over_torch(device.type)
    if taken not in ("torch", "nccl", "ucx"):
        raise ValueError(
            "DistributedDataParallel has a process group that is not all ranks, but transport"
            f" {taken!r} is of all ({reason}): leave the transport out, or give comm="
        )
    return _comm.carriers_of(group, number, timeout_s, taken, launch.may_fall_back(transport))


def _check_ranks(parameters: _parameters.Parameters, comms: List[_core.Comm]) -> None:
    """A DDP whose replicas do not all exchange with each other would silently drift apart."""
    if not isinstance(parameters, torch.nn.parallel.DistributedDataParallel):
        return
    world = torch.distributed.get_world_size(parameters.process_group)
    for comm in comms:
        if comm.nranks != world:
            raise ValueError(
                f"DistributedDataParallel has {world} ranks, the communicator over"
                f" {comm.transport} has {comm.nranks}: give both the same processes"
            )


def _counted(given: Union[_core.Comm, Sequence[_core.Comm]], number: int) -> List[_core.Comm]:
    comms = [given] if isinstance(given, _core.Comm) else list(given)
    if len(comms) != number:
        raise ValueError(
            f"the parameters have {number} dtypes, which need a communicator each, but"
            f" {len(comms)} came: give comm=[...] in the order in which the dtypes first appear"
        )
    return comms
