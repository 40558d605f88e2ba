# SPDX-License-Identifier: MIT
"""Sparse gradient exchange for data-parallel training.

    comm = tamis.comm()                                        # MPI, torch, or one process
    reducer = tamis.Reducer(comm, tamis.Layout([("w", w.size)]), density=0.01)
    reducer.start(grad)
    reducer.wait()                      # grad: mean of the chosen entries, zero elsewhere

Gradients are objects that support DLPack: NumPy arrays (1.22 or later), PyTorch tensors. They are
written in place. For PyTorch see `tamis.torch`, which must be imported by name; only it needs
torch. docs/python.md is the manual; include/tamis/tamis.h says what each option means.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

try:
    from . import _core
except ImportError as error:
    raise ImportError(
        f"tamis._core, the compiled part of tamis, cannot be loaded ({error}). It is built for"
        " CPython 3.9 or later with the global interpreter lock; docs/python.md says how."
    ) from error

from ._core import Comm, Error, Layout, Plan, Reducer
from ._core import check_equal, features, schemes, settings, version
from .launch import comm, mpi_module, nccl_module
from .launcher import local_rank

if TYPE_CHECKING:
    from .elastic import ElasticState, run_elastic
    from .group import init_process_group

__all__ = [
    "Comm",
    "ElasticState",
    "Error",
    "Layout",
    "Plan",
    "Reducer",
    "check_equal",
    "comm",
    "features",
    "init_process_group",
    "local_rank",
    "mpi_module",
    "nccl_module",
    "run_elastic",
    "schemes",
    "settings",
    "version",
]
# Loaded when they are first asked for, with what they import: half of the time of `import tamis`.
_LATER = {
    "ElasticState": "elastic",
    "elastic": "elastic",
    "group": "group",
    "init_process_group": "group",
    "run_elastic": "elastic",
}
__version__ = ".".join(str(part) for part in version())


def _later(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_LATER[name]}", __name__)
    return getattr(module, name, module)


if not TYPE_CHECKING:  # to a type checker it would mean that every name is there
    __getattr__ = _later


def __dir__() -> List[str]:
    return sorted({*globals(), *_LATER})
