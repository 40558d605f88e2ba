# SPDX-License-Identifier: MIT
"""How this process was started: by which launcher, and with how many others."""

import os
import sys
from typing import Any, Dict, Optional

from . import _core
from ._core import Error


def error(sentence: str, remedy: str, status: str = "TAMIS_E_ARGUMENT") -> Error:
    """An `Error` in the library's form: what is wrong, and what to do about it."""
    made = Error(f"{sentence} {remedy}")
    made.status, made.lost, made.remedy = status, "nothing", remedy
    return made


def number(variable: str) -> Optional[int]:
    """The number in an environment variable; None if it is not set."""
    text = os.environ.get(variable, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise error(f"{variable}={text} is not a number.", "Correct or unset it.") from None


def torchrun() -> bool:
    """Whether torchrun started this process: it is the inner launcher, whatever started it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and number("WORLD_SIZE") is not None


def announced() -> Dict[str, int]:
    """The number of processes that the launchers announce, by environment variable.

    Launchers nest: mpirun inside a Slurm step, torchrun started once per node by either. Only the
    inner one knows the number of processes, so variables of the outer ones are left out.
    """
    numbers = {}
    world = number("WORLD_SIZE")
    if world is not None and number("RANK") is not None:
        numbers["WORLD_SIZE"] = world
    if torchrun():
        return numbers
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        size = number(variable)
        if size is not None:
            numbers[variable] = size
            return numbers
    # Not SLURM_NTASKS: a shell inside an allocation has it too, and is one process.
    tasks = number("SLURM_STEP_NUM_TASKS")
    if tasks is not None and not numbers and number("SLURM_PROCID") is not None:
        numbers["SLURM_STEP_NUM_TASKS"] = tasks
    if not numbers and world is not None:  # without RANK, and no other launcher: half set by hand
        numbers["WORLD_SIZE"] = world
    return numbers


def mpi_launched() -> Optional[str]:
    """The variable that shows that this process was started as an MPI rank; None if none does."""
    if torchrun():
        return None
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"):
        if variable in os.environ:
            return variable
    return None


def mpi_initialised() -> bool:
    if _core.mpi_state() in ("foreign", "own"):
        return True
    mpi4py = sys.modules.get("mpi4py.MPI")  # our module need not be loaded to know
    return mpi4py is not None and mpi4py.Is_initialized() and not mpi4py.Is_finalized()


def env_init() -> bool:
    """Whether the environment has all that torch's env:// needs."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(os.environ.get(name) for name in names)


def torch_distributed() -> Optional[Any]:
    """torch.distributed if it can be imported and was built; None otherwise."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    return dist if dist.is_available() else None


def torch_initialised() -> bool:
    if "torch" not in sys.modules:
        return False
    dist = torch_distributed()
    return dist is not None and dist.is_initialized()


def torch_world() -> Optional[int]:
    """Number of ranks of torch.distributed; None if it is not initialised."""
    dist = torch_distributed() if torch_initialised() else None
    return None if dist is None else int(dist.get_world_size())


def local_rank() -> int:
    """Rank among the processes of this host: the CUDA device to take. 0 without a launcher."""
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
    return next((rank for rank in map(number, names) if rank is not None), 0)
