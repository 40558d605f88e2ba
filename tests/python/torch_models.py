# SPDX-License-Identifier: MIT
"""Models and training loops that several tests of tamis.torch share."""

import hashlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from saved import own

SHAPES = ((300, 40), (40,), (500, 30), (30,), (3, 5, 7), ())


class Weighted(torch.nn.Module):
    """The gradient of every parameter is the factor that forward gets for it."""

    def __init__(self, shapes=SHAPES, dtypes=(torch.float32,)):
        super().__init__()
        self.values = torch.nn.ParameterList(
            torch.nn.Parameter(torch.zeros(shape, dtype=dtypes[i % len(dtypes)]))
            for i, shape in enumerate(shapes)
        )

    def forward(self, factors):
        rows = zip(self.values, factors)
        return sum((value * factor.to(value.dtype)).sum().float() for value, factor in rows)


def whole_numbers(model, step, rank, low=-8, high=9):
    """Factors of one rank in one step: their sums over ranks and steps are exact."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [
        torch.randint(low, high, value.shape, generator=generator).float() for value in model.values
    ]


def total(tensors):
    """Sum over the ranks, float64, one flat tensor."""
    flat = torch.cat([tensor.detach().double().reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    return flat


def residuals(state, model):
    held = own(state.state_dict())["residual"]
    return [held[name] for name, _ in model.named_parameters()]


class Balance:
    """What went in, and what came out: in = nranks * out + residuals, to the bit."""

    def __init__(self, model):
        self.model = model
        self.given = [torch.zeros(value.shape, dtype=torch.float64) for value in model.values]
        self.applied = [torch.zeros(value.shape, dtype=torch.float64) for value in model.values]

    def give(self, factors):
        for sum_, factor in zip(self.given, factors):
            sum_ += factor

    def take(self):
        for sum_, value in zip(self.applied, self.model.values):
            sum_ += value.grad.double()

    def balance(self, state):
        """Largest difference; largest of what went in, of what came out, of what is held."""
        given, applied = total(self.given), total(self.applied)  # sum over ranks = nranks * mean
        held = total(residuals(state, self.model))
        difference = (given - applied - held).abs().max().item()
        return difference, *(item.abs().max().item() for item in (given, applied, held))


def bits(module):
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def network(width=96):
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.ReLU(),
        torch.nn.Linear(width, 5),
    )


def batch(step, rank, size=16):
    generator = torch.Generator().manual_seed(7919 * step + rank)
    x = torch.randn(size, 20, generator=generator)
    return x, x[:, :5].argmax(1)


def train(model, optimizer, steps):
    """Steps of any model; with DDP or with a DistributedOptimizer."""
    rank = dist.get_rank()
    for step in steps:
        x, y = batch(step, rank)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def ddp(model, **options):
    """With several buckets, after the first step, though the models here are small."""
    dist._DEFAULT_FIRST_BUCKET_BYTES = 1000
    options.setdefault("bucket_cap_mb", 0.02)
    return DistributedDataParallel(model, **options)


class Slow(torch.autograd.Function):
    """The identity, whose backward takes a while."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None
