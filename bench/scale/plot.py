#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Communication of a step over the number of ranks, one panel for each network.

    plot.py PLOT.png RECORDS.jsonl...

Each file holds the records of one run of tamis_scale. Staged: the chosen plan, on the simulated
network where that was run, else by formula. Linear and dense are by formula. Nothing is measured.
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# label, colour (Okabe and Ito), line; time in us of a record
LINES = (
    ("dense all-reduce, the best", "#000000", "-", lambda r: r["dense_us"]),
    ("sparse, all with all", "#D55E00", "--", lambda r: r["linear_us"]),
    ("sparse, in stages", "#0072B2", "-", lambda r: staged(r)),
    ("sparse, {H} local steps", "#009E73", ":",
     lambda r: r["local_step_us"] if r["local_steps"] > 1 else None),
)


def staged(record):
    simulated = record["simulated_us"]
    return record["formula_us"] if simulated is None else simulated


def read(path):
    with open(path, encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines if line.strip()]
    return sorted((r for r in records if r["record"] == "scale"), key=lambda r: r["ranks"])


def draw(axes, records):
    first = records[0]
    for label, colour, line, time in LINES:
        points = [(r["ranks"], 1e-3 * time(r)) for r in records if time(r) is not None]
        if points:
            axes.plot(*zip(*points), label=label.format(H=first["local_steps"]), color=colour,
                      linestyle=line, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(f"{first['net']}, {first['elements'] / 1e6:g}M, {100 * first['density']:g} %")
    axes.set_xlabel("ranks")
    axes.grid(alpha=0.3)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    runs = [records for records in map(read, sys.argv[2:]) if len(records) > 1]
    if not runs:
        sys.exit("no run has several numbers of ranks: nothing to plot")
    figure, panels = plt.subplots(1, len(runs), figsize=(4.2 * len(runs), 4.4), squeeze=False)
    for axes, records in zip(panels[0], runs):
        draw(axes, records)
    panels[0][0].set_ylabel("communication of a step (ms, log scale)")
    panels[0][-1].legend(fontsize=8)
    figure.suptitle("tamis_scale: simulated network and formulas, not measured")
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=120)


if __name__ == "__main__":
    main()
