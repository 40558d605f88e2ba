#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Compare runs of tamis_train: a table, DIR/demo.jsonl and DIR/demo.png.

    plot.py --out DIR RUN.jsonl...

Each file holds one run as tamis_train writes it: step records, then one summary. Runs of one scheme
and density, which differ only in the seed, become one row. Exit status 1 if the replicas of any run
ended with different bits.
"""
import argparse
import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator, PercentFormatter

PHASES = ["compute", "accumulate", "select", "exchange", "apply", "wait"]

# Okabe and Ito's colours, legible to the colour-blind; one hue per scheme.
COLOURS = {
    ("dense", 1.0): "#000000",
    ("tamis", 0.01): "#0072B2",
    ("tamis", 0.001): "#56B4E9",
    ("micro", 0.01): "#D55E00",
    ("deft", 0.01): "#009E73",
}
OTHERS = ["#CC79A7", "#E69F00", "#999999"]


def read_run(path):
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    steps = [r for r in records if r["record"] == "step"]
    summaries = [r for r in records if r["record"] == "summary"]
    if len(summaries) != 1:
        sys.exit(f"{path}: {len(summaries)} summary records, expected one")
    return steps, summaries[0]


class Group:
    """Runs of one scheme and density, in the order of their files."""

    def __init__(self, scheme, density):
        self.scheme = scheme
        self.density = density
        self.steps = []
        self.runs = []

    @property
    def label(self):
        return self.scheme if self.scheme == "dense" else f"{self.scheme} {self.density:.4g}"

    def values(self, get):
        return [get(run) for run in self.runs]

    def mean(self, get):
        return sum(self.values(get)) / len(self.runs)

    def accuracies(self):
        return self.values(lambda run: run["metric_value"])

    def wire_bytes(self):
        return self.mean(lambda run: run["wire_bytes_per_step"])

    def phase_ms(self, phase):
        return self.mean(lambda run: 1e3 * run["phase_s"][phase] / run["steps"])


def group_runs(runs):
    groups = {}
    for steps, summary in runs:
        key = (summary["scheme"], summary["density_target"])
        group = groups.setdefault(key, Group(*key))
        group.steps.append(steps)
        group.runs.append(summary)
    return list(groups.values())


def table_row(group):
    accuracies = group.accuracies()
    runs = group.runs
    dense_bytes = runs[0]["dense_bytes_per_step"]
    return [
        group.scheme,
        str(len(runs)),
        f"{group.density:.4g}",
        f"{min(r['density_min'] for r in runs):.4g}..{max(r['density_max'] for r in runs):.4g}",
        f"{100 * sum(accuracies) / len(accuracies):.2f}",
        f"{100 * (max(accuracies) - min(accuracies)):.2f}" if len(runs) > 1 else "-",
        f"{group.wire_bytes():,.0f}",
        f"{100 * group.wire_bytes() / dense_bytes:.2f}",
        f"{group.mean(lambda r: 1e3 * r['time_s'] / r['steps']):.2f}",
        *(f"{group.phase_ms(phase):.2f}" for phase in PHASES),
        "yes" if all(r["replicas_identical"] for r in runs) else "NO",
    ]


def print_table(groups):
    first = groups[0].runs[0]
    above = ["", "", "density", "density", "accuracy", "accuracy", "bytes", "% of", "ms per",
             "of which", *[""] * (len(PHASES) - 1), "replicas"]
    head = ["scheme", "seeds", "asked", "real min..max", "mean %", "spread", "per step", "dense",
            "step", *PHASES, "identical"]
    rows = [above, head] + [table_row(group) for group in groups]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    print(f"{first['workload']}, {first['ranks']} ranks, {first['steps']} steps; {first['metric']}; "
          f"a dense all-reduce would send {first['dense_bytes_per_step']:,.0f} bytes per step")
    for i, row in enumerate(rows):
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])]
        print("  ".join([row[0].ljust(widths[0])] + cells))
        if i == 1:
            print("  ".join("-" * width for width in widths))
    print("mean, spread: over the seeds; spread is largest minus smallest. Bytes: of the rank that "
          "sends most.\nTimes: means over the ranks; wait is the time inside tamis_reducer_wait, of "
          "which select, exchange and apply may be a part.")


def draw_accuracy(axes, group, colour):
    metric = group.runs[0]["metric"]
    epochs = [record["epoch"] for record in group.steps[0]]
    values = list(zip(*([record[metric] for record in steps] for steps in group.steps)))
    axes.plot(epochs, [sum(v) / len(v) for v in values], color=colour, label=group.label,
              linestyle="--" if group.scheme == "dense" else "-", marker="o", markersize=3)
    if len(group.runs) > 1:
        axes.fill_between(epochs, [min(v) for v in values], [max(v) for v in values],
                          color=colour, alpha=0.15, linewidth=0)


def draw_bytes(axes, groups, colours):
    sizes = [g.wire_bytes() for g in groups]
    bars = axes.barh([g.label for g in groups], sizes, color=colours)
    axes.bar_label(bars, [f"{size:,.0f}" for size in sizes], padding=3)
    axes.set_xscale("log")
    axes.set_xlim(min(sizes) / 3, max(sizes) * 10)  # room for the labels
    axes.invert_yaxis()
    axes.set_xlabel("bytes sent by a rank per step (log scale)")
    axes.set_title("Traffic")


def draw(groups, path):
    spare = iter(OTHERS * len(groups))
    colours = [COLOURS.get((g.scheme, g.density)) or next(spare) for g in groups]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), width_ratios=[3, 2])
    for group, colour in zip(groups, colours):
        draw_accuracy(left, group, colour)
    left.set_xlabel("epochs")
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylabel("test accuracy (%)")
    left.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=""))
    left.set_title("Accuracy (mean of the seeds, band: smallest to largest)")
    left.legend(title="scheme, density", loc="lower right")
    left.grid(alpha=0.3)
    draw_bytes(right, groups, colours)
    first = groups[0].runs[0]
    figure.suptitle(f"tamis_train: {first['workload']}, {first['ranks']} ranks")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("runs", nargs="+", metavar="RUN.jsonl")
    arguments = parser.parse_args()

    runs = [read_run(path) for path in arguments.runs]
    groups = group_runs(runs)
    with open(os.path.join(arguments.out, "demo.jsonl"), "w", encoding="utf-8") as out:
        for _, summary in runs:
            out.write(json.dumps(summary) + "\n")
    print_table(groups)
    draw(groups, os.path.join(arguments.out, "demo.png"))
    if not all(summary["replicas_identical"] for _, summary in runs):
        print("The replicas of at least one run differ.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
