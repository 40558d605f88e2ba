# SPDX-License-Identifier: MIT
"""Optimizers in update mode, for its tests."""

import torch

import tamis
import tamis.torch

DENSITY = 0.03


def inner(kind, parameters, lr=0.01, weight_decay=0.1, **more):
    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=0.8, **more)
    more = dict(dict(betas=(0.8, 0.95), eps=1e-6), **more)
    return getattr(torch.optim, kind)(parameters, lr=lr, weight_decay=weight_decay, **more)


def wrap(model, kind="AdamW", optimizer=None, **options):
    options.setdefault("density", DENSITY)
    optimizer = optimizer or inner(kind, model.parameters())
    return tamis.torch.DistributedOptimizer(optimizer, model, reduce="update", **options)


def alone(model, kind="AdamW", **options):
    return wrap(model, kind, comm=tamis.Comm.local(1)[0], **options)


def normal(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(value.shape, generator=generator) for value in model.values]


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def held(optimizer, kind="residual"):
    return flat(optimizer.tamis.state_dict()[kind].values())
