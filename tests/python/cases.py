# SPDX-License-Identifier: MIT
"""A table of what a user may put together: works, or refused with a sentence; nothing in silence.

    examples/launch.py -n 2 tests/python/cases.py          or under mpirun, torchrun

A row for each model and wrapper: 50 steps, then the bits of all ranks are compared. Ends with
"N passed, N failed": failed is a row that is neither, or whose replicas differ.
"""

import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import tamis
import tamis.torch

STEPS = 50


class Tied(nn.Module):
    """Embedding and head share their weight."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.body = nn.Linear(24, 24)
        self.head = nn.Linear(24, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(torch.tanh(self.body(self.embed(x).mean(1))))


class Unused(nn.Module):
    """A part that is frozen, and one that no step uses."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(20, 32), nn.Linear(20, 32)
        self.frozen = nn.Linear(20, 32).requires_grad_(False)

    def forward(self, x):
        return self.used(x) + self.frozen(x)


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32))


def conv():
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 32)
    )
    return model.to(memory_format=torch.channels_last)


SHAPES = {"mlp": (20,), "conv": (1, 6, 6), "tied": (6,), "unused": (20,)}
MODELS = {"mlp": mlp, "conv": conv, "tied": Tied, "unused": Unused}


def batch(name, step):
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    shape = (16, *SHAPES[name])
    x = torch.randn(shape, generator=generator)
    if name == "tied":
        x = torch.randint(32, shape, generator=generator)
    return x, torch.randint(32, (16,), generator=generator)


def loss(net, name, step):
    x, y = batch(name, step)
    return nn.functional.cross_entropy(net(x), y)


def wrap(model, name, **options):
    options.setdefault("find_unused_parameters", name == "unused")
    return DistributedDataParallel(model, **options)


def parts(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def adamw(model):
    return torch.optim.AdamW(parts(model), 0.002, betas=(0.0, 0.99))


def attach(kind, after=None, given=True, **options):
    """The natural script. `after`: what is done between backward and step."""

    def train(model, name):
        net = wrap(model, name)
        optimizer = kind(net)
        tamis.torch.attach(net, 0.03, optimizer=optimizer if given else None, **options)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(net, name, step).backward()
            if after is not None:
                after(net, name, step)
            optimizer.step()

    return train


def momentum(net):
    return torch.optim.SGD(parts(net), 0.02, momentum=0.9, weight_decay=1e-3)


def sgd(net):
    return torch.optim.SGD(parts(net), 0.05)


def zero(net):
    return ZeroRedundancyOptimizer(parts(net), torch.optim.AdamW, lr=0.002)


def clip(net, name, step):
    nn.utils.clip_grad_norm_(parts(net), 1.0)


def again(net, name, step):
    loss(net, name, step + 500).backward()


def micro(model, name):
    net = wrap(model, name)
    optimizer = adamw(net)
    tamis.torch.attach(net, 0.03, optimizer=optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        with net.no_sync():
            loss(net, name, step).backward()
        loss(net, name, step + 500).backward()
        optimizer.step()


def plain(inside, **options):
    def train(model, name):
        optimizer = tamis.torch.DistributedOptimizer(inside(model), model, 0.03, **options)
        tamis.torch.broadcast_parameters(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(model, name, step).backward()
            optimizer.step()

    return train


def both(reduce):
    """A DistributedOptimizer, and a DDP around the model afterwards, as Trainers make it."""

    def train(model, name):
        optimizer = tamis.torch.DistributedOptimizer(sgd(model), model, 0.03, reduce=reduce)
        net = wrap(model, name)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss(net, name, step).backward()
            optimizer.step()

    return train


def around(model, name):
    """Steps through the model inside: DDP does not see them."""
    net = wrap(model, name)
    optimizer = adamw(net)
    tamis.torch.attach(net, 0.03, optimizer=optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(net.module, name, step).backward()
        optimizer.step()


def subgroup(model, name):
    own = [dist.new_group([rank], backend="gloo") for rank in range(dist.get_world_size())]
    net = wrap(model, name, process_group=own[dist.get_rank()])
    tamis.torch.attach(net, 0.03, timeout_s=60)
    loss(net, name, 0).backward()
    dist.barrier()
    raise RuntimeError("works: each group is trained by itself")


def closure(model, name):
    net = wrap(model, name)
    optimizer = adamw(net)
    tamis.torch.attach(net, 0.03, optimizer=optimizer)
    for step in range(STEPS):

        def evaluate():
            optimizer.zero_grad()
            value = loss(net, name, step)
            value.backward()
            return value

        optimizer.step(evaluate)


def rmsprop(net):
    return torch.optim.RMSprop(parts(net))


def lbfgs(net):
    return torch.optim.LBFGS(parts(net))


ROWS = [
    ("attach, AdamW", attach(adamw), "mlp conv tied unused"),
    ("attach, momentum", attach(momentum), "mlp conv tied unused"),
    ("attach, SGD", attach(sgd), "mlp conv tied unused"),
    ("attach, SGD, sparse means", attach(sgd, reduce="gradient"), "mlp conv tied unused"),
    ("attach, AdamW, clip_norm", attach(adamw, clip_norm=1.0), "mlp conv"),
    ("attach, AdamW, no_sync", micro, "mlp tied"),
    ("attach, AdamW, clip_grad_norm_", attach(adamw, clip), "mlp conv"),
    ("attach, AdamW, backward twice", attach(adamw, again), "mlp"),
    ("attach, AdamW, closure", closure, "mlp"),
    ("attach, AdamW, around the DDP", around, "mlp"),
    ("attach, AdamW not given", attach(adamw, given=False), "mlp"),
    ("attach, AdamW, update= by hand", attach(adamw, given=False, update="adam"), "mlp"),
    ("attach, ZeRO", attach(zero), "mlp"),
    ("attach, ZeRO, sparse means", attach(zero, given=False, reduce="gradient"), "mlp"),
    ("attach, RMSprop", attach(rmsprop), "mlp"),
    ("attach, LBFGS", attach(lbfgs), "mlp"),
    ("attach, DDP of a subgroup", subgroup, "mlp"),
    ("wrapper, AdamW", plain(adamw), "mlp tied"),
    ("wrapper, SGD", plain(sgd), "conv"),
    ("wrapper, AdamW, sparse means", plain(adamw, reduce="gradient"), "mlp"),
    ("wrapper and DDP", both("step"), "mlp"),
    ("wrapper and DDP, sparse means", both("gradient"), "mlp"),
]


def outcome(train, name):
    torch.manual_seed(1)
    model = MODELS[name]()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train(model, name)
        except (tamis.Error, RuntimeError, TypeError, ValueError) as error:
            return ("" if str(error).startswith("works") else "refused: ") + str(error), True
    # What is warned of in any step belongs to the row: it is not silent.
    told = [str(row.message) for row in caught if row.category is RuntimeWarning]
    same = tamis.torch.replicas_identical(model)
    said = "; warns: " + told[0].split(":")[0] if told else ""
    return f"{STEPS} steps, replicas {'identical' if same else 'DIFFER'}{said}", same


def main():
    tamis.init_process_group()
    torch.set_num_threads(1)
    passed = failed = 0
    first = dist.get_rank() == 0
    if first:
        print("| model | wrapper | outcome |\n|---|---|---|")
    for title, train, names in ROWS:
        for name in names.split():
            text, good = outcome(train, name)
            passed, failed = passed + good, failed + (not good)
            if first:
                print(f"| {name} | {title} | {text} |", flush=True)
    if first:
        print(f"\n{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
