# SPDX-License-Identifier: MIT
"""The communication hook of DistributedDataParallel.

DDP compares the annotations of a hook as objects, so this file must not turn them into strings.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ._group import Place
from ._parameters import flat
from ._state import SparseState


def sparse_hook(
    state: SparseState, bucket: dist.GradBucket
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
        state._mark(place)
        if bucket.is_last():
            state._finish()
            _complete(state)
    except BaseException as error:
        state._fail(error)
        _complete(state)
        _raise_after_backward(state, error)
    return future


def attach(ddp: DistributedDataParallel, density: float = 0.01, **options: Any) -> SparseState:
    """Let a DistributedDataParallel exchange sparsely: make its state, register the hook.

    options  those of SparseState, among them meter=tamis.energy.Meter(...)

    no_sync(), gradient_as_bucket_view, static_graph and Join work. With find_unused_parameters, if
    no rank used a parameter in a step, DDP leaves its gradient unchanged, so what the residual gave
    for it in that step is not applied.

    With update="adam" the gradients hold Adam's step, and the optimizer is torch.optim.SGD(params,
    lr, weight_decay=wd), with the lr and wd of AdamW and no momentum.

    Collective: yes              Errors: as SparseState; TypeError if `ddp` is not a DDP
    """
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            f"attach takes a DistributedDataParallel, not a {type(ddp).__name__}: for a plain loop"
            " use tamis.torch.DistributedOptimizer"
        )
    if "reduce" in options:
        raise TypeError(
            "a hook does not see the optimizer, so it cannot take over its rule: pass the rule"
            ' itself, update="adam", and step by torch.optim.SGD, whose weight_decay is then that'
            " of AdamW; or use DistributedOptimizer in place of DistributedDataParallel"
        )
    state = SparseState(ddp, density, **options)
    ddp.register_comm_hook(state, sparse_hook)
    return state


def _device_future(buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    return torch.futures.Future(devices=[buffer.device])


def _locate(state: SparseState, bucket: dist.GradBucket, buffer: torch.Tensor) -> Place:
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
        raise error from None
    state._telling = True
