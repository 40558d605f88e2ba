# SPDX-License-Identifier: MIT
"""Arrays of whichever of numpy and torch there is: tamis needs neither, its callers have one."""

import ctypes
import sys
from typing import Any, Optional


def torch_of(value: Any) -> Optional[Any]:
    """The module torch, if `value` is a tensor of it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(value, torch.Tensor) else None


def numpy_of(value: Any) -> Optional[Any]:
    """The module numpy, if `value` is an array or a scalar of it."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return None
    return numpy


def zeros(length: int) -> Any:
    """A vector of float32, of numpy or else of torch."""
    try:
        import numpy

        return numpy.zeros(length, numpy.float32)
    except ImportError:
        import torch

        return torch.zeros(length)


def zeros_like(vector: Any) -> Any:
    """Zeros of the kind that `vector` is."""
    kind: Any = torch_of(vector) or numpy_of(vector)
    return kind.zeros_like(vector)


def tensor_bytes(tensor: Any) -> bytes:
    """The bytes of a torch tensor, in the order of its axes."""
    flat = tensor.detach().cpu().contiguous()
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def put(target: Any, value: Any, what: str) -> None:
    """Write `value` into an array or tensor. Errors: ValueError for another shape."""
    if tuple(target.shape) != tuple(value.shape):
        raise ValueError(
            f"{what} has shape {tuple(target.shape)}, but {tuple(value.shape)} was saved"
        )
    torch = torch_of(target)
    if torch is None:
        target[...] = value
        return
    with torch.no_grad():
        target.copy_(value)
