# SPDX-License-Identifier: MIT
"""The library of NCCL, which _nccl.so finds by its name once something has loaded it."""

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
