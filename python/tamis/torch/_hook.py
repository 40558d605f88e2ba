# SPDX-License-Identifier: MIT
"""The communication hook of DistributedDataParallel.

DDP compares the annotations of a hook as objects, so this file must not turn them into strings.
"""

from typing import TYPE_CHECKING, Any, Dict, Optional

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._group import Place
from ._parameters import flat
from ._state import SparseState
from ._takeover import Attached, check_groups, innermost, take_over

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import StateOptions


def sparse_hook(
    state: SparseState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Exchange the gradients of a bucket: ddp.register_comm_hook(state, sparse_hook).

    The state's buckets decide the order of the exchange; DDP's buckets only say what is ready, and
    may be rebuilt. The results of all buckets are in place when the hook of the last one returns:
    a step is applied whole or not at all.

    backward() raises errors with their own type.
    """
    buffer = bucket.buffer()
    index = bucket.index()
    future = torch.futures.Future() if buffer.device.type == "cpu" else _device_future(buffer)
    if index == 0:
        state._futures.clear()
    state._futures.append((future, buffer))
    try:
        place = state._cache.get(index)
        if place is None or place.whole.data_ptr() != buffer.data_ptr():
            place = _locate(state, bucket, buffer)
        if index == 0:
            _refuse_half_a_step(state)
            if state._attached is not None:
                state._attached.begin()
        state._mark(place)
        if bucket.is_last():
            state._finish()
            _complete(state)
            _tell_attached(state, lost=False)
    except BaseException as error:
        state._fail(error)
        _complete(state)
        _tell_attached(state, lost=True)
        _raise_after_backward(state, error)
    return future


def attach(
    ddp: DistributedDataParallel,
    density: float = 0.01,
    optimizer: Optional[torch.optim.Optimizer] = None,
    reduce: Optional[str] = None,
    scale: Optional[float] = None,
    match: Optional[float] = None,
    **more: "Unpack[StateOptions]",
) -> SparseState:
    """Let a DistributedDataParallel exchange sparsely: make its state, register the hook.

        state = tamis.torch.attach(ddp, density=0.03, optimizer=adamw)
        ...                                  # the rest of the script stays as it is

    optimizer  the one that steps, before its first step. AdamW, Adam, and SGD with momentum become
               update mode: the library makes their step from each rank's own gradient, the largest
               entries of it travel, and optimizer.step() applies them, with its learning rates and
               weight decay. Plain SGD stays as it is. Others are refused. param_groups, schedulers
               and step(closure) stay the user's
    reduce     "gradient": whatever the optimizer is, it gets sparse means; None: what suits it
    scale, match   as of DistributedOptimizer, in update mode
    more       those of SparseState, among them clip_norm=1.0, scaler=, meter=

    Without `optimizer` the gradients are sparse means, which harm adaptive optimizers: the first
    step warns if the parameters belong to one. With update="adam" and no `optimizer` the gradients
    hold Adam's step, and torch.optim.SGD(params, lr, weight_decay=wd) applies it, with the lr and
    wd of AdamW and no momentum.

    In update mode gradients are steps from backward() to step(): clip_grad_norm_, a GradScaler that
    was not given as `scaler`, and a second backward pass outside ddp.no_sync() raise RuntimeError.

    no_sync(), gradient_as_bucket_view, static_graph and Join work; under Join not in update mode,
    where a rank without inputs makes no step. With find_unused_parameters, if no rank used a
    parameter in a step, DDP leaves its gradient unchanged, so what the residual gave for it in that
    step is not applied.

    Collective: yes, over the process group of `ddp`
    Errors:     as SparseState; TypeError if `ddp` is not a DDP, or the optimizer's rule is unknown
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"attach takes a DistributedDataParallel, not a {type(ddp).__name__}: for a plain loop"
            " use tamis.torch.DistributedOptimizer"
        )
    options: Dict[str, Any] = dict(more)
    taken = None
    if optimizer is not None:
        optimizer = innermost(optimizer)
        if reduce is None and options.get("update") is None and not _is_plain(optimizer):
            reduce = "update"
        taken = take_over(optimizer, reduce, dict(scale=scale, match=match), options)
    elif reduce == "update" or scale is not None or match is not None:
        raise TypeError(
            'reduce="update", scale and match need the optimizer whose rule is taken over: write'
            " tamis.torch.attach(ddp, optimizer=optimizer)"
        )
    state = SparseState(ddp, density, **options)
    state._tell_adaptive = optimizer is None and reduce is None
    if taken is not None:
        check_groups(taken.optimizer, frozenset(state._index))
        state._taken, state._attached = taken, Attached(taken, state)
    ddp.register_comm_hook(state, sparse_hook)
    return state


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a sum of gradients that arrives late is only a step made late."""
    return type(optimizer) is torch.optim.SGD and not any(
        group["momentum"] for group in optimizer.param_groups
    )


def _tell_attached(state: SparseState, lost: bool) -> None:
    """Tell it when DDP has ended the step, and put results into the parameters' gradients."""
    if state._attached is None:
        return
    attached = state._attached
    queue = torch.autograd.Variable._execution_engine.queue_callback
    try:
        queue(lambda: queue(lambda: attached.ended(lost)))  # as in _raise_after_backward
    except RuntimeError:
        attached.ended(lost)


def _device_future(buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    return torch.futures.Future(devices=[buffer.device])


def _locate(state: SparseState, bucket: GradBucket, buffer: torch.Tensor) -> Place:
    """Make the Place of a new bucket: the first step, or DDP has rebuilt its buckets."""
    state.check()
    if buffer.is_sparse:
        raise TypeError(
            f"rank {state.comm.rank}: a gradient is sparse (an embedding with sparse=True), which"
            " is not supported: make it with sparse=False"
        )
    rows = [
        (*state._locate(parameter), gradient)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
        if parameter.numel()
    ]
    groups, segments, tensors = zip(*rows)
    place = Place(groups[0], list(segments), list(tensors), flat(buffer))
    state._cache[bucket.index()] = place
    if bucket.is_last():
        for index in [index for index in state._cache if index > bucket.index()]:
            del state._cache[index]
    return place


def _refuse_half_a_step(state: SparseState) -> None:
    if state._marked:
        raise RuntimeError(
            f"rank {state.comm.rank}: the previous backward pass ended before all gradients were"
            " ready, so the ranks are out of step: begin again from a checkpoint"
        )


def _complete(state: SparseState) -> None:
    for future, buffer in state._futures:
        future.set_result(buffer)
    state._futures.clear()


def _raise_after_backward(state: SparseState, error: BaseException) -> None:
    """Make backward() raise `error`, but only after DDP has ended the step.

    Raised from here, it would leave DDP in the middle of its own step. The next forward pass would
    then fail, so no step could follow a lost one.
    """
    if state._telling:
        return
    queue = torch.autograd.Variable._execution_engine.queue_callback

    def tell() -> None:
        state._telling = False
        raise error

    try:
        # A callback queued now runs before DDP's own; a callback that it queues runs after DDP's.
        queue(lambda: queue(tell))
    except RuntimeError:  # not in a backward pass: in Join, on a rank that has run out of inputs
        raise error from error.__cause__
    state._telling = True
