#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The natural script, attach(ddp, optimizer=AdamW(...)), beside dense DDP and torch's own hooks.

    torchrun --nproc_per_node 2 bench/lab/torch_natural.py TEXT [--steps 600] [--seeds 3] [--clip 1.0]
        [--only RE]

TEXT is any long text. Two models, each with the same AdamW and batches for all rows: `lm`, a
transformer over characters, and `rnn`, a GRU. Loss on text that was not trained on, mean over
seeds, at the best of three rates, of which each row has its own, and bytes that a rank sends in a
step (of torch's hooks by their formulas, in a ring). With --clip the script calls clip_grad_norm_
before step(). `--only 'rnn (dense$|PowerSGD)'` takes the rows whose model and name the expression
finds.
Prints a table in Markdown; the hooks need a torch whose gloo sums bfloat16 (2.5 and later).
"""

import argparse
import re
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as low_rank
from torch.nn.parallel import DistributedDataParallel

import tamis.torch

WIDTH, WINDOW, BATCH = 64, 48, 8


class Transformer(nn.Module):
    def __init__(self, chars):
        super().__init__()
        self.embed = nn.Embedding(chars, WIDTH)
        self.place = nn.Parameter(torch.randn(WINDOW, WIDTH) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, chars)
        mask = torch.full((WINDOW, WINDOW), float("-inf")).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x):
        h = self.embed(x) + self.place
        for layer in self.layers:
            h = layer(h, self.mask)
        return self.head(h)


class Recurrent(nn.Module):
    def __init__(self, chars):
        super().__init__()
        self.embed = nn.Embedding(chars, WIDTH)
        self.core = nn.GRU(WIDTH, 2 * WIDTH, batch_first=True)
        self.head = nn.Linear(2 * WIDTH, chars)

    def forward(self, x):
        return self.head(self.core(self.embed(x))[0])


MODELS = {"lm": Transformer, "rnn": Recurrent}
RATES = {"lm": (0.006, 0.012, 0.024), "rnn": (0.005, 0.01, 0.02)}
# name, what is done to the DDP
ROWS = [
    ("dense", None),
    ("attach 8 %, fp4", dict(density=0.08, value_codec="fp4")),
    ("attach 3 %", dict(density=0.03)),
    ("attach quantized, fp2", dict(scheme="quantized", value_codec="fp2")),
    ("attach 8 %, fp4, gradients", dict(density=0.08, value_codec="fp4", reduce="gradient")),
    ("PowerSGD rank 1", 1),
    ("PowerSGD rank 2", 2),
    ("bf16 hook", default_hooks.bf16_compress_hook),
    ("fp16 hook", default_hooks.fp16_compress_hook),
]


def hook(ddp, optimizer, how):
    """Put the row's hook in place. A function of no arguments: bytes that a rank sends in a step."""
    nranks = dist.get_world_size()
    numbers = sum(p.numel() for p in ddp.parameters())
    ring = 2 * (nranks - 1) / nranks
    if isinstance(how, dict):
        state = tamis.torch.attach(ddp, optimizer=optimizer, check_every=0, **how)
        return lambda: state.stats()["total"]["wire_bytes"] / state.steps
    if isinstance(how, int):
        state = low_rank.PowerSGDState(None, how, start_powerSGD_iter=2, min_compression_rate=1)
        ddp.register_comm_hook(state, low_rank.powerSGD_hook)
        sent = sum(
            how * (p.shape[0] + p[0].numel()) if p.dim() > 1 else p.numel()
            for p in ddp.parameters()
        )
        return lambda: ring * 4 * sent
    if how is not None:
        ddp.register_comm_hook(None, how)
    return lambda: ring * numbers * (4 if how is None else 2)


def batch(text, size, generator):
    at = torch.randint(len(text) - WINDOW - 1, (size,), generator=generator)
    rows = text[at[:, None] + torch.arange(WINDOW + 1)]
    return rows[:, :-1], rows[:, 1:]


def loss_of(model, rows):
    x, y = rows
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def run(name, how, text, chars, seed, rate, options):
    steps = options.steps
    torch.manual_seed(seed)
    model = MODELS[name](chars)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), rate)
    sent = hook(ddp, optimizer, how)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    mine = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    cut = len(text) * 9 // 10
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, batch(text[:cut], BATCH, mine)).backward()
        if options.clip:
            nn.utils.clip_grad_norm_(ddp.parameters(), options.clip)
        optimizer.step()
        schedule.step()
    assert tamis.torch.replicas_identical(model)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        return loss_of(model, batch(text[cut:], 256, generator)).item(), sent()


def best(name, how, text, chars, options):
    """Rate, losses by seed and bytes a step at the best rate."""
    found = []
    for rate in RATES[name]:
        runs = [
            run(name, how, text, chars, seed, rate, options)
            for seed in range(1, options.seeds + 1)
        ]
        losses = torch.tensor([loss for loss, _ in runs])
        found.append((losses.mean().item(), rate, losses, runs[-1][1]))
    return min(found, key=lambda row: row[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--only", type=re.compile, default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    data = open(options.text, "rb").read(2_000_000)
    known = sorted(set(data))
    text = torch.tensor([known.index(byte) for byte in data])
    say = print if dist.get_rank() == 0 else lambda *_, **__: None
    say("| model | | rate | loss | over dense | spread | bytes a step | of dense |")
    say("|---|---|---|---|---|---|---|---|")
    for name in MODELS:
        dense = None
        rows = [row for row in ROWS if re.search(options.only, f"{name} {row[0]}")]
        for title, how in rows:
            mean, rate, losses, sent = best(name, how, text, len(known), options)
            dense = dense or (mean, sent)
            say(
                f"| {name} | {title} | {rate:g} | {mean:.4f} | {mean / dense[0] - 1:+.1%} |"
                f" {(losses.max() - losses.min()).item():.3f} | {sent:,.0f} |"
                f" {sent / dense[1]:.2%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
