# SPDX-License-Identifier: MIT
"""Ranks as threads, each with a model on a device of its own, and the same steps on the CPU."""

import gc
import threading

import pytest
import stand_in
import tamis
import tamis.torch
import torch
from stand_in import Stream, current_stream, empty, parameter, put
from tamis import _core, launch

RANKS, NAN = 2, float("nan")
SHAPES = [("a", (40, 50)), ("b", (50,)), ("c", (30, 30))]
MEANS = dict(density=0.1, reduce="gradient")
here = threading.local()


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    stand_in.install(monkeypatch)
    # Ranks are threads, so they find each other through what run() gave them.
    monkeypatch.setattr(launch, "open_carrier", lambda timeout_s=None: here.carriers.pop())
    monkeypatch.setattr(launch, "_check_announced", lambda: None)


def run(body, nranks=RANKS, ncarriers=4):
    """body(rank) on a thread for each rank; all current devices are 0, as after model.to(...)."""
    carriers = [_core.Comm.local(nranks, 20000) for _ in range(ncarriers)]
    results, failures = [None] * nranks, []

    def one(rank):
        here.carriers = [row[rank] for row in carriers]
        try:
            results[rank] = body(rank)
        except BaseException as error:
            failures.append(error)
            for row in carriers:
                try:
                    row[rank].abort()
                except tamis.Error:
                    pass
        finally:
            del here.carriers

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(nranks)]
    gc.collect()  # not meanwhile: a reducer must not be freed on the thread of a stream
    gc.disable()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.enable()
    if failures:
        raise failures[0]
    return results


def weights(dtype=torch.float32):
    draw = torch.Generator().manual_seed(1)
    return [(name, torch.randn(shape, generator=draw).to(dtype)) for name, shape in SHAPES]


def gradients(rank, step, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=draw).to(dtype) for _, shape in SHAPES]


class Model:
    """Parameters of a rank on its own device, and a backward pass that puts gradients there. By
    default means of gradients are exchanged."""

    def __init__(self, rank, dtype=torch.float32, **options):
        self.rank, self.dtype = rank, dtype
        self.rows = [(name, parameter(values, rank)) for name, values in weights(dtype)]
        self.parameters = [p for _, p in self.rows]
        for p in self.parameters:
            p.grad = empty(p.shape, dtype, rank)
        self.inner = options.pop("inner", torch.optim.SGD)(self.parameters, lr=0.1)
        options = dict(dict(MEANS, transport="nccl", timeout_s=20), **options)
        self.opt = tamis.torch.DistributedOptimizer(self.inner, self.rows, **options)

    def backward(self, step, streams=(None,), factor=1.0):
        """Gradients come late, in turn on the streams, as those of a forward pass on them."""
        given = gradients(self.rank, step, self.dtype)
        for i in reversed(range(len(given))):
            chosen = streams[i % len(streams)] or current_stream(self.rank)
            p = self.parameters[i]
            with stand_in.stream(chosen):
                if p.grad is None:  # where ranks have changed
                    p.grad = empty(p.shape, self.dtype, self.rank)
                put(p.grad, given[i] * factor)
                if self.opt._targets:
                    self.opt._arrived(i)
            if not self.opt._targets:  # at the end of backward() torch has streams wait
                current_stream(self.rank).wait_stream(chosen)

    def values(self):
        return torch.cat([p.cpu().float().view(-1) for p in self.parameters])


def host(steps, dtype=torch.float32, factor=lambda step: 1.0, inner=torch.optim.SGD, **options):
    """What the same steps give on the CPU."""

    def body(rank):
        rows = [(name, torch.nn.Parameter(values)) for name, values in weights(dtype)]
        opt = tamis.torch.DistributedOptimizer(
            inner([p for _, p in rows], lr=0.1), rows, comm=here.carriers.pop(),
            **dict(MEANS, **options),
        )
        for step in range(steps):
            for (_, p), g in zip(rows, gradients(rank, step, dtype)):
                p.grad = g * factor(step)
            opt.step()
        opt.close()
        return torch.cat([p.detach().float().view(-1) for _, p in rows])

    return run(body)


def same(found, wanted):
    for rank, (one, other) in enumerate(zip(found, wanted)):
        assert torch.equal(one, other), f"rank {rank}: {(one != other).sum()} parameters differ"


def steps_on(forward, ends, steps=3, **options):
    """Each step: gradients on streams `forward`, step() on stream `ends`."""

    def body(rank):
        model = Model(rank, **options)
        mine = [Stream(rank) for _ in range(forward)]
        for step in range(steps):
            model.backward(step, mine)
            end = Stream(rank) if ends else mine[0]
            if not model.opt._targets:  # what the optimizer itself reads, the caller orders
                end.wait_stream(current_stream(rank))
            with stand_in.stream(end):
                model.opt.step()
                for one in mine:
                    one.wait_stream(end)  # as a caller must, for the next forward pass
        with stand_in.stream(end):
            found = model.values()
            model.opt.close()
        return found

    return run(body)


class Scaler:
    """As much of a GradScaler as a state asks for."""

    def get_scale(self):
        return 8.0

    def is_enabled(self):
        return True


class Bucket:
    """What DDP gives a hook."""

    def __init__(self, number, last, parameters, buffer):
        self.number, self.last, self.of, self.whole = number, last, parameters, buffer

    def index(self):
        return self.number

    def is_last(self):
        return self.last

    def buffer(self):
        return self.whole

    def parameters(self):
        return self.of

    def gradients(self):
        runs = torch.split(self.whole, [p.numel() for p in self.of])
        return [run.view(p.shape) for run, p in zip(runs, self.of)]
