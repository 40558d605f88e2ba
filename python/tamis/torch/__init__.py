# SPDX-License-Identifier: MIT
"""Sparse gradient exchange for PyTorch.

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = tamis.torch.attach(ddp, optimizer=adamw)   # the rest of the loop stays
    ...
    torch.save({"model": ddp.state_dict(), "tamis": state.state_dict()}, f"rank{rank}.pt")

For loops without DDP there are DistributedOptimizer and, for local steps, LocalSGD. torch 1.13 or later.
"""

from ._comm import broadcast_parameters, carrier, replicas_identical
from ._hook import attach, sparse_hook
from ._local import DiLoCo, LocalSGD, SparseLoCo
from ._optimizer import DistributedOptimizer
from ._state import SparseState

__all__ = [
    "DiLoCo",
    "DistributedOptimizer",
    "LocalSGD",
    "SparseLoCo",
    "SparseState",
    "attach",
    "broadcast_parameters",
    "carrier",
    "replicas_identical",
    "sparse_hook",
]
