# SPDX-License-Identifier: MIT
"""Optimizers whose steps are exchanged, for the tests of them."""

import torch
import torch.distributed as dist

from torch_models import batch, ddp, network
from saved import own

import tamis
import tamis.torch

DENSITY = 0.03


def inner(kind, parameters, lr=0.01, weight_decay=0.1, **more):
    if kind == "SGD":
        more.setdefault("momentum", 0.8)
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, **more)
    if kind not in ("RMSprop", "Adagrad"):
        more = dict(dict(betas=(0.8, 0.95)), **more)
    more.setdefault("eps", 1e-6)
    return getattr(torch.optim, kind)(parameters, lr=lr, weight_decay=weight_decay, **more)


def wrap(model, kind="AdamW", optimizer=None, **options):
    options.setdefault("density", DENSITY)
    optimizer = optimizer or inner(kind, model.parameters())
    return tamis.torch.DistributedOptimizer(optimizer, model, reduce="step", **options)


def alone(model, kind="AdamW", **options):
    return wrap(model, kind, comm=tamis.Comm.local(1)[0], **options)


def loss(net, step):
    x, y = batch(step, dist.get_rank())
    return torch.nn.functional.cross_entropy(net(x), y)


def attached(density, kind="AdamW", **options):
    """A model in a DDP, its optimizer, and the state that exchanges for it."""
    net = ddp(network())
    optimizer = inner(kind, net.parameters())
    return net, optimizer, tamis.torch.attach(net, density, optimizer=optimizer, **options)


def backward(model, optimizer, step=0):
    x, y = batch(step, 0)
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(x), y).backward()


def train_alone(model, optimizer, step=0):
    backward(model, optimizer, step)
    optimizer.step()


def normal(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(value.shape, generator=generator) for value in model.values]


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def held(optimizer):
    return flat(own(optimizer.tamis.state_dict())["residual"].values())


def kept(optimizer, key):
    """What the optimizer inside keeps for each parameter: exp_avg, momentum_buffer, ..."""
    rows = [p for group in optimizer.param_groups for p in group["params"]]
    return flat([optimizer.state[p][key] for p in rows])
