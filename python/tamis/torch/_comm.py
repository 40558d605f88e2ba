# SPDX-License-Identifier: MIT
"""Communicators over torch.distributed, and what is done once before training."""

import ctypes
import datetime
import hashlib
import os
import re
import weakref
from typing import Any, Dict, Iterable, List, Optional, Union

import torch
import torch.distributed as dist

from .. import _core, _vendor, launch, launcher

DEFAULT_TIMEOUT_S = 300.0


def distributed() -> bool:
    """Whether torch.distributed is initialised."""
    return dist.is_available() and dist.is_initialized()


def seconds(timeout_s: Optional[float]) -> float:
    """The deadline that applies for a given `timeout_s`."""
    if timeout_s is not None:
        return float(timeout_s)
    text = os.environ.get("TAMIS_TIMEOUT_MS", "")
    return int(text) / 1000 if text.isdigit() and int(text) else DEFAULT_TIMEOUT_S


class _Gather:
    """The all-gather of a process group, for bytes in host memory."""

    def __init__(self, group: Any, own: bool) -> None:
        self.group = group
        self.own = own
        self.nranks = dist.get_world_size(group)
        # Gloo supports the call with one output only after torch 1.13; before, it fails at once.
        self.flat = getattr(dist, "all_gather_into_tensor", None)

    def __call__(self, send: memoryview, recv: memoryview) -> None:
        try:
            self._gather(send, recv)
        except RuntimeError as error:
            raise _reworded(error, self.nranks) from error

    def _gather(self, send: memoryview, recv: memoryview) -> None:
        group = self.group
        if group is None:
            raise RuntimeError("this rank abandoned the process group")
        received = torch.frombuffer(recv, dtype=torch.uint8)
        sent = torch.frombuffer(bytearray(send), dtype=torch.uint8)  # needs a writable buffer
        if self.flat:
            try:
                self.flat(received, sent, group=group)
                return
            except (RuntimeError, NotImplementedError) as error:
                if "support" not in str(error):
                    raise
                self.flat = None
        dist.all_gather(list(received.view(self.nranks, -1)), sent, group=group)

    def leave(self) -> None:
        """Leave the group: ranks that wait in it, now or later, fail at once."""
        group, self.group = self.group, None
        if self.own and group is not None and distributed():
            dist.destroy_process_group(group)


def _reworded(error: RuntimeError, nranks: int) -> Exception:
    """gloo's words without its file names and advice. It names the address of the peer it lost,
    not the rank; what ran into its deadline is a TimeoutError."""
    words = re.sub(r"^\[[^\]]*:\d+\] ", "", str(error)).split(". This is typically")[0]
    late = "timed out" in words.lower()
    return (TimeoutError if late else RuntimeError)(f"torch's group of {nranks} ranks: {words}")


# A Comm cannot name the process group that carries it.
_gathers: "weakref.WeakKeyDictionary[_core.Comm, _Gather]" = weakref.WeakKeyDictionary()


def leave(comm: _core.Comm) -> None:
    """Leave the process group below a communicator, if there is one."""
    gather = _gathers.pop(comm, None)
    if gather is not None:
        gather.leave()


def carrier(
    group: Optional[Any] = None, timeout_s: Optional[float] = None, device: str = "cpu"
) -> _core.Comm:
    """A communicator over a torch process group: the one given, or a new one over all ranks.

    group      a group for host memory (gloo) that nothing else uses while reducers of this
               communicator live; the caller destroys it. None: dist.new_group("gloo").
    timeout_s  deadline of every wait; None: TAMIS_TIMEOUT_MS, else 300 s; a given group has its own
    device     "cuda": over NCCL, on the current device; the group only brings the ranks together,
               and is free again afterwards

    Collective: yes, over the group
    Errors:     RuntimeError if torch.distributed is not initialised or the group is not for host
                memory
    """
    if not distributed():
        raise RuntimeError(
            "torch.distributed is not initialised: call torch.distributed.init_process_group first"
        )
    limit_s = seconds(timeout_s)
    own = group is None
    if own:
        group = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=limit_s))
    elif "gloo" not in dist.get_backend(group):
        raise RuntimeError(
            f"a process group over {dist.get_backend(group)} does not carry host memory: make one"
            ' with torch.distributed.new_group(ranks, backend="gloo")'
        )
    gather = _Gather(group, own)
    comm = _core.Comm.callback(
        dist.get_rank(group), gather.nranks, gather, round(limit_s * 1000)
    )
    _gathers[comm] = gather
    return _over_nccl(comm, timeout_s) if device == "cuda" else comm


def _over_nccl(carrier: _core.Comm, timeout_s: Optional[float]) -> _core.Comm:
    """NCCL among the ranks of a communicator, which is left."""
    try:
        made = launch.nccl_over(carrier, timeout_s)
    finally:
        carrier.close()
        leave(carrier)
    launch.remember(made)
    return made


def carriers_of(
    group: Any, number: int, timeout_s: Optional[float], transport: str, may_fall_back: bool
) -> List[_core.Comm]:
    """Communicators over a group that is not all ranks; over NCCL and UCX they connect there only.
    Collective over the group."""
    made = []
    for _ in range(number):
        ucx = over_ucx(group, timeout_s, may_fall_back) if transport == "ucx" else None
        comm = _carrier_among(group, seconds(timeout_s)) if ucx is None else ucx
        made.append(_over_nccl(comm, timeout_s) if transport == "nccl" else comm)
    return made


def over_ucx(
    group: Optional[Any], timeout_s: Optional[float], may_fall_back: bool
) -> Optional[_core.Comm]:
    """A communicator over UCX among the ranks of a group; None: of all. They meet over gloo, which
    is closed again. @return None where UCX is missing on some rank, which is said, if that may be.

    Collective: yes, over the group
    """
    limit_s = seconds(timeout_s)
    members = dist.group.WORLD if group is None else group
    rendezvous = _AloneGather(_Alone(members, limit_s), dist.get_world_size(members))
    try:
        _need_all(rendezvous, next(row for row in _core.features() if row["name"] == "ucx"))
        _vendor.load_ucx()
        made = _core.Comm.ucx(
            dist.get_rank(members), rendezvous.nranks, rendezvous, round(limit_s * 1000)
        )
        launch.remember(made)
        return made
    except _core.Error as error:
        if not may_fall_back or error.status != "TAMIS_E_UNSUPPORTED":
            raise
        launch.log.warning(
            "gradients travel by all-gathers of gloo, whose bytes grow with the number of ranks: %s",
            error,
        )
        return None
    finally:
        rendezvous.leave()


def _need_all(rendezvous: _Gather, feature: Dict[str, Any]) -> None:
    """A rank whose build lacks it would not come to where the others meet."""
    own, every = bytearray(8), bytearray(8 * rendezvous.nranks)
    own[0] = bool(feature["available"])
    rendezvous(memoryview(own), memoryview(every))
    lacking = [rank for rank, has in enumerate(every[::8]) if not has]
    if lacking:
        raise launcher.error(
            f"Rank(s) {', '.join(map(str, lacking))} have a tamis that was built without UCX.",
            "Install the same tamis everywhere, or pass transport='torch'.",
            "TAMIS_E_UNSUPPORTED",
        )


# How often some ranks have used a store, which is the same number on all of them.
_rendezvous_counts: Dict[str, int] = {}
_store: List[Any] = []  # the store; another one after torch.distributed began anew


def _rendezvous_store(ranks: str) -> Any:
    store = dist.distributed_c10d._get_default_store()
    if not _store or _store[0] is not store:
        _rendezvous_counts.clear()
        _store[:] = [store]
    _rendezvous_counts[ranks] = _rendezvous_counts.get(ranks, 0) + 1
    return dist.distributed_c10d.PrefixStore(f"tamis/{ranks}/{_rendezvous_counts[ranks]}", store)


class _Alone:
    """gloo among some ranks, not known to torch.distributed: what new_group counts must be the same
    on all ranks of the job, of which others may not attach anything."""

    def __init__(self, group: Any, limit_s: float) -> None:
        self.gloo = dist.ProcessGroupGloo(
            _rendezvous_store("_".join(map(str, _ranks_of(group)))),
            dist.get_rank(group),
            dist.get_world_size(group),
            datetime.timedelta(seconds=limit_s),
        )


def _ranks_of(group: Any) -> List[int]:
    """The ranks of the job, in the order of the group."""
    return [int(dist.get_global_rank(group, r)) for r in range(dist.get_world_size(group))]


def _carrier_among(group: Any, limit_s: float) -> _core.Comm:
    gather = _AloneGather(_Alone(group, limit_s), dist.get_world_size(group))
    comm = _core.Comm.callback(dist.get_rank(group), gather.nranks, gather, round(limit_s * 1000))
    _gathers[comm] = gather
    return comm


class _AloneGather(_Gather):
    def __init__(self, alone: _Alone, nranks: int) -> None:
        self.group, self.own, self.nranks = alone, True, nranks

    def _gather(self, send: memoryview, recv: memoryview) -> None:
        if self.group is None:
            raise RuntimeError("this rank abandoned the process group")
        received = torch.frombuffer(recv, dtype=torch.uint8).view(self.nranks, -1)
        sent = torch.frombuffer(bytearray(send), dtype=torch.uint8)  # needs a writable buffer
        self.group.gloo.allgather([list(received)], [sent]).wait()

    def leave(self) -> None:
        self.group = None  # the last reference closes its sockets


# ------------------------------------------------------------------------- once before training

Tensors = Union[torch.nn.Module, torch.Tensor, Iterable[torch.Tensor]]


def _tensors(source: Tensors, buffers: bool) -> List[torch.Tensor]:
    if isinstance(source, torch.Tensor):
        return [source.detach()]
    if isinstance(source, torch.nn.Module):
        found = list(source.parameters()) + (list(source.buffers()) if buffers else [])
    else:
        found = [row[1] if isinstance(row, tuple) else row for row in source]
    if not all(isinstance(tensor, torch.Tensor) for tensor in found):
        raise TypeError("pass a module, a tensor, or tensors (with or without names)")
    return [tensor.detach() for tensor in found]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in the order of its axes, in host memory: a view where possible."""
    return tensor.cpu().contiguous().view(-1).view(torch.uint8)


def broadcast_parameters(module_or_tensors: Tensors, comm: Optional[_core.Comm] = None) -> None:
    """Copy rank 0's bits to every rank: parameters and buffers of a module, or tensors.

    Over `comm` if it is given, else over torch.distributed's default group. Any dtype, any device;
    DistributedDataParallel does this by itself.

    Collective: yes, with the same shapes on all ranks
    Errors:     RuntimeError without `comm` and torch.distributed; `Error` from the communicator
    """
    tensors = [tensor for tensor in _tensors(module_or_tensors, True) if tensor.numel()]
    for tensor in tensors:
        data = _bytes_of(tensor)
        if comm is not None:
            sent = comm.broadcast(data if comm.rank == 0 else b"")
            data = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
        else:
            data = _broadcast(data, tensor.device)
        same = data.view(tensor.dtype).view(tensor.shape)
        tensor.copy_(same)


def _for_backend(data: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Where the default group takes tensors: in host memory if it can, else on a device, that of
    what the bytes are of rather than the current one."""
    if "gloo" in dist.get_backend() or "nccl" not in dist.get_backend():
        return data
    return data.to(device) if device.type == "cuda" else data.cuda()


def _broadcast(data: torch.Tensor, device: torch.device) -> torch.Tensor:
    _need_distributed()
    on_device = _for_backend(data, device)
    if on_device is not data:
        dist.broadcast(on_device, 0)
        return on_device.cpu()
    data = data.clone()
    dist.broadcast(data, 0)
    return data


def replicas_identical(module_or_tensors: Tensors, comm: Optional[_core.Comm] = None) -> bool:
    """Whether the parameters have the same bits on all ranks: their hashes are compared.

    Collective: yes              Errors: as broadcast_parameters
    """
    digest = hashlib.blake2b(digest_size=32)
    tensors = _tensors(module_or_tensors, False)
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():
            data = _bytes_of(tensor)
            digest.update((ctypes.c_char * data.numel()).from_address(data.data_ptr()))
    own = torch.tensor(list(digest.digest()), dtype=torch.uint8)
    rows = _gather(own, comm, next((t.device for t in tensors), own.device))
    return bool((rows == own).all())


def _gather(
    own: torch.Tensor, comm: Optional[_core.Comm], device: torch.device
) -> torch.Tensor:
    if comm is not None:
        rows = bytearray(b"".join(comm.allgather(own)))
        return torch.frombuffer(rows, dtype=torch.uint8).view(comm.nranks, -1)
    _need_distributed()
    own = _for_backend(own, device)
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    return torch.stack(parts).cpu()


def _need_distributed() -> None:
    if not distributed():
        raise RuntimeError(
            "there is no communicator: pass one (comm=state.comm), or call"
            " torch.distributed.init_process_group first"
        )
