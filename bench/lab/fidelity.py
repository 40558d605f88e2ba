#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Does sparse training learn what dense training learns? Training runs and their results.

    fidelity.py --train TAMIS_TRAIN --out DIR [--quick] [--only mlp|cnn|lm] [--rows PATTERN]

A row is a workload, an optimizer and a variant (dense, a density, a scheme). Rates are tuned by the
metric after the last step, on one grid for all rows. Dense tries the whole grid with all seeds. The
others begin at dense's best and move up or down with seed 1 while that is better, until both
neighbours of the best rate were tried; that rate then runs with the other seeds. All go beyond the
ends of the grid if need be. All rows of a workload have the same steps, samples in the same order,
warm-up and cosine.

Each run writes DIR/runs/NAME.jsonl and is not repeated while that file exists, so a full form that
was stopped resumes. Then fidelity_report.py writes DIR/fidelity.md and plots.
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import zlib
from dataclasses import dataclass

import fidelity_report

SEEDS = (1, 2, 3)
DIVERGED = {"record": "summary", "metric_value": None, "replicas_identical": True}


@dataclass(frozen=True)
class Workload:
    name: str
    optimizer: str
    steps: int
    quick_steps: int
    rates: tuple
    quick_rate: float
    options: tuple = ()


# Four ranks of eight samples: as many steps per pass over the data as larger clusters need passes.
WORKLOADS = (
    Workload("lm", "adamw", 1200, 500, (0.002, 0.003, 0.005, 0.007, 0.01), 0.005),
    Workload("mlp", "momentum", 11250, 3000, (0.0025, 0.005, 0.01, 0.02, 0.04), 0.01),
    Workload("cnn", "momentum", 11250, 3000, (0.0025, 0.005, 0.01, 0.02, 0.04), 0.01,
             ("--channels", "8")),
    Workload("mlp", "adamw", 11250, 0, (0.00025, 0.0005, 0.001, 0.002, 0.004), 0.001),
    Workload("cnn", "adamw", 11250, 0, (0.00025, 0.0005, 0.001, 0.002, 0.004), 0.001,
             ("--channels", "8")),
)
LONGER = 4  # factor of steps of longer lm runs, with the tuned rates


@dataclass(frozen=True)
class Variant:
    name: str
    args: tuple
    longer: bool = False


def sparse(scheme, density, *more):
    return ("--scheme", scheme, "--density", f"{density:g}", *more)


# Updates of Adam as the library advises for the density, and the other forms (docs/fidelity.md).
UPDATE = ("--reduce", "update")
SURE = (*UPDATE, "--beta1", "0.9")
SPREADING = (*UPDATE, "--beta1", "0")
FEW_BITS = ("--set", "value_codec=fp4")


def matched(norm, bits=""):
    """A step that follows norms."""
    return (*SURE, "--set", f"residual_decay=0,update.norm_matching={norm}{bits}")


def rising(mean):
    """A density that grows 2.5-fold over a run, `mean` on average: late entries are less sure."""
    return (*sparse("tamis-update", 0.625 * mean), "--density-end", f"{1.5625 * mean:g}")


def momentum_variants(_):
    """Momentum correction; `gradients`, and the published schemes, are plain error feedback."""
    rows = [Variant("dense", ("--scheme", "dense"))]
    for density in (0.1, 0.03, 0.01, 0.001):
        rows.append(Variant(f"tamis {100 * density:g} %",
                            sparse("tamis", density, "--reduce", "update")))
    rows.append(Variant("tamis 2 % fp4", sparse("tamis", 0.02, *FEW_BITS, "--reduce", "update")))
    rows.append(Variant("tamis 1 %, gradients", sparse("tamis", 0.01)))
    rows += [Variant(f"{scheme} 1 %", sparse(scheme, 0.01)) for scheme in ("topk", "deft", "micro")]
    rows.append(Variant("topk 0.375 %", sparse("topk", 0.00375)))  # bytes close to tamis 1 %
    return rows


def adamw_variants(_):
    """Updates; `gradients`, and the published schemes, feed AdamW with sparse means."""
    rows = [Variant("dense", ("--scheme", "dense"), True)]
    for density in (0.1, 0.03):
        rows.append(Variant(f"tamis {100 * density:g} %", sparse("tamis-update", density, *UPDATE)))
    packed = ("--set", "value_codec=bfloat16")
    rows.append(Variant("tamis 3.3 % bf16, beta1 0.9",
                        sparse("tamis-update", 0.033, *packed, *SURE), True))
    rows.append(Variant("tamis 3.3 % bf16, beta1 0",
                        sparse("tamis-update", 0.033, *packed, *SPREADING), True))
    for density in (0.01, 0.001):
        rows.append(Variant(f"tamis {100 * density:g} %",
                            sparse("tamis-update", density, *UPDATE), density == 0.01))
    rows.append(Variant("tamis 2 % fp4", sparse("tamis-update", 0.02, *FEW_BITS, *SPREADING)))
    for density in (0.01, 0.001):
        rows.append(Variant(f"tamis {100 * density:g} %, gradients", sparse("tamis", density)))
    rows += [Variant(f"{scheme} 1 %", sparse(scheme, 0.01)) for scheme in ("topk", "deft", "micro")]
    rows.append(Variant("topk 0.375 %, updates", sparse("topk", 0.00375, *SPREADING)))
    return rows


def local(steps, rate, momentum, *more):
    return ("--local-steps", str(steps), "--outer-lr", f"{rate:g}", "--outer-momentum",
            f"{momentum:g}", *more)


def lm_variants(workload):
    """Also few bits, local steps, and what others publish: DiLoCo (Douillard et al. 2023), SparseLoCo
    (Sarfi et al. 2025), PowerSGD. Their published intervals, 500 and 30 steps, belong to
    longer runs: DiLoCo has 16 and 64 here."""
    rows = adamw_variants(workload)
    rows += [
        Variant("tamis 8 % fp4, matched", (*rising(0.08), *matched(2, ",value_codec=fp4")), True),
        Variant("tamis 8 % fp32, matched", (*rising(0.08), *matched(2)), True),
        Variant("tamis 3.3 % fp2, matched",
                (*rising(0.033), *matched(2.5, ",value_codec=fp2,sum_codec=fp2")), True),
        Variant("local 17, fp2",
                local(17, 1, 0.5, "--scheme", "quantized", "--set", "value_codec=fp2"), True),
    ]
    rows += [Variant(f"DiLoCo {steps}", local(steps, 0.7, 0.9, "--scheme", "dense"), True)
             for steps in (16, 64)]
    rows.append(Variant("SparseLoCo 30", local(30, 1, 0, *sparse(
        "topk", 0.03, "--set", "value_codec=fp2,residual_decay=0.95")), True))
    rows += [Variant(f"PowerSGD {rank}", ("--scheme", "dense", "--low-rank", str(rank)), rank == 2)
             for rank in (1, 2, 4, 8)]
    return rows


VARIANTS = {"momentum": momentum_variants, "adamw": adamw_variants}


def variants_of(workload, pattern):
    """Dense first, to which all others are compared."""
    characters = (workload.name, workload.optimizer) == ("lm", "adamw")
    make = lm_variants if characters else VARIANTS[workload.optimizer]
    return [v for v in make(workload) if v.name == "dense" or re.search(pattern, v.name)]


def file_name(workload, variant, rate, seed, steps):
    """Runs with other options get another file name, even if the variant's name is the same."""
    options = " ".join((*workload.options, *variant.args))
    words = [workload.name, workload.optimizer, variant.name, f"{rate:g}", f"seed{seed}",
             f"{steps}", f"{zlib.crc32(options.encode()):08x}"]
    name = "-".join("".join(c for c in word if c.isalnum() or c == ".") for word in words)
    return name + ".jsonl"


class Runs:
    """Training runs, each made once."""

    def __init__(self, train, folder, quick):
        self.train = train
        self.folder = folder
        self.quick = quick
        os.makedirs(folder, exist_ok=True)

    def records(self, workload, variant, rate, seed, longer=1):
        """@return the records of a run; the last one is its summary"""
        steps = longer * (workload.quick_steps if self.quick else workload.steps)
        path = os.path.join(self.folder, file_name(workload, variant, rate, seed, steps))
        if not os.path.exists(path):
            self.make(workload, variant, rate, seed, steps, path)
        with open(path, encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.strip()]

    def make(self, workload, variant, rate, seed, steps, path):
        warm_up = str(steps // 5)
        command = [
            self.train, "--transport", "local", "--ranks", "4", "--quiet", "--workload",
            workload.name, *workload.options, "--batch", "8", "--steps", str(steps), "--eval-every",
            str(max(1, steps // 12)), "--optimizer", workload.optimizer, "--lr", f"{rate:g}",
            "--warm-up", warm_up, "--lr-decay", "cosine", "--lr-floor", "0.1", "--seed",
            str(seed), "--json", path + ".part", *variant.args]
        run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            if "TAMIS_E_NONFINITE" not in run.stderr:
                raise RuntimeError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr}")
            with open(path + ".part", "w", encoding="utf-8") as out:
                json.dump(dict(DIVERGED, steps=steps), out)
        os.rename(path + ".part", path)


def score(summaries):
    """Less is better."""
    values = [s["metric_value"] for s in summaries]
    if None in values:  # a run that diverged has no number to show
        return math.inf
    mean = statistics.mean(values)
    return mean if summaries[0]["metric"] == "validation_loss" else -mean


def neighbour(rates, rate, up):
    """The next rate of the grid, which continues beyond its ends by factors of two."""
    beyond = [r for r in rates if (r > rate if up else r < rate)]
    if not beyond:
        return rate * 2 if up else rate / 2
    return min(beyond) if up else max(beyond)


def tune(runs, workload, variant, start):
    """@param start  None: the whole grid
    @return (best rate, {rate: metric of seed 1})"""
    if runs.quick:
        return workload.quick_rate, {}
    tried = {}
    todo = set(workload.rates if start is None else [start])
    while todo:
        for rate in sorted(todo):
            tried[rate] = [runs.records(workload, variant, rate, seed)[-1]
                           for seed in (SEEDS if start is None else SEEDS[:1])]
        best = min(tried, key=lambda rate: (score(tried[rate]), rate))  # all diverge: go down
        todo = {neighbour(workload.rates, best, up) for up in (False, True)} - set(tried)
    return best, {rate: of[0]["metric_value"] for rate, of in sorted(tried.items())}


def make_row(runs, workload, variant, start):
    rate, tried = tune(runs, workload, variant, start)
    seeds = SEEDS[:1] if runs.quick else SEEDS
    row = fidelity_report.Row(
        workload.name, workload.optimizer, variant.name, rate, tried,
        [runs.records(workload, variant, rate, seed) for seed in seeds])
    print(fidelity_report.line(row), flush=True)
    return row


def make_rows(runs, workload, variants):
    rows = []
    for variant in variants:
        rows.append(make_row(runs, workload, variant, rows[0].rate if rows else None))
    return rows


def make_longer(runs, workload, variants, short):
    rows = []
    for variant, row in zip(variants, short):
        if variant.longer:
            records = [runs.records(workload, variant, row.rate, seed, LONGER) for seed in SEEDS]
            rows.append(fidelity_report.Row(row.workload, row.optimizer, row.variant, row.rate, {},
                                            records))
            print(fidelity_report.line(rows[-1]), flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=sorted({w.name for w in WORKLOADS}))
    parser.add_argument("--rows", default="", help="only variants whose names match")
    args = parser.parse_args()
    runs = Runs(args.train, os.path.join(args.out, "runs"), args.quick)
    rows = []
    for workload in WORKLOADS:
        if args.only not in (None, workload.name) or (args.quick and not workload.quick_steps):
            continue
        variants = variants_of(workload, args.rows)
        made = make_rows(runs, workload, variants)
        rows += made
        if workload.name == "lm" and not args.quick:
            rows += make_longer(runs, workload, variants, made)
        fidelity_report.write(rows, args.out)
    return 0 if all(row.identical for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
