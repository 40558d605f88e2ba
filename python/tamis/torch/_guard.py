# SPDX-License-Identifier: MIT
"""Checks that no gradient shows: the ranks got the same input, and something was exchanged."""

import hashlib
import struct
import sys
import warnings
from typing import Any, Iterable, List, Sequence, Tuple, Union

import torch

from .. import _core, launcher
from ._parameters import DTYPES, flat, local


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


def _rates(optimizers: Sequence[torch.optim.Optimizer]) -> List[Tuple[float, float]]:
    """By which each rank applies what all have chosen: rate and weight decay of each param_group."""
    return [
        (float(group["lr"]), float(group.get("weight_decay", 0.0)))
        for optimizer in optimizers
        for group in optimizer.param_groups
    ]


def _at_hand(lr: Union[float, torch.Tensor]) -> float:
    return 0.0 if isinstance(lr, torch.Tensor) and lr.device.type != "cpu" else float(lr)


def agreed_hash(optimizers: Sequence[torch.optim.Optimizer], more: Sequence[float] = ()) -> int:
    """For tamis_step.agreed: a hash of learning rates, weight decays, and what else is given. It does
    not wait for rates on a device; check_rates does."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [x for g in groups for x in (_at_hand(g["lr"]), float(g.get("weight_decay") or 0.0))]
    data = struct.pack(f"{len(rates)}d{len(more)}d", *rates, *more)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def named(
    error: _core.Error, optimizers: Sequence[torch.optim.Optimizer], comm: _core.Comm
) -> _core.Error:
    """`error`, and if ranks differ in what `agreed_hash` gives, the rates of this one."""
    if "rates or tamis_step.agreed" not in str(error) or not optimizers:
        return error
    rates = ", ".join(f"{lr:.9g} (weight decay {decay:.9g})" for lr, decay in _rates(optimizers))
    remedy = "Step schedulers equally on all ranks, and feed them what all ranks have in common."
    made = launcher.error(
        f"{error} If it is the learning rates: those of rank {comm.rank} are {rates}. Or a gradient"
        " was None on one rank alone, so its parameter would decay on the others.",
        remedy,
        error.status,
    )
    made.lost, made.__cause__ = error.lost, error
    return made


def check_rates(
    optimizers: Sequence[torch.optim.Optimizer], comm: _core.Comm, step: int
) -> None:
    """Compare learning rates and weight decays, before anything is exchanged."""
    rows = _rates(optimizers)
    try:
        _core.check_equal(comm, repr(rows).encode())
    except _core.Error as error:
        raise _differ(
            error,
            f"Before step {step} the learning rates and weight decays of rank {comm.rank} are"
            f" {rows}, which is not so on all ranks",
            "Step schedulers equally on all ranks, and feed them what all ranks have in common.",
        )


def check_moments(
    optimizers: Sequence[torch.optim.Optimizer], comm: _core.Comm, step: int
) -> None:
    """Compare the states of optimizers that step by means: those that have stepped by a rank's own
    gradient before differ, and replicas would drift apart."""
    digests = [
        _core.digest(flat(local(value).detach()).cpu()).to_bytes(8, "little")
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        for _, value in sorted(_items(optimizer.state.get(parameter)))
        if isinstance(value, torch.Tensor) and value.dtype in DTYPES and value.numel()
    ]
    try:
        _core.check_equal(comm, b"".join(digests))
    except _core.Error as error:
        raise _differ(
            error,
            f"Before step {step} the optimizer's state is not the same on all ranks, as after steps by"
            " each rank's own gradient",
            "Give all ranks that of one, by optimizer.load_state_dict, or make a new optimizer.",
        )


def _items(own: Any) -> Iterable[Tuple[str, Any]]:
    return own.items() if isinstance(own, dict) else ()


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
