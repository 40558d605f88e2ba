# SPDX-License-Identifier: MIT
"""The communication hook of DistributedDataParallel.

DDP compares the annotations of a hook as objects, so this file must not turn them into strings.
"""

import functools
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional

import torch
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from ._group import Group, Place
from ._kinds import GRADIENT
from ._parameters import flat
from ._sharded import attach_sharded, is_sharded
from ._stepper import GradientStepper
from ._state import SparseState
from ._wrapped import Wrapped

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import StateOptions


class _Attached:
    """What attach registers: a copy of the DistributedDataParallel has no hook, and no state."""

    def __init__(self, state: Optional[SparseState]) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return _Attached, (None,)


def sparse_hook(
    state: SparseState, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Exchange the gradients of a bucket: ddp.register_comm_hook(state, sparse_hook).

    The state's buckets decide the order of the exchange; DDP's buckets only say what is ready, and
    may be rebuilt. The results of all buckets are in place when the hook of the last one returns:
    a step is applied whole or not at all.

    backward() raises errors with their own type.
    """
    if isinstance(state, _Attached):
        attached = state.state
        assert attached is not None  # a copy has no hook
        state = attached
    buffer = bucket.buffer()
    index = bucket.index()
    if buffer.is_sparse:
        _refuse_sparse(state)
    future = torch.futures.Future() if buffer.device.type == "cpu" else _device_future(buffer)
    if index == 0:
        state._futures.clear()
    state._futures.append((future, buffer))
    try:
        state.check()
        hooked = state.hooked
        if hooked is not None:
            if index == 0:
                _refuse_half_a_step(state)
            for place in _places(state, bucket, buffer):
                state.mark(place)
        if bucket.is_last():
            lost = hooked is not None and not (state.finish(hooked) or hooked.late)
            _complete(state)
            _tell_steppers(state, lost)
    except BaseException as error:
        state.fail(error)
        _complete(state)
        _raise_after_backward(state, error)
    return future


def attach(
    ddp: torch.nn.Module,
    density: Optional[float] = None,
    optimizer: Any = None,
    reduce: Optional[str] = None,
    norm_matching: Optional[float] = None,
    across: Any = None,
    **more: "Unpack[StateOptions]",
) -> SparseState:
    """Let a DistributedDataParallel exchange sparsely: make its state, register the hook.

        state = tamis.torch.attach(ddp, optimizer=adamw)
        ...                                  # the rest of the script stays as it is

    optimizer  the one that steps, or a list of those that do. SGD gets the mean of sparse gradients.
               For others each rank makes the step from its own gradient, with the optimizer's own
               state, and in step() the largest entries of what it has changed are exchanged: what
               suits which is a table (docs/python.md). Clipping, schedulers, param_groups,
               GradScaler, step(closure), state_dict stay as in the script. With density 1 the mean
               of whole gradients goes to any of them, as without tamis
    reduce     "gradient": whatever the optimizer is, it gets sparse means; "step": whatever it is,
               its steps are exchanged; None: what suits it
    norm_matching
               norm of what is applied, in units of that of a rank's own step; None: by density
    across     for a module of fully_shard: the mesh, or process group, of the ranks that hold the same
               shards; None: the other dimension of the mesh that it was sharded over
    more       those of SparseState, among them clip_norm=1.0, scaler=, meter=

    A module that fully_shard has sharded over the ranks of each node may stand in the place of
    `ddp`: torch then sums gradients inside the nodes, and shards are exchanged across them.

    Parameters that no given optimizer has get means of sparse gradients, which harm adaptive
    optimizers: the first step warns if they belong to one.

    no_sync(), gradient_as_bucket_view, static_graph work; Join does with gradients, not where steps
    are exchanged, for a rank without inputs makes none. With find_unused_parameters, if no rank used
    a parameter in a step, DDP leaves its gradient unchanged, so what the residual gave for it in
    that step is not applied.

    In tamis.run_elastic, where ranks may be lost or join, `ddp` gets a process group of this rank
    alone, because its own would break with a rank. What it would send there is refused:
    broadcast_buffers with buffers, find_unused_parameters, static_graph, SyncBatchNorm, Join.
    ddp.process_group is then no group of torch.distributed's, and `ddp` cannot be copied or
    pickled; ddp.module can. Where ranks have changed, gradients are None when `train` begins anew.

    Collective: yes, over the process group of `ddp`
    Errors:     as SparseState; TypeError if `ddp` is not a DDP, or for an optimizer that cannot be
                exchanged
    """
    if is_sharded(ddp):
        rest = dict(more, reduce=reduce, norm_matching=norm_matching)
        return attach_sharded(ddp, density, optimizer, across, rest)
    if not isinstance(ddp, DistributedDataParallel):
        raise TypeError(
            "attach takes a DistributedDataParallel or a module of fully_shard, not a"
            f" {type(ddp).__name__}: for a plain loop use tamis.torch.DistributedOptimizer"
        )
    _refuse_second_hook(ddp)
    state = SparseState(
        ddp, density, optimizer=optimizer, reduce=reduce, norm_matching=norm_matching, **more
    )
    state._tell_adaptive = state._tell_adaptive and reduce is None
    for one in state.optimizers:
        if not any(stepper.optimizer is one for stepper in state.steppers):
            state.steppers.append(GradientStepper(one, GRADIENT, state))
    try:
        _register(ddp, state)
    except BaseException:  # torch 1.13 does not say beforehand that it has one
        state._unused.detach()
        state.close()
        raise
    state.wrapped = Wrapped(ddp, _register)
    return state


def _register(ddp: DistributedDataParallel, state: SparseState) -> None:
    ddp.register_comm_hook(_Attached(state), sparse_hook)


def _refuse_second_hook(ddp: DistributedDataParallel) -> None:
    for hook, given in getattr(ddp, "_comm_hooks", ()):
        if isinstance(given, _Attached) and given.state is None:  # of what this is a copy of
            continue
        name = getattr(hook, "__name__", type(hook).__name__)
        raise RuntimeError(
            f"this DistributedDataParallel has a communication hook already ({name}): torch takes"
            " one. Leave that out, or wrap the model anew"
        )


def _tell_steppers(state: SparseState, lost: bool) -> None:
    """Notify those that watch gradients when DDP has ended the step, and put results into them."""
    for stepper in state.steppers:
        if not isinstance(stepper, GradientStepper):
            continue
        queue = torch.autograd.Variable._execution_engine.queue_callback
        ended = functools.partial(stepper.ended, lost)
        try:
            queue(functools.partial(queue, ended))  # as in _raise_after_backward
        except RuntimeError:
            ended()


def _device_future(buffer: torch.Tensor) -> "torch.futures.Future[torch.Tensor]":
    return torch.futures.Future(devices=[buffer.device])


def _refuse_sparse(state: SparseState) -> NoReturn:
    """At once: DistributedDataParallel could not end the step either."""
    error = TypeError(
        f"rank {state.comm.rank}: a gradient is sparse (an embedding with sparse=True), which is not"
        " supported: make it with sparse=False"
    )
    state.fail(error)
    raise error


def _places(state: SparseState, bucket: GradBucket, buffer: torch.Tensor) -> List[Place]:
    """Those of the gradients in a bucket that are exchanged; made anew in the first step, and where
    DDP has rebuilt its buckets."""
    known = state._cache.get(bucket.index())
    if known is not None and known[0] == buffer.data_ptr():
        places: List[Place] = known[1]
        return places
    rows: Dict[Group, List[Any]] = {}
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        if parameter.numel():
            group, segment = state.locate(parameter)
            rows.setdefault(group, []).append((segment, flat(gradient)))
    made = [
        Place(group, [segment for segment, _ in found], [run for _, run in found])
        for group, found in rows.items()
        if state.hooked is not None and group in state.hooked.groups
    ]
    state._cache[bucket.index()] = (buffer.data_ptr(), made)
    if bucket.is_last():
        for index in [index for index in state._cache if index > bucket.index()]:
            del state._cache[index]
    return made


def _refuse_half_a_step(state: SparseState) -> None:
    if state.hooked is not None and state.hooked.under_way:
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
