# SPDX-License-Identifier: MIT
"""The libraries of NCCL and UCX, which are found by their names once something has loaded them."""

import ctypes
import importlib.util
import os
from typing import Iterator, Optional

NAME = "libnccl.so.2"


def _of_torch() -> Iterator[str]:
    """What torch's wheels bring, both of CUDA 12 and of 13."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = os.path.join(folder, "nccl", "lib", NAME)
        if os.path.exists(path):
            yield path


def nccl_missing(module: str) -> Optional[str]:
    """Load NCCL for `module`, the path of _nccl.so. None: it is there; else why not.

    A torch that was imported has loaded its own, which then serves both; a torch that is imported
    later takes the one that is loaded, as it has the same name. Without torch's, the loader looks
    for the system's.
    """
    words = None
    loaded = os.RTLD_NOW | os.RTLD_NOLOAD
    for path, mode in ((NAME, loaded), *((p, os.RTLD_NOW) for p in _of_torch())):
        try:
            ctypes.CDLL(path, mode=mode)
            break
        except OSError as error:
            words = words or (str(error) if mode != loaded else None)
    try:
        ctypes.CDLL(module, mode=os.RTLD_NOW)
        return None
    except OSError as error:
        return words or str(error)


def load_ucx() -> None:
    """Load PyPI's UCX (libucx-cu13, libucx-cu12) where there is one: whoever installed it means it.
    Otherwise the loader finds the system's. It takes over signals when it is loaded, SIGHUP and
    those of crashes, and gives them back here, unless somebody else had loaded it before."""
    spec = importlib.util.find_spec("libucx")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        signals, path = (os.path.join(folder, "lib", f"lib{name}.so.0") for name in ("ucs", "ucp"))
        if os.path.exists(path) and not _is_loaded("libucs.so.0"):
            ctypes.CDLL(path, mode=os.RTLD_NOW)
            ctypes.CDLL(signals, mode=os.RTLD_NOW).ucs_debug_disable_signals()
            return


def _is_loaded(name: str) -> bool:
    try:
        ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        return True
    except OSError:
        return False
