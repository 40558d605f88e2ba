# SPDX-License-Identifier: MIT
"""The communicator that fits the launcher, and a guard against one that does not.

A process that MPI or torch believes to be alone would silently train by itself, next to the
others. So every number of processes that a launcher announces is compared with the communicator's.
"""

import atexit
import gc
import logging
import os
import sys
import warnings
import weakref
from typing import Any, Callable, List, NamedTuple, Optional

from . import _core, launcher
from ._core import Comm, Error, Meter, Reducer

log = logging.getLogger("tamis")

TRANSPORTS = ("auto", "mpi", "ucx", "torch", "nccl", "local")


def mpi_module() -> Optional[str]:
    """Path of the shared object that links MPI; None if it was not built."""
    return _beside_core("_mpi.so")


def nccl_module() -> Optional[str]:
    """Path of the shared object that links NCCL; None if it was not built."""
    return _beside_core("_nccl.so")


def _beside_core(name: str) -> Optional[str]:
    path = os.path.join(os.path.dirname(os.path.abspath(_core.__file__)), name)
    return path if os.path.exists(path) else None


def nccl_missing() -> Optional[str]:
    """What NCCL lacks here, and how to mend it; None if nothing. Loads NCCL."""
    module = nccl_module()
    if module is None:
        return (
            "this build of tamis has no NCCL, _nccl.so is not beside _core."
            " Install a wheel made by python/wheel.sh."
        )
    from . import _vendor

    words = _vendor.nccl_missing(module)
    if words is None:
        return None
    return (
        f"NCCL cannot be loaded: {words}."
        " Run pip install nvidia-nccl-cu13 (nvidia-nccl-cu12 for a torch of CUDA 12)."
    )


# --- the choice


class Choice(NamedTuple):
    transport: str
    reason: str


def choose(transport: str = "auto", device: str = "cpu") -> Choice:
    """The transport that `comm` would take, and why."""
    if transport not in TRANSPORTS:
        raise launcher.error(
            f"Unknown transport {transport!r}.", f"Use one of {', '.join(TRANSPORTS)}."
        )
    if transport != "auto":
        return Choice(transport, "the caller requested it")
    setting = _setting()
    if setting != "auto":
        return Choice(setting, f"TAMIS_TRANSPORT={setting}")
    carrier = _carrier()
    if device == "cuda" and carrier.transport != "local" and not nccl_missing():
        return Choice("nccl", f"the gradients are on a CUDA device, and {carrier.reason}")
    return Choice(over_torch("cpu"), carrier.reason) if carrier.transport == "torch" else carrier


def _setting() -> str:
    row = next(row for row in _core.settings() if row["name"] == "TAMIS_TRANSPORT")
    text = os.environ.get("TAMIS_TRANSPORT", "")
    if text and row["origin"] == "default":  # the library warned, and would continue with auto
        raise launcher.error(
            f"TAMIS_TRANSPORT={text} is not a transport.",
            f"Use one of {', '.join(row['values'].split('|'))}, or unset it.",
        )
    return row["value"]


def _carrier() -> Choice:
    """The transport that the launcher offers. Never NCCL, which needs one of these to start."""
    launched = launcher.mpi_launched()
    if launched and not mpi_module() and launcher.torch_initialised():
        return Choice("torch", f"{launched} is set, but MPI was not built; torch.distributed runs")
    if launched:
        return Choice("mpi", f"{launched} is set")
    if launcher.mpi_initialised() and not launcher.torchrun():
        return Choice("mpi", "MPI is initialised")
    if launcher.torch_initialised():
        return Choice("torch", "torch.distributed is initialised")
    if launcher.env_init() and launcher.torch_distributed():
        return Choice("torch", "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set")
    if _rendezvous() and "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return Choice("ucx", "RANK, WORLD_SIZE and TAMIS_RENDEZVOUS are set")
    return Choice("local", "no launcher was found")


def _rendezvous() -> str:
    return os.environ.get("TAMIS_RENDEZVOUS", "")


def comm(transport: str = "auto", timeout_s: Optional[float] = None, device: str = "cpu") -> Comm:
    """The communicator of all processes of this job.

    transport  "mpi"; "ucx": UCX, the ranks find each other over torch.distributed, or without it
               at TAMIS_RENDEZVOUS=host:port, with RANK and WORLD_SIZE; "torch":
               all-gathers of torch.distributed, whose bytes grow with the number of ranks; "nccl":
               CUDA, the ranks find each other over MPI or torch; "local": this process alone.
               "auto": TAMIS_TRANSPORT if it is set, else mpi under mpirun or srun --mpi=..., or if
               MPI is initialised, else ucx if torch.distributed is, or with RANK, WORLD_SIZE,
               MASTER_ADDR and MASTER_PORT, or torch where a rank has no UCX, else local. The choice
               is logged (logger "tamis", level info).
    timeout_s  deadline of every wait; None: TAMIS_TIMEOUT_MS, else 300 s
    device     where gradients lie. "cuda": auto takes nccl, where it was built, on the current
               device

    Collective: all processes call it. At exit open communicators are closed, and MPI is finalised
    if it is our own; when an exception ends the process, it waits for no other rank.

    Errors: `Error` if the transport is not available, or if a launcher announced another number
    of processes than the communicator has.
    """
    wanted, reason = choose(transport, device)
    _check_announced()
    if wanted == "nccl":
        made = _open_nccl(timeout_s)
    else:
        made = _open(wanted, timeout_s, may_fall_back=may_fall_back(transport))
    remember(made)
    tell_detour(made, device)
    log.info("transport %s, rank %d of %d: %s", made.transport, made.rank, made.nranks, reason)
    return made


_told = False


def tell_detour(comm: Comm, device: str) -> None:
    """Warn, once, of gradients that lie on a CUDA device and travel through the host."""
    global _told
    if device != "cuda" or comm.transport == "nccl" or comm.nranks == 1 or _told:
        return
    _told = True
    remedy = nccl_missing() or 'Leave comm= and transport= out, or pass transport="nccl".'
    warnings.warn(
        f"The gradients are on CUDA devices, but travel over {comm.transport} by way of the host,"
        f" several times slower than over NCCL: {remedy}",
        RuntimeWarning,
        stacklevel=3,
    )


def _milliseconds(timeout_s: Optional[float]) -> int:
    """The timeout as the extension takes it; 0 leaves it to TAMIS_TIMEOUT_MS."""
    if timeout_s is None:
        return 0
    if not 0.001 <= timeout_s <= 86400:
        raise launcher.error(f"timeout_s is {timeout_s}, out of range.", "Use 0.001 to 86400.")
    return round(timeout_s * 1000)


def may_fall_back(transport: str) -> bool:
    """Whether neither the caller nor the environment asked for one."""
    return transport == _setting() == "auto"


def _open(transport: str, timeout_s: Optional[float], may_fall_back: bool = False) -> Comm:
    """A communicator of all processes, guarded."""
    if transport == "mpi":
        made = _open_mpi(timeout_s)
    elif transport == "ucx":
        made = _open_ucx(timeout_s, may_fall_back)
    elif transport == "torch":
        made = _open_torch(timeout_s)
    else:
        made = Comm.local(1, _milliseconds(timeout_s))[0]
    guard(made)
    return made


def open_carrier(timeout_s: Optional[float] = None) -> Comm:
    """A communicator over what the launcher offers, so that ranks can find each other."""
    return _open(_carrier().transport, timeout_s)


def _open_mpi(timeout_s: Optional[float]) -> Comm:
    module = mpi_module()
    if module is None:
        raise launcher.error(
            "MPI was requested, but this build of tamis has none: _mpi.so is not beside _core.",
            "Install an MPI with its headers (Debian: libopenmpi-dev) and build tamis again, or"
            " start the processes with torchrun and pass transport='torch'.",
            "TAMIS_E_UNSUPPORTED",
        )
    return Comm.mpi(module, _milliseconds(timeout_s))


def _open_torch(timeout_s: Optional[float]) -> Comm:
    if launcher.torch_distributed() is None:
        raise launcher.error(
            "Transport torch was requested, but torch.distributed cannot be imported.",
            "Install torch, or start the processes with mpirun and pass transport='mpi'.",
            "TAMIS_E_UNSUPPORTED",
        )
    from . import group
    from . import torch as binding

    group.init_process_group()
    return binding.carrier(timeout_s=timeout_s)


def _open_ucx(timeout_s: Optional[float], may_fall_back: bool) -> Comm:
    torch = launcher.torch_initialised() or launcher.env_init()
    if _rendezvous() and not (torch and launcher.torch_distributed()):
        from . import _vendor

        _vendor.load_ucx()
        return Comm.ucx(timeout_ms=_milliseconds(timeout_s))
    if launcher.torch_distributed() is None:
        raise launcher.error(
            "Over transport ucx the ranks find each other by torch.distributed, which cannot be"
            " imported, or at TAMIS_RENDEZVOUS=host:port, which is not set.",
            "Set it, with RANK and WORLD_SIZE, or start the processes with mpirun and pass"
            " transport='mpi'.",
            "TAMIS_E_UNSUPPORTED",
        )
    from . import group
    from .torch import _comm

    group.init_process_group()
    made = _comm.over_ucx(None, timeout_s, may_fall_back)
    return _open_torch(timeout_s) if made is None else made


def _need_nccl() -> str:
    module, lack = nccl_module(), nccl_missing()
    if module is None or lack:
        raise launcher.error(
            f"NCCL was requested, but {lack}",
            "Or pass transport='mpi' or 'torch'.",
            "TAMIS_E_UNSUPPORTED",
        )
    return module


def _open_nccl(timeout_s: Optional[float]) -> Comm:
    _need_nccl()  # before ranks wait for each other
    bootstrap = open_carrier(timeout_s)
    try:
        return nccl_over(bootstrap, timeout_s)
    finally:
        bootstrap.close()


def nccl_over(carrier: Comm, timeout_s: Optional[float] = None) -> Comm:
    """NCCL among the ranks of a communicator, which may be closed afterwards. Collective."""
    return Comm.nccl(_need_nccl(), carrier, _milliseconds(timeout_s))


def over_torch(device: str) -> str:
    """The transport between ranks that torch's process groups bring together, if all have it: over
    ucx they find out together whether they do (torch/_comm.py)."""
    if device == "cuda" and not nccl_missing():
        return "nccl"
    return "ucx"


# --- the guard


def guard(comm: Comm) -> None:
    """Raise `Error` unless `comm` has as many ranks as each launcher and torch announce.

    It needs no communication: each process checks by itself, and none waits for another.
    """
    numbers = launcher.announced()
    world = launcher.torch_world()
    if world is not None:
        numbers["torch.distributed"] = world
    for source, number in numbers.items():
        if number != comm.nranks:
            raise launcher.error(
                f"{source}={number}, but the communicator over {comm.transport} has"
                f" {comm.nranks} rank{'s' if comm.nranks != 1 else ''}: replicas would silently"
                " drift apart.",
                _right_launcher(source, number, comm.transport),
            )


def _check_announced() -> None:
    """Checks that need no MPI_Init, which may hang in a job that was started wrongly."""
    numbers = launcher.announced()
    if len(set(numbers.values())) > 1:
        told = " but ".join(f"{name}={number}" for name, number in numbers.items())
        raise launcher.error(
            f"Launchers disagree on the number of processes: {told}.",
            "Unset variables left over from another job.",
        )


def _right_launcher(source: str, number: int, transport: str) -> str:
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "script.py"
    mpirun = f"mpirun -np {number} python3 {script}"
    if source == "SLURM_STEP_NUM_TASKS":
        return f"Start it with srun --mpi=pmix -n {number} python3 {script}."
    if transport != "mpi":
        return (
            f"Start it with {mpirun}, or with torchrun --nproc_per_node {number} {script} and call"
            " torch.distributed.init_process_group first, and leave the transport to tamis."
        )
    if source in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        return (
            "The launcher belongs to a different MPI than the one that tamis was built with: use"
            f" that one's {mpirun}, or build tamis with the launcher's MPI."
        )
    return f"Start it with {mpirun}, or pass transport='torch' (TAMIS_TRANSPORT=torch)."


# --- the exit

_process = os.getpid()
_made: List["weakref.ref[Comm]"] = []  # in order, so that all ranks close in the same order


def remember(made: Comm) -> None:
    """Close it at exit, if it is still open."""
    _made[:] = [reference for reference in _made if reference() is not None]
    _made.append(weakref.ref(made))


@atexit.register
def _leave() -> None:
    """Close what is open, in the same order on all ranks, and finalise MPI if it is our own.

    After an exception other ranks may still wait for this one, and MPI_Finalize would wait for
    them in turn. So the process exits without it, and the launcher sees its exit status. A child
    that was forked, and ends by sys.exit, leaves all of it to its parent.
    """
    if os.getpid() != _process:
        return
    failed = getattr(sys, "last_value", None) is not None
    reducers = [item for item in gc.get_objects() if type(item) is Reducer]
    meters = [item for item in gc.get_objects() if issubclass(type(item), Meter)]
    comms = [made for made in (reference() for reference in _made) if made is not None]
    if failed:
        _each(comms, Comm.abort)
    _each(reducers, Reducer.close)
    _each(comms, Comm.close)
    _each(meters, Meter.close)
    if not failed:
        _core.mpi_finalize()


def _each(items: List[Any], do: Callable[[Any], None]) -> None:
    for item in items:
        try:
            do(item)
        except Error as error:
            log.debug("at exit: %s", error)
