# SPDX-License-Identifier: MIT
"""Models, loops and verdicts that the scenarios share. Only for these modules: import *."""

import copy
import importlib
import json
import logging
import math
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

import tamis
import tamis.torch

SCENARIOS = {}
SAID = []  # warnings, and lines of the log
BROKEN = False
LR = torch.optim.lr_scheduler


class Absent(Exception):
    """This torch does not have it, or refuses it itself."""


class Wrong(Exception):
    """What a scenario saw is not as it should be."""


def scenario(function):
    name = function.__name__.strip("_").replace("_", " ")
    assert name not in SCENARIOS
    SCENARIOS[name] = function
    return function


def expect(condition, words):
    if not condition:
        raise Wrong(words)


# ------------------------------------------------------------------------------ models, data, loops


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(step, rank=None, size=16):
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 8, generator=generator)
    teacher = torch.randn(8, 4, generator=torch.Generator().manual_seed(7))
    return x, x @ teacher


def loss_of(model, step, rank=None, size=16):
    x, y = batch(step, rank, size)
    return F.mse_loss(model(x).float(), y)


def measure(model):
    was = model.training
    model.eval()
    with torch.no_grad():
        loss = loss_of(model, 10**6, rank=0, size=64).item()
    model.train(was)
    return loss


def plain(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def attach(ddp, optimizer=None, density=0.2, **options):
    options.setdefault("timeout_s", 20)
    return tamis.torch.attach(ddp, density, optimizer=optimizer, **options)


class Stub:
    """With --broken: what attach returns where nothing is exchanged."""

    def __getattr__(self, name):
        return lambda *_, **__: None


def own_gradients(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def break_all():
    def attach_nothing(ddp, *_, **__):
        ddp.register_comm_hook(None, own_gradients)
        return Stub()

    tamis.torch.attach = attach_nothing
    for name in ("DistributedOptimizer", "LocalSGD", "DiLoCo", "SparseLoCo"):
        setattr(tamis.torch, name, lambda optimizer, *_, **__: optimizer)


# ----------------------------------------------------------------------------------------- verdicts


def finite(model):
    return all(bool(torch.isfinite(p).all()) for p in model.parameters())


def same(model):
    """Bits, without the library: on all ranks."""
    own = [p.detach().reshape(-1).contiguous().view(torch.uint8) for p in model.parameters()
           if p.numel()]
    mine = torch.cat(own).to(torch.int64)
    rooted = mine.clone()
    dist.broadcast(rooted, 0)
    differ = torch.tensor([float((mine != rooted).any())])
    dist.all_reduce(differ, dist.ReduceOp.MAX)
    equal = differ.item() == 0.0
    expect(BROKEN or equal == tamis.torch.replicas_identical(model), "replicas_identical lies")
    return equal


def learned(model, before, dense, sparse, share):
    words = f"loss {before:.3g} -> {sparse:.3g}, dense {dense:.3g}"
    if not finite(model):
        return "silent", "NaN or Inf in parameters; " + words
    if not same(model):
        return "silent", "replicas differ; " + words
    if not sparse <= before - share * (before - dense):
        return "silent", "did not learn; " + words
    return "right", words


def pair(make, model=net, loop=plain, steps=40, share=0.6, ddp=None, **options):
    """A loop over plain DDP, and the same with attach."""
    losses = []
    for sparse in (False, True):
        try:
            wrapped = DDP(model(), **(ddp or {}))
            before = measure(wrapped.module)
            optimizer = make(wrapped)
            state = attach(wrapped, optimizer, **options) if sparse else None
            if loop is not plain:
                loop.state = state
            loop(wrapped, optimizer, steps)
        except (RuntimeError, ValueError, TypeError, AssertionError) as error:
            if sparse:
                raise
            raise Absent(f"dense: {type(error).__name__}: {error}")
        losses.append(measure(wrapped.module))
    if state is not None and share > 0 and not BROKEN:
        expect(state.steps > 0, "no step was exchanged")
    return learned(wrapped.module, before, *losses, share)


def ddp_of(model):
    try:
        return DDP(model)
    except RuntimeError as error:
        raise Absent(f"DDP: {error}")


def said(pattern):
    return any(re.search(pattern, line) for line in SAID)


def refusal(call, pattern):
    """What `call` raises must be words like these, on each rank."""
    try:
        call()
    except Exception as error:
        expect(re.search(pattern, str(error)), f"other words: {type(error).__name__}: {error}")
        return "refused", str(error)
    return "silent", "nothing was raised"


def optimizer_of(name, **options):
    if not hasattr(torch.optim, name):
        raise Absent(f"no torch.optim.{name}")
    kind = getattr(torch.optim, name)
    return lambda wrapped: kind(wrapped.parameters(), **copy.deepcopy(options))


def sgd(lr=0.1, **options):
    return lambda wrapped: torch.optim.SGD(wrapped.parameters(), lr, **options)


def adamw(lr=0.02, **options):
    return lambda wrapped: torch.optim.AdamW(wrapped.parameters(), lr, **options)


# ------------------------------------------------------------------ what several tables need


def bare(make, wrap, loop=plain, steps=40, share=0.6, end=None):
    """Without DDP, beside a dense run with it."""
    wrapped = DDP(net())
    before, dense = measure(wrapped.module), make(wrapped)
    plain(wrapped, dense, steps)
    reference = measure(wrapped.module)
    model = net()
    made = wrap(make(model), model)
    loop(model, made, steps)
    if end is not None and not BROKEN:
        end(made)
    return learned(model, before, reference, measure(model), share)


def distributed(**options):
    return lambda o, m: tamis.torch.DistributedOptimizer(o, m, density=0.2, timeout_s=20, **options)


def scheduled(make, every=1):
    def loop(model, optimizer, steps):
        scheduler = make(optimizer, steps)
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            optimizer.step()
            if step % every == 0:
                scheduler.step()
        expect(not said("before `optimizer.step"), "torch took steps for none")

    return loop


def alone(make, steps=10, **options):
    """Without a dense run."""
    wrapped = DDP(net())
    made = make(wrapped)
    first = [p.detach().clone() for p in wrapped.parameters()]
    state = attach(wrapped, made, **options)
    plain(wrapped, made, steps)
    moved = max((a - b).abs().max().item() for a, b in zip(first, wrapped.parameters()))
    return wrapped, moved, state


def scaler_of(**options):
    if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
        raise Absent("no GradScaler on CPUs")
    return torch.amp.GradScaler("cpu", **options)


def scaled(scaler, spoils=(), clip=False):
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss = scaler.scale(loss_of(model, step))
            if step in spoils and dist.get_rank() == 1:
                loss = loss * float("inf")
            loss.backward()
            if clip:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()

    return loop


def clips(clip):
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            clip(model.parameters())
            optimizer.step()

    return loop


def several(make, steps=40):
    """A list of optimizers, stepped one after the other."""
    losses = []
    for sparse in (False, True):
        wrapped = DDP(net())
        before, rows = measure(wrapped.module), make(wrapped)
        state = attach(wrapped, rows) if sparse else None
        for step in range(steps):
            for one in rows:
                one.zero_grad()
            loss_of(wrapped, step).backward()
            for one in rows:
                one.step()
        losses.append(measure(wrapped.module))
    return learned(wrapped.module, before, *losses, 0.6)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))[:, :4]


def run_of(optimizer=adamw, model=None, **options):
    wrapped = DDP(net() if model is None else model)
    made = optimizer()(wrapped)
    return wrapped, made, attach(wrapped, made, **options)


def resumed(save, load, optimizer=adamw, warned=None, **options):
    """20 steps, or 10 and 10 with a checkpoint between: the same bits."""
    wrapped, made, state = run_of(optimizer, **options)
    plain(wrapped, made, 10)
    kept = save(wrapped, made, state)
    weights = copy.deepcopy(wrapped.module.state_dict())
    dist.barrier()
    plain(wrapped, made, 10, 10)
    wrapped.module.zero_grad()
    state.close()
    model = net(5)
    model.load_state_dict(weights)
    other, again, state = run_of(optimizer, model=model, **options)
    load(kept, again, state)
    plain(other, again, 10, 10)
    pairs = zip(wrapped.module.parameters(), other.module.parameters())
    bits = all(torch.equal(a, b) for a, b in pairs)
    if same(other.module) and bits:
        return "right", "the same bits"
    words = "other bits" if same(other.module) else "replicas differ"
    return ("refused" if warned and said(warned) else "silent"), words


def folder_of():
    rows = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(rows, 0)
    return rows[0]


def rank0(_, made, __):
    rows = [made.state_dict()]
    dist.broadcast_object_list(rows, 0)
    return rows[0]
