# SPDX-License-Identifier: MIT
"""A small training with convolutions in DistributedDataParallel, whose ranks are killed, and what
it must end with.

    python3 ddp_support.py FOLDER KIND DEATHS WHERE     a rank over env://
    python3 ddp_support.py FOLDER KIND DEATHS NRANKS    what it must be: threads, which leave

KIND    AdamW: its steps are exchanged; means: SGD by means of gradients
DEATHS  STEP:RANK[,STEP:RANK...], ranks as numbered at the begin
WHERE   see Killed
"""

import os
import pathlib
import signal
import sys
import time

import numpy as np
import torch
import torch.distributed as dist

import tamis
import tamis.torch
from elastic_support import on_ranks

STEPS, DENSITY = 12, 0.1


def network(norm):
    torch.manual_seed(3)
    parts = [torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3)]
    if norm:
        parts.insert(1, torch.nn.BatchNorm2d(4))
    return torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.Linear(64, 3))


def inner(kind, model):
    if kind == "AdamW":
        return torch.optim.AdamW(model.parameters(), 0.01)
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.5)


def loss(model, state):
    number = (state.step * 8 + state.comm.rank) * 8 + state.comm.nranks
    x = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(number))
    return (model(x) - x.mean((1, 2, 3))[:, None]).square().mean()


def options(kind):
    return {"density": DENSITY, "check_every": 1, "reduce": "gradient" if kind == "means" else None}


def elastic_state(kind, comm, reducer, model, optimizer):
    """With BatchNorm, statistics are each rank's own."""
    shared, own = {"model": model}, {}
    if kind == "AdamW":
        shared = {name: p.detach() for name, p in model.named_parameters()}
        own = dict(model.named_buffers())
    shared["optimizer"] = optimizer
    return tamis.ElasticState(comm, shared, own=own, reducers=[reducer])


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()


# ---------------------------------------------------------------------------- ranks that are killed


def wait_for_all(folder, state):
    """All have made the step before: a rank that had not would go back one more."""
    me, nranks, step = state.comm.rank, state.comm.nranks, state.step
    pathlib.Path(folder, f"at-{nranks}-{step}-{me}").touch()
    while not all(pathlib.Path(folder, f"at-{nranks}-{step}-{r}").exists() for r in range(nranks)):
        time.sleep(0.01)


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


class Killed:
    """Before a step of `deaths` its rank dies, when all have made the one before.

    where  "before" the forward pass; "within" the backward pass, after some gradients have left; or
           "hook": before, and the others find out in the middle of a backward pass, in a hook of
           their own, while DDP waits for further gradients
    """

    def __init__(self, folder, deaths, where):
        self.folder, self.deaths, self.where = folder, deaths, where

    def __call__(self, state, model):
        for step, rank in self.deaths:
            if state.step == step and rank == dist.get_rank():
                wait_for_all(self.folder, state)
                self._die(model)
            elif state.step == step and len(state.gone) == self.deaths.index((step, rank)):
                wait_for_all(self.folder, state)
                if self.where == "hook":
                    self._find_out(state, model)

    def _die(self, model):
        if self.where != "within":
            die()
        next(model.parameters()).register_hook(die)  # the last gradient of all

    def _find_out(self, state, model):
        def check(*_):
            handle.remove()
            tamis.check_equal(state.comm, b"here")

        handle = model.module[-1].weight.register_hook(check)


def run(folder, kind, deaths, where):
    dist.init_process_group("gloo")
    me = dist.get_rank()
    model = network(kind == "AdamW")
    optimizer = inner(kind, model)
    ddp = torch.nn.parallel.DistributedDataParallel(
        model, broadcast_buffers=False, bucket_cap_mb=25 if where == "hook" else 1e-3
    )
    sparse = tamis.torch.attach(ddp, optimizer=optimizer, timeout_s=60, **options(kind))
    assert sparse.comm.transport == "ucx"
    state = elastic_state(kind, sparse.comm, sparse, model, optimizer)
    killed, first = Killed(folder, deaths, where), ddp.process_group

    def train(state):
        while state.step < STEPS:
            killed(state, ddp)
            loss(ddp, state).backward()
            optimizer.step()
            optimizer.zero_grad()  # here, so that what a failed step leaves would be added to
            state.step += 1
            state.commit()

    tamis.run_elastic(train, state)
    assert ddp.process_group is not first and ddp.process_group.size() == 1
    np.savez(f"{folder}/rank{me}.npz", w=flat(model), nranks=state.comm.nranks, steps=sparse.steps)
    print("well", flush=True)
    os._exit(0)  # torch's store may have died with rank 0


# --------------------------------------------------------------------------------- what it must be


class Plain:
    """A rank that is a thread, without DistributedDataParallel."""

    def __init__(self, kind, comm, model):
        self.model, self.comm, self.step = model, comm, 0
        self.optimizer = tamis.torch.DistributedOptimizer(
            inner(kind, model), model, comm=comm, **options(kind)
        )

    def train(self, last):
        while self.step < last:
            self.optimizer.zero_grad()
            loss(self.model, self).backward()
            self.optimizer.step()
            self.step += 1

    def leave(self, left):
        self.comm = self.comm.shrink(left)
        self.optimizer.migrate(self.comm)


def on_all(count, work):
    out = on_ranks(count, work)
    failed = [one for one in out if isinstance(one, BaseException)]
    if failed:
        raise failed[0]
    return out


def reference(kind, nranks, deaths):
    """Parameters of a run whose ranks leave before these steps."""
    comms = tamis.Comm.local(nranks, 60000)
    models = [network(kind == "AdamW") for _ in comms]  # torch's generator is one for all threads
    runs = on_all(nranks, lambda rank: Plain(kind, comms[rank], models[rank]))
    for last, rank in [*deaths, (STEPS, None)]:
        on_all(len(runs), lambda at: runs[at].train(last))
        left = [at for at, run in enumerate(runs) if run.model is not models[rank or 0]]
        if rank is not None:
            runs = [runs[at] for at in left]
            on_all(len(runs), lambda at: runs[at].leave(left))
    return flat(runs[0].model)


def main(folder, kind, deaths, where):
    deaths = [tuple(map(int, one.split(":"))) for one in deaths.split(",")]
    if where.isdigit():
        np.save(f"{folder}/reference.npy", reference(kind, int(where), deaths))
    else:
        run(folder, kind, deaths, where)


if __name__ == "__main__":
    main(*sys.argv[1:])
