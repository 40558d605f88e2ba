#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""Exposed communication over the number of buckets, one panel for each link.

    overlap_plot.py PLOT.png RECORDS.jsonl...

Each file holds the records of one run of tamis_overlap. Exposed communication is the time that the
slowest rank spent waiting after its backward pass: medians over the rounds, bars from the first to
the third quartile.
"""
import json
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# variant: label, colour (Okabe and Ito), line
LINES = {
    "dense-overlap": ("dense, overlapped", "#000000", "-"),
    "sparse": ("sparse after backward", "#0072B2", "--"),
    "sparse-overlap": ("sparse, overlapped", "#0072B2", "-"),
}


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def draw(axes, records):
    first = records[0]
    for variant, (label, colour, line) in LINES.items():
        points = {r["buckets"]: r["wait_s"] for r in records if r["variant"] == variant}
        if not points:
            continue
        x = sorted(points)
        waits = [points[buckets] for buckets in x]
        y = [1e3 * wait["median"] for wait in waits]
        below = [1e3 * (wait["median"] - wait["q1"]) for wait in waits]
        above = [1e3 * (wait["q3"] - wait["median"]) for wait in waits]
        axes.errorbar(x, y, yerr=[below, above], label=label, color=colour, linestyle=line,
                      marker="o", markersize=4, capsize=2)
    for variant, label, colour in (("dense-mpi", "MPI_Allreduce, tuned", "#D55E00"),
                                   ("compute", "computing of a step", "#009E73")):
        level = [r for r in records if r["variant"] == variant]
        if level:
            seconds = level[0]["step_s" if variant == "compute" else "wait_s"]["median"]
            axes.axhline(1e3 * seconds, color=colour, linestyle=":", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(f"{first['link']}, {first['n'] / 1e6:.1f}M parameters")
    axes.set_xlabel("buckets")
    axes.grid(alpha=0.3)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    runs = [read(path) for path in sys.argv[2:]]
    runs = [records for records in runs
            if len({r["buckets"] for r in records if r["variant"] == "sparse"}) > 1]
    if not runs:
        sys.exit("no run has several numbers of buckets: nothing to plot")
    figure, panels = plt.subplots(1, len(runs), figsize=(4.2 * len(runs), 4.4), squeeze=False,
                                  sharey=True)
    for axes, records in zip(panels[0], runs):
        draw(axes, records)
    panels[0][0].set_ylabel("exposed communication of a step (ms, log scale)")
    panels[0][-1].legend(fontsize=8)
    first = runs[0][0]
    figure.suptitle(f"tamis_overlap: {first['ranks']} ranks, density 1 %")
    figure.tight_layout()
    figure.savefig(sys.argv[1], dpi=120)


if __name__ == "__main__":
    main()
