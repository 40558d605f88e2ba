#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Does sparse training learn what dense training learns? Training runs and what they came to.

    fidelity.py --train TAMIS_TRAIN --out DIR [--quick] [--only mlp|cnn|lm]

A row is a workload, an optimizer and a variant (dense, a density, a scheme). Learning rates are tuned
alike for all rows: seed 1 runs with each rate of the optimizer's list, and on beyond its end while the
end is the best; the best rate, by the metric after the last step, then runs with the other seeds. All
rows of a workload have the same steps, samples in the same order, warm-up and cosine.

Each run leaves DIR/runs/NAME.jsonl and is not made again while that is there, so a full form that was
stopped goes on. Then fidelity_report.py writes DIR/fidelity.md and plots.
"""
import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import fidelity_report

SEEDS = (1, 2, 3)
RATES = {"momentum": (0.01, 0.03, 0.05, 0.1, 0.2), "adamw": (0.001, 0.002, 0.003, 0.005, 0.01)}
QUICK_RATES = {"momentum": 0.05, "adamw": 0.003}
FURTHER = 2  # steps beyond the end of a list, each a factor of two


@dataclass(frozen=True)
class Workload:
    name: str
    optimizers: tuple
    steps: int
    quick_steps: int
    batch: int


WORKLOADS = (
    Workload("mlp", ("momentum", "adamw"), 4680, 600, 32),
    Workload("cnn", ("momentum", "adamw"), 2340, 300, 32),
    Workload("lm", ("adamw",), 1200, 300, 8),
)


@dataclass(frozen=True)
class Variant:
    name: str
    args: tuple


def sparse(scheme, density, *more):
    return ("--scheme", scheme, "--density", f"{density:g}", *more)


def variants(optimizer):
    """Adam gets updates; gradients into it, as published schemes give them, are beside."""
    how = ("--reduce", "update") if optimizer == "adamw" else ()
    rows = [Variant("dense", ("--scheme", "dense"))]
    for density in (0.1, 0.03, 0.01, 0.001):
        rows.append(Variant(f"tamis {100 * density:g} %", sparse("tamis", density, *how)))
    rows.append(Variant("tamis 3.3 % bf16", sparse("tamis", 0.033, "--values", "bf16", *how)))
    if how:
        rows.append(Variant("tamis 1 %, gradients", sparse("tamis", 0.01)))
    for scheme in ("topk", "deft", "micro"):
        rows.append(Variant(f"{scheme} 1 %", sparse(scheme, 0.01)))
    return rows


class Runs:
    """Training runs, each made once."""

    def __init__(self, train, folder, quick):
        self.train = train
        self.folder = folder
        self.quick = quick
        os.makedirs(folder, exist_ok=True)

    def steps(self, workload):
        return workload.quick_steps if self.quick else workload.steps

    def records(self, workload, optimizer, variant, rate, seed):
        """@return the records of a run, of which the last is its summary"""
        steps = self.steps(workload)
        words = [workload.name, optimizer, variant.name, f"{rate:g}", f"seed{seed}", f"{steps}"]
        name = "-".join("".join(c for c in word if c.isalnum() or c == ".") for word in words)
        path = os.path.join(self.folder, name + ".jsonl")
        if not os.path.exists(path):
            self.make(workload, optimizer, variant, rate, seed, path)
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def make(self, workload, optimizer, variant, rate, seed, path):
        steps = self.steps(workload)
        command = [
            self.train, "--transport", "local", "--ranks", "4", "--quiet", "--workload",
            workload.name, "--batch", str(workload.batch), "--steps", str(steps), "--eval-every",
            str(max(1, steps // 24)), "--optimizer", optimizer, "--lr", f"{rate:g}", "--warm-up",
            str(steps // 20), "--lr-decay", "cosine", "--lr-floor", "0.1", "--seed", str(seed),
            "--json", path + ".part", *variant.args]
        subprocess.run(command, check=True)
        os.rename(path + ".part", path)


def score(summary):
    """Less is better."""
    value = summary["metric_value"]
    if value is None:  # a run that diverged has no number to show
        return float("inf")
    return value if summary["metric"] == "validation_loss" else -value


def tune(runs, workload, optimizer, variant):
    """@return (best rate, {rate: metric of seed 1})"""
    if runs.quick:
        return QUICK_RATES[optimizer], {}
    tried = {}

    def attempt(rate):
        tried[rate] = runs.records(workload, optimizer, variant, rate, SEEDS[0])[-1]

    for rate in RATES[optimizer]:
        attempt(rate)
    for _ in range(FURTHER):
        best = min(tried, key=lambda rate: score(tried[rate]))
        if best == min(tried):
            attempt(best / 2)
        elif best == max(tried):
            attempt(best * 2)
    best = min(tried, key=lambda rate: score(tried[rate]))
    return best, {rate: summary["metric_value"] for rate, summary in sorted(tried.items())}


def make_row(runs, workload, optimizer, variant):
    rate, tried = tune(runs, workload, optimizer, variant)
    seeds = SEEDS[:1] if runs.quick else SEEDS
    row = fidelity_report.Row(
        workload.name, optimizer, variant.name, rate, tried,
        [runs.records(workload, optimizer, variant, rate, seed) for seed in seeds])
    print(fidelity_report.line(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=[w.name for w in WORKLOADS])
    args = parser.parse_args()
    runs = Runs(args.train, os.path.join(args.out, "runs"), args.quick)
    rows = []
    for workload in WORKLOADS:
        if args.only in (None, workload.name):
            for optimizer in workload.optimizers[:1] if args.quick else workload.optimizers:
                rows += [make_row(runs, workload, optimizer, v) for v in variants(optimizer)]
    fidelity_report.write(rows, args.out)
    return 0 if all(row.identical for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
