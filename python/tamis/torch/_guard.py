# SPDX-License-Identifier: MIT
"""Checks that no gradient shows: the ranks got the same input, and something was exchanged."""

import sys
import warnings
from typing import Iterable, List, Sequence, Tuple

import torch

from .. import _core, launcher
from ._parameters import flat


def _differ(error: _core.Error, sentence: str, remedy: str) -> _core.Error:
    """`error` of check_equal, reworded to say what differs."""
    if error.status != "TAMIS_E_MISMATCH":
        return error
    told = str(error).replace(error.remedy, "").strip(". ")
    made = launcher.error(f"{sentence} ({told}).", remedy, error.status)
    made.__cause__ = error
    return made


def check_options(comm: _core.Comm, options: str) -> None:
    """Compare options that reducers do not see, but that decide when ranks exchange. Collective."""
    if comm.nranks == 1:
        return
    try:
        _core.check_equal(comm, options.encode())
    except _core.Error as error:
        raise _differ(
            error,
            f"Rank {comm.rank} was given {options}, which is not the same on all ranks",
            "Give all ranks the same options.",
        )


def check_parameters(
    rows: Iterable[Tuple[str, torch.Tensor]], comm: _core.Comm, step: int
) -> None:
    """Compare named tensors over all ranks: one all-gather, and more where there is a difference.

    Collective: yes, between steps
    Errors:     `Error` MISMATCH, on all ranks, naming the first that differs, and the ranks
    """
    names, digests = [], []
    for name, tensor in rows:
        names.append(name)
        digests.append(_core.digest(flat(tensor.detach()).cpu()).to_bytes(8, "little"))
    try:
        _core.check_equal(comm, b"".join(digests))
    except _core.Error as error:
        if error.status == "TAMIS_E_MISMATCH":
            _name_parameter(names, digests, comm, step)
        raise


def _name_parameter(names: List[str], digests: List[bytes], comm: _core.Comm, step: int) -> None:
    for name, digest in zip(names, digests):
        try:
            _core.check_equal(comm, digest)
        except _core.Error as error:
            raise _differ(
                error,
                f"Before step {step} parameter {name!r} is not the same on all ranks",
                "Begin with equal parameters, by tamis.torch.broadcast_parameters(model,"
                " state.comm); if they were equal, something changes them on one rank only."
                " check_every=0 leaves this check out.",
            )


def check_rates(
    optimizers: Sequence[torch.optim.Optimizer], comm: _core.Comm, step: int
) -> None:
    """Compare learning rates and weight decays, by which each rank applies what all have chosen."""
    rows = [
        (float(group["lr"]), float(group.get("weight_decay", 0.0)))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]
    try:
        _core.check_equal(comm, repr(rows).encode())
    except _core.Error as error:
        raise _differ(
            error,
            f"Before step {step} the learning rates and weight decays of rank {comm.rank} are"
            f" {rows}, which is not so on all ranks",
            "Step schedulers alike on all ranks, and feed them what all ranks have in common.",
        )


def tell_unused() -> None:
    """Warn about a state that made no step: each rank trained alone, or all of them densely."""
    if getattr(sys, "last_value", None) is not None:
        return  # an exception ends the process and says why
    warnings.warn(
        "a SparseState of tamis.torch ends after 0 steps, so nothing was exchanged: backward() must"
        " go through the DistributedDataParallel that it is attached to, by attach or by"
        " ddp.register_comm_hook(state, sparse_hook); or step() must be that of the"
        " DistributedOptimizer, not that of the optimizer inside",
        RuntimeWarning,
        stacklevel=2,
    )
