#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The page and the plot of a scaling run.

    report.py FOLDER

Reads scaling.jsonl, summaries of tamis_train with kind, nodes and batch, and writes scaling.md and,
where matplotlib is installed, scaling.png. Rates are samples a second of all ranks; efficiency is that
rate over the rate of the first number of nodes with the same scheme, times the ratio of ranks.
"""
import json
import sys

COLOURS = {"dense": "#000000", "tamis": "#0072B2"}


def read(folder):
    with open(f"{folder}/scaling.jsonl", encoding="utf-8") as lines:
        runs = [json.loads(line) for line in lines if line.strip()]
    for run in runs:
        run["rate"] = run["steps"] * run["batch"] * run["ranks"] / run["time_s"]
    return runs


def select(runs, kind, scheme):
    """(run, efficiency), by the number of nodes."""
    chosen = sorted((r for r in runs if r["kind"] == kind and r["scheme"] == scheme),
                    key=lambda r: r["nodes"])
    first = chosen[0] if chosen else None
    return [(r, r["rate"] / first["rate"] * first["ranks"] / r["ranks"]) for r in chosen]


def table(runs, kind):
    yield "| nodes | ranks | scheme | samples/rank | ms/step | samples/s | efficiency | MB/step |"
    yield "|---|---|---|---|---|---|---|---|"
    for scheme in COLOURS:
        for r, efficiency in select(runs, kind, scheme):
            yield (f"| {r['nodes']} | {r['ranks']} | {scheme} | {r['batch']}"
                   f" | {1e3 * r['time_s'] / r['steps']:.2f} | {r['rate']:.0f}"
                   f" | {100 * efficiency:.0f} % | {1e-6 * r['wire_bytes_per_step']:.3f} |")


def plot(runs, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 4))
    for axes, kind in zip(panels, ("weak", "strong")):
        for scheme, colour in COLOURS.items():
            points = [(r["nodes"], r["rate"]) for r, _ in select(runs, kind, scheme)]
            if points:
                axes.plot(*zip(*points), color=colour, marker="o", label=scheme)
                axes.plot([n for n, _ in points], [points[0][1] * n / points[0][0] for n, _ in points],
                          color=colour, linestyle=":", linewidth=1)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yscale("log")
        axes.set_title(f"{kind} scaling")
        axes.set_xlabel("nodes")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("samples/s of all ranks (dotted: ideal)")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = sys.argv[1]
    runs = read(folder)
    if not runs:
        sys.exit("report.py: no run ended: nothing to report")
    lines = ["# Scaling of tamis_train", ""]
    try:
        plot(runs, f"{folder}/scaling.png")
        lines += ["![Samples per second over nodes](scaling.png)", ""]
    except ImportError:
        print("no plot: there is no matplotlib", file=sys.stderr)
    for kind, what in (("weak", "as many samples for each rank"),
                       ("strong", "as many samples in each step")):
        lines += [f"## {kind.capitalize()}: {what}", "", *table(runs, kind), ""]
    with open(f"{folder}/scaling.md", "w", encoding="utf-8") as page:
        page.write("\n".join(lines))
    print(f"Wrote {folder}/scaling.md")


if __name__ == "__main__":
    main()
