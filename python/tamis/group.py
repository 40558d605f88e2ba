# SPDX-License-Identifier: MIT
"""torch's process group under any launcher: DDP needs one, whatever carries the gradients."""

import os
import socket
from typing import Any, Optional

from . import launch, launcher
from ._core import Comm, Layout, Reducer


def init_process_group(backend: Optional[str] = None) -> None:
    """torch.distributed.init_process_group under any launcher; does nothing if it was called.

    backend  None: "cpu:gloo,cuda:nccl" where torch has a CUDA device and NCCL, else "gloo"

    With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT it uses torch's env://. With MASTER_ADDR and
    MASTER_PORT alone, under srun, rank and size are Slurm's. Under MPI nothing need be set: rank 0
    opens torch's store at a free port and sends its address over MPI. Without a launcher: one rank.
    """
    dist = launcher.torch_distributed()
    if dist is None:
        raise launcher.error(
            "torch.distributed cannot be imported.", "Install torch.", "TAMIS_E_UNSUPPORTED"
        )
    if dist.is_initialized():
        return
    backend = backend or _usual_backend(dist)
    if launcher.env_init():
        dist.init_process_group(backend, init_method="env://")
    elif launcher.mpi_launched() or launcher.mpi_initialised() or not _slurm_rendezvous():
        _rendezvous(dist, backend)
    else:
        rank, size = launcher.number("SLURM_PROCID"), launcher.number("SLURM_STEP_NUM_TASKS")
        dist.init_process_group(backend, init_method="env://", rank=rank, world_size=size)


def _usual_backend(dist: Any) -> str:
    """Before torch 2 a group has one backend, and gloo serves tensors of both kinds."""
    import torch

    several = hasattr(dist, "Backend") and hasattr(dist.Backend, "backend_capability")
    if several and dist.is_nccl_available() and torch.cuda.is_available():
        return "cpu:gloo,cuda:nccl"
    return "gloo"


def _slurm_rendezvous() -> bool:
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "MASTER_ADDR", "MASTER_PORT")
    return all(os.environ.get(name) for name in names)


def _rendezvous(dist: Any, backend: str) -> None:
    carrier = launch.open_carrier()
    rank, nranks = carrier.rank, carrier.nranks
    if nranks == 1:
        store = dist.HashStore()
    elif rank == 0:
        host = _address(nranks)
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
        _broadcast(carrier, f"{host}:{store.port}")
    else:
        host, _, port = _broadcast(carrier, "").rpartition(":")
        store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False)
    carrier.close()
    dist.init_process_group(backend, store=store, rank=rank, world_size=nranks)


def _broadcast(carrier: Comm, text: str) -> str:
    """Broadcast rank 0's text: a dense sum over bytes, to which the other ranks add zeros."""
    import torch

    letters = list(text.encode())
    note = torch.zeros(256)
    note[: len(letters)] = torch.tensor(letters, dtype=torch.float32)
    reducer = Reducer(carrier, Layout([("address", 256)]), scheme="dense", op="sum")
    reducer.start(note)
    reducer.wait()
    reducer.close()
    return bytes(int(letter) for letter in note.tolist() if letter).decode()


def _address(nranks: int) -> str:
    """An address of this host that the other ranks can reach."""
    given = os.environ.get("MASTER_ADDR")
    if given:
        return given
    if launcher.number("OMPI_COMM_WORLD_LOCAL_SIZE") == nranks:
        return "127.0.0.1"
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = "127.0.0.1"
    if address.startswith("127.") and launcher.number("OMPI_COMM_WORLD_LOCAL_SIZE") is not None:
        raise launcher.error(
            f"The name of this host, {socket.gethostname()}, resolves to {address}, where ranks on"
            " other hosts cannot reach it.",
            "Set MASTER_ADDR to the address of the first host (mpirun -x MASTER_ADDR=...).",
        )
    return address
