# SPDX-License-Identifier: MIT
"""A DistributedDataParallel that outlives ranks.

What DDP sends over its own process group, which a dead rank breaks (torch 1.13 to 2.15):

    when it is made       shapes, parameters and buffers of rank 0
    second forward pass   the order of its buckets, chosen anew by rank 0
    each forward pass     buffers of rank 0                         broadcast_buffers
    each backward pass    which parameters were used                find_unused_parameters
    first backward pass   the same                                  static_graph
    each pass             who still has inputs                      Join

The hook exchanges gradients by itself, in an order that does not depend on DDP's buckets. So before
a run that may lose ranks DDP gets a group of this rank alone, to which rank 0 is itself; what would
then differ from rank to rank is refused.

On recovery it begins anew: a backward pass that ended in the middle leaves it unable to begin one.
"""

import weakref
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from ._steps import Steps

Register = Callable[[DistributedDataParallel, Any], None]


class _Alone(dist.ProcessGroup):
    """A process group of one rank. It knows what DDP needs once it was made."""

    def __init__(self) -> None:
        super().__init__(0, 1)

    def __repr__(self) -> str:  # which torch says where it is asked to Join
        return "<one rank: a DistributedDataParallel in run_elastic, where Join cannot be used>"

    def size(self) -> int:
        return 1

    def getBackendName(self) -> str:
        return "alone"

    def broadcast(self, *_: Any, **__: Any) -> Any:
        done: "torch.futures.Future[List[torch.Tensor]]" = torch.futures.Future()
        done.set_result([])
        return c10d._create_work_from_future(done)

    def allreduce(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(
            "DistributedDataParallel reduces something beside gradients (Join does), which it"
            " cannot in a run that may lose ranks: leave it out, or pass run_elastic"
            " max_recoveries=0"
        )


_alone: List[_Alone] = []  # one for all, which lives as long as the process: C++ calls it


class Wrapped:
    """The DistributedDataParallel that a state is attached to."""

    def __init__(self, ddp: DistributedDataParallel, register: Register) -> None:
        """register: put the hook into it."""
        self._ddp = weakref.ref(ddp)  # it holds the state
        self._register = register

    def check(self, here: str) -> DistributedDataParallel:
        """Errors: RuntimeError, ValueError for what cannot go on when ranks are lost"""
        ddp = self._ddp()
        if ddp is None:
            raise RuntimeError(f"{here}the DistributedDataParallel of this state is gone")
        for found, words in _refused(ddp):
            if found:
                raise ValueError(
                    f"{here}this DistributedDataParallel cannot go on when ranks are lost: {words},"
                    " or give run_elastic max_recoveries=0 and let a launcher start all ranks again"
                )
        return ddp

    def begin_anew(self, state: "Steps") -> None:
        """Buckets, counters and hook are new ones, over a group of this rank alone. The object, and
        what a script has set in it, stay."""
        ddp: Any = self.check(f"rank {state.comm.rank}: ")
        if not _alone:
            _alone.append(_Alone())
        # As torch makes what a copy lacks that was pickled: all that belongs to the group.
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
        ddp.process_group = _alone[0]
        ddp._ddp_init_helper(parameters, sparse, names, False)
        ddp._has_rebuilt_buckets = False
        getattr(ddp, "_comm_hooks", []).clear()
        self._register(ddp, state)
        state.forget_places()


def _refused(ddp: DistributedDataParallel) -> List[Tuple[bool, str]]:
    ignored = ddp.parameters_to_ignore
    buffers = [name for name, _ in ddp.module.named_buffers() if name not in ignored]
    option = "forward_sync_buffers" if hasattr(ddp, "forward_sync_buffers") else "broadcast_buffers"
    sums = any(isinstance(part, torch.nn.SyncBatchNorm) for part in ddp.module.modules())
    return [
        (
            bool(ddp.broadcast_buffers and buffers),
            f"in each pass it copies buffers ({', '.join(buffers[:1])}) from rank 0: pass it"
            f" {option}=False",
        ),
        (
            ddp.find_unused_parameters,
            "it asks all ranks which parameters were used: pass it find_unused_parameters=False",
        ),
        (
            ddp.static_graph,
            "it asks all ranks which parameters are used: pass it static_graph=False",
        ),
        (
            bool(getattr(ddp, "_delay_all_reduce_params", None)),
            "it reduces some gradients by itself: leave delay_all_reduce_named_params out",
        ),
        (sums, "SyncBatchNorm sums over all ranks by itself: take BatchNorm"),
    ]


def wrapped_of(state: "Steps", here: str) -> Optional[Wrapped]:
    """None: no DistributedDataParallel calls the state. Errors: ValueError"""
    if state.by_ddp and state.wrapped is None:
        raise ValueError(
            f"{here}this state goes on with other ranks only where tamis.torch.attach has made it,"
            " for its hook is put into the DistributedDataParallel anew; or give run_elastic"
            " max_recoveries=0"
        )
    return state.wrapped
