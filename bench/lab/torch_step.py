#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What exchanging steps costs: the parameters of GPT-2 124M, one rank, on the CPU.

    OMP_NUM_THREADS=2 bench/lab/torch_step.py [--steps 9] [--threads 2]

In each step, one after the other: AdamW alone, fused; AdamW whose steps are exchanged (8 %, fp4); the
step of gradients, without an optimizer. Prints medians in ms, and the median of the ratios of the
second to the other two together. Needs torch 2.4 or later, for AdamW fused on the CPU.
"""

import argparse
import statistics
import time

import torch

import tamis.torch

WIDTH = 768
BLOCK = [
    (WIDTH,), (WIDTH,), (WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,), (WIDTH,),
    (WIDTH,), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (4 * WIDTH, WIDTH), (WIDTH,),
]  # fmt: skip
SHAPES = [(50257, WIDTH), (1024, WIDTH), *12 * BLOCK, (WIDTH,), (WIDTH,)]


def parameters():
    made = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in SHAPES]
    for p in made:
        p.grad = torch.zeros_like(p)
    return made


def named(made):
    return [(f"p{i}", p) for i, p in enumerate(made)]


def adamw(made):
    return torch.optim.AdamW(made, 1e-4, weight_decay=0.1, fused=True)


def timed(call):
    begin = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    how = dict(density=0.08, value_codec="fp4", transport="local", check_every=0, threads=o.threads)
    alone, own, means = (parameters() for _ in range(3))
    plain, mine = adamw(alone), adamw(own)
    state = tamis.torch.SparseState(named(own), optimizer=mine, **how)
    sgd = torch.optim.SGD(means, 1e-4)
    wrapper = tamis.torch.DistributedOptimizer(sgd, named(means), reduce="gradient", **how)
    rows = []
    for _ in range(o.steps + 2):  # thresholds settle in the first two
        for p in alone + own + means:
            p.grad.normal_(0, 1e-3)
        rows.append((timed(plain.step), timed(mine.step), timed(wrapper.synchronize)))
        wrapper.zero_grad()
    rows = rows[2:]
    a, b, c = (statistics.median(column) for column in zip(*rows))
    ratio = statistics.median(both / (one + other) for one, both, other in rows)
    print(f"AdamW {a:.0f} ms, exchanged {b:.0f}, gradients {c:.0f}; ratio {ratio:.3f}")
    state.close()


if __name__ == "__main__":
    main()
