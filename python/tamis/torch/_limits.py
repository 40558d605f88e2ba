# SPDX-License-Identifier: MIT
"""Norms of a rank's own gradient: clipped, or so large that all ranks leave the step out."""

import math
from typing import Optional, Sequence, Tuple

import torch

from .. import _core
from ._parameters import local


class Limits:
    """clip_norm and skip_norm of a SparseState. False if there are none."""

    def __init__(
        self,
        clip_norm: Optional[float],
        skip_norm: Optional[float],
        comm: _core.Comm,
        device: torch.device,
    ) -> None:
        self._clip_norm = None if clip_norm is None else float(clip_norm)
        self._skip_norm = None if skip_norm is None else float(skip_norm)
        self._device = device
        self._sum: Optional[_core.Reducer] = None
        self.begin(comm)

    def begin(self, comm: _core.Comm) -> None:
        """Ask the ranks of this communicator, from now on. Collective."""
        self.close()
        if self._skip_norm is not None and comm.nranks > 1:
            one = _core.Layout([("skip", 1)])
            kind = self._device.type
            self._sum = _core.Reducer(
                comm, one, scheme="dense", density=1.0, op="sum", device=kind
            )

    def __bool__(self) -> bool:
        return self._clip_norm is not None or self._skip_norm is not None

    @torch.no_grad()
    def heed(
        self, gradients: Sequence[torch.Tensor], scale: float, scaled: bool
    ) -> Tuple[float, bool]:
        """The norm of this rank's gradient, which is `scale` times what is given, and whether all
        ranks leave the step out; else it is clipped. What is not finite stays so.

        scaled  a GradScaler looks after NaN and Inf
        """
        norms = [local(one).float().norm() for one in gradients]
        norm = float(torch.stack(norms).norm()) * scale if norms else 0.0
        if self._skips(norm, scaled):
            return norm, True
        if self._clip_norm is not None and self._clip_norm < norm < math.inf:
            for gradient in gradients:
                gradient.mul_(self._clip_norm / norm)
        return norm, False

    def _skips(self, norm: float, scaled: bool) -> bool:
        """Whether the norm of any rank is too large. Collective."""
        if self._skip_norm is None:
            return False
        own = norm > self._skip_norm if math.isfinite(norm) else not scaled
        if self._sum is None:
            return own
        said = torch.full((1,), float(own), device=self._device)
        stream = 0
        if self._device.type == "cuda":
            stream = int(torch.cuda.current_stream(self._device).cuda_stream)
        self._sum.start(said, 1.0, stream)
        self._sum.wait()
        return bool(said.item() > 0.0)

    def close(self) -> None:
        if self._sum is not None:
            self._sum.close()
        self._sum = None
