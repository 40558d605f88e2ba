# SPDX-License-Identifier: MIT
"""torch's own DistributedDataParallel over ranks that are threads: gloo carries what DDP itself
sends, and its hook gets buckets in the memory of a fake device.

torch takes the parameters for tensors of the host, so its buckets lie there. Each has a twin on the
device, into which it is copied on the current stream. When the step ends the results are copied
back, and DDP goes on with them as with those of any hook.
"""

import datetime

import pytest
import stand_in
import tamis.torch
import torch
import torch.distributed as dist
from rig import Bucket, RANKS, here, run
from stand_in import Future, current_stream, empty, parameter, put
from torch.nn.parallel import DistributedDataParallel

MSE = torch.nn.functional.mse_loss


@pytest.fixture(autouse=True)
def world(monkeypatch):
    """Groups of threads are not known to torch.distributed: the job has as many ranks as each."""
    size = lambda group=None: RANKS if group is None else group.size()
    monkeypatch.setattr(stand_in, "LATE_S", 0.004)  # DDP has many buckets
    monkeypatch.setattr(dist, "get_world_size", size)
    monkeypatch.setattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES", 1)
    monkeypatch.setattr(dist, "get_rank", lambda group: group.rank())


class OnDevice(DistributedDataParallel):
    """A DDP whose model is on a fake device."""

    def __init__(self, model, **options):
        every = list(model.parameters())
        for one in every:  # a parameter of another class than torch's looks uninitialized to DDP
            one._is_param = False
        super().__init__(model, **options)
        for one in every:
            one._is_param = True
        self.place, self.device = self.device, torch.device("cpu")  # there Join counts ranks
        self.twins, self.waiting = {}, []

    def register_comm_hook(self, state, hook):
        super().register_comm_hook(None, lambda _, bucket: self._give(state, hook, bucket))

    def _give(self, state, hook, bucket):
        whole, ours = bucket.buffer(), Future()
        if whole.data_ptr() not in self.twins:  # which hold it, so that its address stays its own
            twin = empty(whole.shape, whole.dtype, self.place)
            self.twins[whole.data_ptr()] = twin, whole
        twin = self.twins[whole.data_ptr()][0]
        put(twin, whole.clone())
        given = Bucket(bucket.index(), bucket.is_last(), bucket.parameters(), twin)
        self.waiting.append((hook(state, given), whole, ours))
        if bucket.is_last():
            for future, whole, one in self.waiting:
                whole.copy_(future.wait().cpu())
                one.set_result(whole)
            self.waiting.clear()
        return ours


class Net(torch.nn.Module):
    """Two layers; `index` is that of a device, None the host."""

    def __init__(self, index, second=torch.float32):
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        for name, shape in [("w1", (40, 12)), ("b1", (40,)), ("w2", (5, 40)), ("b2", (5,))]:
            value = 0.3 * torch.randn(shape, generator=draw)
            value = value.to(second if name == "w2" else torch.float32)
            one = torch.nn.Parameter(value) if index is None else parameter(value, index)
            setattr(self, name, one)

    def forward(self, x):
        x = torch.tanh(torch.nn.functional.linear(x, self.w1, self.b1))
        return torch.nn.functional.linear(x, self.w2.float(), self.b2).as_subclass(torch.Tensor)


def batch(rank, step):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn((6, 12), generator=draw), torch.randn((6, 5), generator=draw)


class Rank:
    """A rank that trains with DDP: on its own device, or on the host, which gives the bits."""

    def __init__(self, rank, group, device, **options):
        make = options.pop("inner", lambda every: torch.optim.SGD(every, lr=0.1))
        second, wrap = options.pop("second", torch.float32), options.pop("wrap", {})
        self.rank, self.device = rank, device
        self.net = Net(rank if device else None, second)
        self.every = list(self.net.parameters())
        kind = OnDevice if device else DistributedDataParallel
        wrap = dict(dict(bucket_cap_mb=1e-6), **wrap)  # a bucket for each parameter
        self.ddp = kind(self.net, process_group=group, **wrap)
        self.opt = make(self.every)
        if options.pop("given", False):
            options["optimizer"] = self.opt
        if device:
            options = dict(dict(transport="nccl", timeout_s=20), **options)
        else:
            kinds = len({p.dtype for p in self.every})
            options["comm"] = [here.carriers.pop() for _ in range(kinds)]
        self.state = tamis.torch.attach(self.ddp, **dict(dict(density=0.1), **options))

    def clear(self):
        self.opt.zero_grad(set_to_none=True)

    def quiesce(self):
        """What torch does with gradients it does at once, as the host does."""
        if self.device:
            current_stream(self.rank).synchronize()

    def backward(self, step, factor=1.0):
        x, y = batch(self.rank, step)
        self.quiesce()
        (MSE(self.ddp(x), y) * factor).backward()

    def values(self):
        return torch.cat([p.detach().cpu().float().view(-1) for p in self.every])

    def end(self):
        """Parameters, and the bits of the residual."""
        found = torch.cat([self.values(), torch.tensor([self.state.residual_norm()])])
        self.state.close()
        return found


def train(one, steps=4):
    for step in range(steps):
        one.clear()
        one.backward(step)
        one.opt.step()
    return one.end()


# Groups of gloo, by number of ranks and rank. They are never freed: that waits for their threads
# with the lock of the interpreter held, and these may need it to free the last tensor they carried.
_groups, _lost = {}, []
_store = dist.HashStore()


def group_of(rank, number):
    if (number, rank) not in _groups:
        store = dist.PrefixStore(f"{len(_lost)}/{number}", _store)
        made = dist.ProcessGroupGloo(store, rank, number, datetime.timedelta(seconds=20))
        _groups[number, rank] = made
    return _groups[number, rank]


def on(body, device, number=RANKS, **options):
    """body(a Rank) on each of the ranks."""
    try:
        return run(lambda rank: body(Rank(rank, group_of(rank, number), device, **options)), number)
    except BaseException:  # who knows what is still under way in them
        _lost.append(dict(_groups))
        _groups.clear()
        raise


def both(body, **options):
    """What it gives on devices and on the host."""
    return on(body, True, **options), on(body, False, **options)
