# SPDX-License-Identifier: MIT
"""CUDA streams of the caller, and the device on which things are made.

A step may have several streams: autograd computes a gradient on the stream of its forward pass, and
step() may be called on yet another. All calls of a step name one stream to the library, the first:

    gradient   on stream A       first = A
    gradient   on stream B       A waits for B, which made the gradient; ready(..., A)
    step()     on stream C       C waits for A, for what is still held; A for C; join(C)
"""

import contextlib
from typing import Any, ContextManager

import torch


def on(device: torch.device) -> ContextManager[Any]:
    """Make a CUDA device current: communicators and reducers belong to the one that is when they
    are made."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


class Streams:
    """The streams of a step on one device. On the CPU there are none, and all of this does nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: Any = None

    def clear(self) -> None:
        self._first = None

    def arrive(self) -> None:
        """A gradient is complete in the order of the current stream."""
        if self._device.type != "cuda":
            return
        now = torch.cuda.current_stream(self._device)
        if self._first is None:
            self._first = now
        elif now != self._first:
            self._first.wait_stream(now)

    def gather(self) -> None:
        """The current stream is to see all gradients that have arrived."""
        if self._first is None:
            return
        now = torch.cuda.current_stream(self._device)
        if now != self._first:
            now.wait_stream(self._first)

    def given(self) -> int:
        """The stream behind which the library reads gradients."""
        return 0 if self._first is None else int(self._first.cuda_stream)

    def now(self) -> int:
        """The stream that is to see results."""
        if self._device.type != "cuda":
            return 0
        return int(torch.cuda.current_stream(self._device).cuda_stream)
