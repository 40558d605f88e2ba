#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Which form of the exchange suits which optimizer: four ranks of a small model, in one process.

    bench/lab/optimizers.py --optimizer muon --form whole --rate 0.012 [--seed 1] [--steps 800]

The rules are those of python/tamis/torch/_local_stepper.py, written down once more for all ranks at
once: a run takes 15 s on a core, where four processes would take a minute. Sums over ranks are
exact, and one threshold serves all layers. The model is a transformer over characters (2 layers of width 64, 4 ranks of
4 windows of 64), the text Python's own library, a twentieth of it held out; the rate warms up for a
twentieth of the steps and falls as a cosine to 0. Prints a line of JSON. Needs torch 2.0 or later.
"""

import argparse
import glob
import json
import math
import os

import torch
import torch.nn.functional as F

RANKS, WIDTH, LAYERS, HEADS, WINDOW, WINDOWS, CHARS = 4, 64, 2, 4, 64, 4, 97
# name: density, bits, what is exchanged, residual decay, norm_matching (0: none, a mean; -1: from
# the share of the energy that the chosen entries have)
FORMS = {
    "dense": None,
    "sparse": (0.08, "fp4", "steps", 0.0, -1.0),
    "sparse-kept": (0.08, "fp4", "steps", 0.9, 1.0),
    "whole": (1.0, "fp2", "steps", 1.0, 1.0),
    "cleared": (0.1, "none", "steps", 1.0, 0.0),  # of SGD: momentum, where it was applied
    "kept": (0.1, "none", "steps", 1.0, 0.0),  # not cleared
    "outside": (0.1, "none", "gradients", 1.0, 0.0),
    "gradients": (0.08, "fp4", "gradients", 1.0, 0.0),
    "gradients-fp4": (1.0, "fp4", "gradients", 1.0, 0.0),
    "gradients-fp2": (1.0, "fp2", "gradients", 1.0, 0.0),
}
SHAPES = [
    (f"{name}{layer}", shape)
    for layer in range(LAYERS)
    for name, shape in (
        ("qkv", (WIDTH, 3 * WIDTH)),
        ("out", (WIDTH, WIDTH)),
        ("up", (WIDTH, 4 * WIDTH)),
        ("down", (4 * WIDTH, WIDTH)),
    )
]
MATRICES = len(SHAPES)  # hidden ones, which Muon takes
SHAPES += [("embed", (CHARS, WIDTH)), ("place", (WINDOW, WIDTH)), ("head", (WIDTH, CHARS))]
SHAPES += [(f"norm{i}", (WIDTH,)) for i in range(2 * LAYERS + 1)]
SIZES = [math.prod(shape) for _, shape in SHAPES]
LENGTH, HIDDEN = sum(SIZES), sum(SIZES[:MATRICES])


def text():
    files = sorted(glob.glob(os.path.dirname(os.__file__) + "/*.py"))
    data = "".join(open(name, errors="ignore").read() for name in files).encode()
    codes = torch.tensor(list(data), dtype=torch.long)
    other = torch.where(codes == 10, 95, 96)
    codes = torch.where((codes < 32) | (codes > 126), other, codes - 32)
    cut = len(codes) // 20
    return torch.cat([codes[: 7 * cut], codes[8 * cut :]]), codes[7 * cut : 8 * cut]


def initial(generator):
    weights = torch.empty(LENGTH)
    for (name, shape), piece in zip(SHAPES, weights.split(SIZES)):
        if len(shape) == 1:
            piece.fill_(1)
            continue
        scale = 0.02 if name in ("embed", "place") else shape[0] ** -0.5
        piece.normal_(0, scale * (0.5 if name[0] in "od" else 1), generator=generator)
    return weights


def loss_of(weights, x, y):
    """Sum over replicas [replica, LENGTH] of each one's mean loss; x, y [replica, window, WINDOW]."""
    count, rows = x.shape[:2]
    p = {n: w.view(count, *s) for (n, s), w in zip(SHAPES, weights.split(SIZES, 1))}

    def norm(h, gain):
        return h * torch.rsqrt(h.square().mean(-1, True) + 1e-6) * gain[:, None]

    h = torch.stack([F.embedding(x[r], p["embed"][r]) for r in range(count)])
    h = (h + p["place"][:, None]).view(count, rows * WINDOW, WIDTH)
    for layer in range(LAYERS):
        qkv = norm(h, p[f"norm{2 * layer}"]) @ p[f"qkv{layer}"]
        qkv = qkv.view(count * rows, WINDOW, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2)
        h = h + seen.reshape(count, rows * WINDOW, WIDTH) @ p[f"out{layer}"]
        h = h + F.gelu(norm(h, p[f"norm{2 * layer + 1}"]) @ p[f"up{layer}"]) @ p[f"down{layer}"]
    logits = norm(h, p[f"norm{2 * LAYERS}"]) @ p["head"]
    return F.cross_entropy(logits.reshape(-1, CHARS), y.reshape(-1)) * count


# --- optimizers: over views of all replicas' weights


class Decayed(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))


class Lion(Decayed):
    """arXiv 2302.06675."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(torch.sign(m * 0.9 + p.grad * 0.1), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


class Muon(Decayed):
    """torch.optim.Muon with match_rms_adamw, for a batch of matrices [replica, a, b]."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 0.05)
                u = p.grad.lerp(m, 0.95)
                x = u.mT if u.shape[1] > u.shape[2] else u
                x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
                for _ in range(5):
                    a = x @ x.mT
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                x = x.mT if u.shape[1] > u.shape[2] else x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x, alpha=-group["lr"] * 0.2 * max(p.shape[1:]) ** 0.5)


def parameters(weights, gradients, first, last):
    """Views of the segments of all replicas; those of one replica without its axis."""
    found, at = [], sum(SIZES[:first])
    for (_, shape), size in zip(SHAPES[first:last], SIZES[first:last]):
        where = slice(at, at + size)
        p = torch.nn.Parameter(weights[:, where].view(-1, *shape))
        p.grad = gradients[:, where].view(-1, *shape)
        found.append(p)
        at += size
    return found


def optimizers(name, rate, weights, gradients):
    every = parameters(weights, gradients, 0, len(SHAPES))
    if name == "muon":
        adam = torch.optim.AdamW(every[MATRICES:], rate, betas=(0.9, 0.99), weight_decay=0.1)
        return [Muon(every[:MATRICES], rate, 0.1), adam]
    if name == "adafactor":  # it factors a matrix, and has one norm for each: a replica at a time
        return [
            torch.optim.Adafactor(
                [alone(p, r) for p in every], lr=rate, weight_decay=0.1
            )
            for r in range(len(weights))
        ]
    make = {
        "adamw": lambda: torch.optim.AdamW(every, rate, betas=(0.9, 0.99), weight_decay=0.1),
        "nadam": lambda: torch.optim.NAdam(
            every, rate, betas=(0.9, 0.99), weight_decay=0.1, decoupled_weight_decay=True
        ),
        "rmsprop": lambda: torch.optim.RMSprop(every, rate, alpha=0.99),
        "lion": lambda: Lion(every, rate, 0.1),
        "sgd": lambda: torch.optim.SGD(every, rate, momentum=0.9),
    }
    return [make[name]()]


def alone(parameter, replica):
    p = torch.nn.Parameter(parameter.detach()[replica])
    p.grad = parameter.grad[replica]
    return p


# --- the exchange


def fp4(values):
    """A sign and a power of two from 2^-6 to 1 times the largest of a block of 512, or 0."""
    x = F.pad(values, (0, -values.shape[1] % 512)).view(len(values), -1, 512)
    most = x.abs().amax(-1, True).clamp_min(1e-38)
    mantissa, exponent = torch.frexp(x / most)
    exponent = (exponent - (mantissa.abs() < 0.75).to(exponent.dtype)).clamp_min(-6)
    code = torch.ldexp(torch.sign(x), exponent) * most
    return torch.where(x.abs() >= most * 2**-7, code, 0.0).view(len(values), -1)[
        :, : values.shape[1]
    ]


def fp2(values):
    """A sign, and one of two magnitudes: the means of those above and below a block's mean."""
    x = F.pad(values, (0, -values.shape[1] % 512)).view(len(values), -1, 512)
    size = x.abs()
    high = size >= size.mean(-1, True)
    above = (size * high).sum(-1, True) / high.sum(-1, True).clamp_min(1)
    below = (size * ~high).sum(-1, True) / (~high).sum(-1, True).clamp_min(1)
    code = torch.where(x < 0, -1.0, 1.0) * torch.where(high, above, below)
    return code.view(len(values), -1)[:, : values.shape[1]]


class Exchange:
    def __init__(self, density, bits, what, decay, norm_matching):
        self.density, self.code = density, dict(fp4=fp4, fp2=fp2, none=lambda x: x)[bits]
        self.decay, self.norm_matching, self.time = decay, norm_matching, 0
        self.left = torch.zeros(RANKS, LENGTH)
        self.own = self.applied = self.sent = 0.0

    def chosen(self):
        """Blocks of 64 have an owner, another one in each step; the largest of all are chosen."""
        if self.density >= 1:
            return torch.arange(LENGTH)
        owner = (torch.arange(LENGTH) // 64 + self.time) % RANKS
        held = self.left[owner, torch.arange(LENGTH)].abs()
        return torch.topk(held, int(self.density * LENGTH)).indices.sort().values

    def __call__(self, steps):
        """What all ranks apply of theirs [RANKS, LENGTH]."""
        self.left.mul_(self.decay).add_(steps)
        self.time += 1
        own, at = float(self.left.square().sum()) / RANKS, self.chosen()
        chosen = self.left[:, at]
        coded = self.code(chosen)
        self.left[:, at] = chosen - coded
        result = torch.zeros(LENGTH)
        result[at] = coded.mean(0)
        if self.norm_matching:
            result *= self.factor(own, float(result.square().sum()), chosen)
        return result

    def factor(self, own, applied, chosen):
        weight = max(1 / self.time, 0.05)
        self.own += weight * (own - self.own)
        self.applied += weight * (applied - self.applied)
        self.sent += weight * (float(chosen.square().sum()) / RANKS - self.sent)
        most = max(self.applied, applied)
        if most == 0:
            return 0.0
        if self.norm_matching < 0:
            return self.own / math.sqrt(most * max(self.sent, 1e-38))
        return self.norm_matching * math.sqrt(self.own / most)


def clear(made, applied):
    """Momentum where it was applied; and the factor that makes up for it."""
    pieces = applied.split(SIZES)
    for p, piece, (_, shape) in zip(made.param_groups[0]["params"], pieces, SHAPES):
        made.state[p]["momentum_buffer"].masked_fill_(piece.view(1, *shape) != 0, 0.0)


def makes_up(density, momentum=0.9):
    interval = 1 / density
    kept = momentum * (1 - momentum**interval) / (interval * (1 - momentum))
    return 1 / (1 - kept)


# --- a run


def rate_at(step, steps):
    warm = steps // 20
    if step < warm:
        return step / warm
    return 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))


def batch(codes, replicas, generator):
    at = torch.randint(len(codes) - WINDOW - 1, (RANKS * WINDOWS,), generator=generator)
    rows = codes[at[:, None] + torch.arange(WINDOW + 1)].view(replicas, -1, WINDOW + 1)
    return rows[..., :-1], rows[..., 1:]


def train(o, codes):
    generator = torch.Generator().manual_seed(1000 + o.seed)
    base, form = initial(generator), FORMS[o.form]
    replicas = 1 if form is None else RANKS
    local = form is not None and form[2] == "steps"
    seen = replicas if local else 1  # replicas that optimizers step
    weights, own = base.repeat(seen, 1), torch.zeros(seen, LENGTH)
    made = optimizers(o.optimizer, o.rate, weights, own)
    groups = [group for one in made for group in one.param_groups]
    decays = [group.get("weight_decay", 0.0) for group in groups]
    exchange = None if form is None else Exchange(*form)
    if exchange is not None and o.density:
        exchange.density = o.density
    for step in range(o.steps):
        rate = o.rate * rate_at(step, o.steps)
        inside = base.expand(replicas, -1).clone().requires_grad_()
        x, y = batch(codes, replicas, generator)
        (gradient,) = torch.autograd.grad(loss_of(inside, x, y), inside)
        own.copy_(gradient if local or form is None else exchange(gradient)[None])
        for group, decay in zip(groups, decays):
            group["lr"], group["weight_decay"] = rate, 0.0 if local else decay
        for one in made:
            one.step()
        if local:
            steps = (base - weights) / rate if rate else torch.zeros_like(weights)
            applied = exchange(steps)
            if o.form == "cleared":
                clear(made[0], applied)
                applied *= makes_up(exchange.density)
            base.mul_(1 - rate * decays[0]).sub_(applied, alpha=rate)
            weights.copy_(base.expand_as(weights))
        else:
            base.copy_(weights[0])
        if not base.isfinite().all():
            return base
    return base


def validation(weights, codes):
    rows = codes[: len(codes) // (WINDOW + 1) * (WINDOW + 1)].view(1, -1, WINDOW + 1)
    rows = rows[:, :: max(1, rows.shape[1] // 400)][:, :400]
    with torch.no_grad():
        return float(loss_of(weights[None], rows[..., :-1], rows[..., 1:]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = "adamw nadam rmsprop muon lion adafactor sgd".split()
    parser.add_argument("--optimizer", choices=names, default="adamw")
    parser.add_argument("--form", choices=FORMS, default="dense")
    parser.add_argument("--rate", type=float, default=0.006)
    parser.add_argument("--density", type=float, help="in place of the form's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=800)
    o = parser.parse_args()
    torch.set_num_threads(1)
    codes, held = text()
    print(json.dumps(dict(vars(o), loss=round(validation(train(o, codes), held), 4))))


if __name__ == "__main__":
    main()
