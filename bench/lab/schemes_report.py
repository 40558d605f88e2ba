#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""All presets side by side: a Markdown report with plots, made from records.

    schemes_report.py --out DIR [--presets a,b,c] [--no-plots] RECORDS.jsonl...

Reads records of tamis_schemes (scheme, scheme_speed), tamis_train (summary) and bench/lab/schemes.sh
(load), and writes DIR/schemes.md and PNG files. Ends with status 1 if a preset broke a rule: an entry
is wrong, replicas differ, a promised count was not kept, or a preset of --presets has no record.
The report explains the figures above each table.
"""
import argparse
import json
import math
import os
import statistics
import sys


def read(paths):
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as lines:
            records += [json.loads(line) for line in lines if line.strip()]
    return records


def of_kind(records, kind):
    return [r for r in records if r.get("record") == kind]


def presets_of(records, wanted):
    """Presets in the order of the library, then others in the order of the records."""
    names = list(wanted)
    for r in records:
        if r.get("scheme") and r["scheme"] not in names:
            names.append(r["scheme"])
    return names


# -- rules ---------------------------------------------------------------------------------------


def faults(r):
    """What is wrong with one record, in sentences."""
    found = []
    if r["record"] == "scheme":
        if r["wrong"] != 0:
            found.append(f"{r['wrong']:.0f} entries, indices or counts are wrong")
        if r["count_promised"] and not r["selected_min"] == r["selected_max"] == r["target"]:
            found.append(f"{r['selected_min']:.0f} to {r['selected_max']:.0f} entries were "
                         f"selected, promised were {r['target']}")
    if not r["replicas_identical"]:
        found.append("replicas differ")
    return found


def where(r):
    if r["record"] == "summary":
        return f"training, seed {r['seed']}, density {r['density_target']:g}"
    return f"{r['input']}, {r['ranks']} ranks, density {r['density_target']:g}"


def check(records, names):
    """@return (rows of the table of all presets, sentences about what is broken)"""
    rows, broken = [], []
    for name in names:
        runs = [r for r in records if r["record"] == "scheme" and r["scheme"] == name]
        trained = [r for r in records if r["record"] == "summary" and r["scheme"] == name]
        if not runs:
            broken.append(f"{name}: there is no record of it")
            continue
        for r in runs + trained:
            broken += [f"{name} ({where(r)}): {fault}" for fault in faults(r)]
        first = runs[0]
        policies = (first["ownership"], first["budget"], first["threshold_rule"], first["exchange"])
        rows.append([
            name, " + ".join(policies),
            "exactly k" if first["count_promised"] else "no promise",
            f"{100 * max(r['count_error_max'] for r in runs):.4g} %",
            f"{sum(r['wrong'] for r in runs):.0f}",
            str(sum(len(r["checked"]) for r in runs)),
            "true" if all(r["replicas_identical"] for r in runs + trained) else "FALSE",
            str(len(runs) + len(trained)),
        ])
    return rows, broken


# -- tables --------------------------------------------------------------------------------------


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def number(value, digits=4):
    return "-" if value is None else f"{value:.{digits}g}"


def late(trace):
    """The last third of a trace, where rules have had time to settle."""
    return [v for v in trace[-max(1, len(trace) // 3):] if v is not None]


def threshold_error(r):
    """Median of threshold / true threshold in checked steps; None if they are not comparable."""
    if r["threshold"] is None:
        return None
    ratios = [r["threshold"][c["step"]] / c["true_threshold"] for c in r["checked"]
              if r["threshold"][c["step"]] is not None and c["true_threshold"] > 0]
    return statistics.median(ratios) if ratios else None


def input_row(r):
    density = [d / r["density_target"] for d in r["density"]]
    residual = r["residual"][-1] if r["residual"] else None
    return [
        r["scheme"], number(statistics.mean(density)), number(statistics.mean(late(density))),
        number(min(density)), number(max(density)), number(r["padding_mean"]),
        number(r["imbalance_max"]), number(threshold_error(r)),
        number(statistics.mean(c["captured"] for c in r["checked"])), number(residual),
        f"{r['wire_bytes_per_step']:,.0f}",
        number(100 * r["wire_bytes_per_step"] / max(1.0, r["dense_bytes_per_step"])),
    ]


INPUT_HEAD = ["preset", "real / asked density", "last third", "least", "most", "padding",
              "imbalance, worst", "threshold / true", "captured", "residual", "bytes per step",
              "% of dense"]

INPUT_TEXT = """Density is entries in the result / n, here in units of what was asked: mean, mean of
the last third of the steps, extremes. Padding: P * most entries of a rank / entries of all - 1, mean over
steps; imbalance: most / mean entries of a rank in the worst step. Threshold / true: smallest magnitude that was sent
(mean over ranks) over the k-th largest magnitude of everything that a rank holds (mean over ranks, by a
plain selection), median over the checked steps; - where a preset has one threshold for each layer.
Captured: energy of what left, summed over ranks, over that of as many largest entries. Residual: norm of
what stayed / norm of what was there, last step. Bytes: sent by the rank that sends most.
"""


def inputs_part(runs):
    text = ""
    for name in dict.fromkeys(r["input"] for r in runs):
        rows = [r for r in runs if r["input"] == name]
        most = max(r["steps"] for r in rows)
        rows = [r for r in rows if r["steps"] == most]
        first = rows[0]
        text += (f"\n### {name.capitalize()} gradients: n = {first['n']:,}, {first['ranks']} ranks, "
                 f"{first['steps']} steps, density {first['density_target']:g}\n\n")
        text += table(INPUT_HEAD, [input_row(r) for r in rows])
    return INPUT_TEXT + text if text else ""


def sweep_of(runs):
    """Runs over several numbers of ranks with the same n and steps: the largest such family."""
    families = {}
    for r in runs:
        if r["input"] == "synthetic":
            families.setdefault((r["n"], r["steps"], r["density_target"]), []).append(r)
    wide = [f for f in families.values() if len({r["ranks"] for r in f}) > 1]
    return max(wide, key=len) if wide else []


def sweep_part(runs, names):
    if not runs:
        return ""
    counts = sorted({r["ranks"] for r in runs})
    cell = {(r["scheme"], r["ranks"]): r for r in runs}
    text = ("Processor time of a rank's own thread in us: mean over ranks / slowest rank, each the median "
            "over steps. Ranks are threads\nthat take turns on the cores there are; what others do in their "
            "turns, and sleeping, is not counted, so a figure is what the\nphase takes where every rank has a "
            "core; but caches and memory are shared, and cold after a turn of others. "
            f"n = {runs[0]['n']:,},\n{runs[0]['steps']} steps.\n")
    for phase in ("accumulate", "select"):
        rows = [[name] + [f"{number(cell[name, p]['cpu_us'][phase], 3)} / "
                          f"{number(cell[name, p]['cpu_slowest_us'][phase], 3)}"
                          if (name, p) in cell else "-" for p in counts]
                for name in names if any((name, p) in cell for p in counts)]
        text += f"\n### {phase}\n\n" + table(["preset"] + [f"{p} ranks" for p in counts], rows)
    return text


def accuracy_part(summaries, names):
    text = ""
    for density in sorted({s["density_target"] for s in summaries if s["scheme"] != "dense"},
                          reverse=True):
        rows = []
        for name in names:
            runs = [s for s in summaries if s["scheme"] == name and
                    (name == "dense" or s["density_target"] == density)]
            if not runs:
                continue
            values = [100 * s["metric_value"] for s in runs]
            rows.append([name, str(len(runs)), f"{statistics.mean(values):.2f}",
                         f"{max(values) - min(values):.2f}" if len(values) > 1 else "-",
                         number(statistics.mean(s["density_mean"] for s in runs)),
                         f"{statistics.mean(s['wire_bytes_per_step'] for s in runs):,.0f}",
                         number(statistics.mean(s["residual_ratio"] for s in runs)
                                if runs[0]["residual_ratio"] is not None else None)])
        first = summaries[0]
        text += (f"\n### Density {density:g}: {first['ranks']} ranks, {first['steps']} steps, "
                 f"{first['optimizer']}, learning rate {first['lr']:g}\n\n")
        text += table(["preset", "seeds", "test accuracy %", "spread", "real density",
                       "bytes per step", "residual"], rows)
    return text


def speed_part(speeds, loads):
    text = ""
    for density in sorted({s["density_target"] for s in speeds}, reverse=True):
        runs = [s for s in speeds if s["density_target"] == density]
        first = runs[0]
        rows = [[s["scheme"]] + [f"{s[f]:,.0f}" for f in ("step_us", "accumulate_us", "after_us")] +
                [number(s[f]) for f in ("over", "speedup_after", "after_by_default")] +
                [f"{s['after_least_us']:,.0f}"] for s in runs]
        text += (f"\n### n = {first['n']:,}, {first['ranks']} ranks, density {density:g}, median of "
                 f"{first['repetitions']}; MPI's all-reduce {first['dense_us']:,.0f} us, at best "
                 f"{first['dense_least_us']:,.0f}\n\n")
        text += table(["preset", "step us", "accumulate us", "after us", "step / accumulate",
                       "all-reduce / after", f"after / after of {first['scheme']}",
                       "after, at best"], rows)
    for load in loads:
        text += (f"\nLoad average of the machine, section {load['section']}: {load['before']} before, "
                 f"{load['after']} after, {load['cores']} cores.\n")
    return text


# -- plots ---------------------------------------------------------------------------------------


def style(names):
    import matplotlib
    matplotlib.use("Agg")
    colours = matplotlib.colormaps["tab20"].colors
    return {name: {"color": "black" if i == 0 else colours[(2 * i + i // 10) % 20],
                   "linewidth": 2.2 if i == 0 else 1.2, "zorder": 3 if i == 0 else 2}
            for i, name in enumerate(names)}


def longest(runs):
    """The runs with most steps for each input: those that are plotted over time."""
    panels = {}
    for r in runs:
        panels.setdefault(r["input"], []).append(r)
    return {name: [r for r in rows if r["steps"] == max(x["steps"] for x in rows)]
            for name, rows in panels.items()}


def draw_true(panel, runs, styles):
    """The threshold that each of these presets should have used in the checked steps."""
    for r in runs:
        panel.plot([c["step"] for c in r["checked"]], [c["true_threshold"] for c in r["checked"]],
                   "x", color=styles[r["scheme"]]["color"])
    panel.plot([], [], "kx", label="true: k-th of what is there")


def plot_traces(out, runs, styles, what, label, log, trace):
    import matplotlib.pyplot as plt
    panels = longest(runs)
    figure, axes = plt.subplots(1, len(panels), figsize=(6.5 * len(panels), 4.4), squeeze=False)
    for panel, (name, rows) in zip(axes[0], panels.items()):
        rows = [r for r in rows if trace(r) is not None]
        if not rows:
            continue
        for r in rows:
            panel.plot([math.nan if v is None else v for v in trace(r)], label=r["scheme"],
                       **styles[r["scheme"]])
        if what == "threshold":
            draw_true(panel, rows, styles)
        panel.set_title(f"{name}, {rows[0]['ranks']} ranks, density {rows[0]['density_target']:g}")
        panel.set_xlabel("step")
        panel.set_ylabel(label)
        panel.set_yscale("log" if log else "linear")
        panel.grid(alpha=0.3)
    axes[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(os.path.join(out, f"{what}.png"), dpi=110)
    plt.close(figure)


def plot_ranks(out, runs, styles):
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.4))
    for panel, phase in zip(axes, ("accumulate", "select")):
        for name in dict.fromkeys(r["scheme"] for r in runs):
            points = sorted((r["ranks"], r["cpu_us"][phase]) for r in runs if r["scheme"] == name)
            if any(y > 0 for _, y in points):
                panel.plot(*zip(*points), marker="o", markersize=3, label=name, **styles[name])
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("ranks")
        panel.set_ylabel(f"{phase}: processor time of a rank, mean, us")
        panel.grid(alpha=0.3)
    axes[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(os.path.join(out, "ranks.png"), dpi=110)
    plt.close(figure)


def plot_accuracy(out, summaries, styles):
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(7, 4.4))
    for s in summaries:
        axes.scatter(s["wire_bytes_per_step"], 100 * s["metric_value"],
                     color=styles[s["scheme"]]["color"], s=24)
    for name in dict.fromkeys(s["scheme"] for s in summaries):
        axes.scatter([], [], color=styles[name]["color"], label=name)
    axes.set_xscale("log")
    axes.set_xlabel("bytes sent per step by the rank that sends most")
    axes.set_ylabel("test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(os.path.join(out, "accuracy.png"), dpi=110)
    plt.close(figure)


def plot(out, runs, sweep, summaries, names):
    """@return the names of the files"""
    styles, files = style(names), []
    if runs:
        plot_traces(out, runs, styles, "density", "real density / asked", True,
                    lambda r: [d / r["density_target"] for d in r["density"]])
        plot_traces(out, runs, styles, "threshold", "threshold", True, lambda r: r["threshold"])
        plot_traces(out, runs, styles, "padding", "padding of entries + 1", True,
                    lambda r: [p + 1 for p in r["padding"]])
        plot_traces(out, runs, styles, "residual", "norm of residual / of what was there", False,
                    lambda r: r["residual"])
        files += ["density", "threshold", "padding", "residual"]
    if sweep:
        plot_ranks(out, sweep, styles)
        files.append("ranks")
    if summaries:
        plot_accuracy(out, summaries, styles)
        files.append("accuracy")
    return files


# -- the report ----------------------------------------------------------------------------------


def report(records, names, rows, broken, files):
    runs, sweep = of_kind(records, "scheme"), sweep_of(of_kind(records, "scheme"))
    parts = [
        ("All presets", table(["preset", "policies", "count", "largest error of the count", "wrong",
                               "steps checked", "replicas_identical", "runs"], rows) * bool(rows) +
         "".join(f"\n**Broken:** {sentence}\n" for sentence in broken)),
        ("On the same gradients", inputs_part([r for r in runs if r not in sweep])),
        ("Time against ranks", sweep_part(sweep, names)),
        ("Accuracy", accuracy_part(of_kind(records, "summary"), names)),
        ("Whole steps in shared memory", speed_part(of_kind(records, "scheme_speed"),
                                                    of_kind(records, "load"))),
        ("Plots", "\n".join(f"![{name}]({name}.png)\n" for name in files)),
    ]
    text = "# Presets side by side\n\nMade by `bash bench/lab/schemes.sh`.\n"
    for title, body in parts:
        if body.strip():
            text += f"\n## {title}\n\n{body}"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--presets", default="", metavar="A,B,C", help="that must have records")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("records", nargs="+", metavar="RECORDS.jsonl")
    arguments = parser.parse_args()

    records = read(arguments.records)
    wanted = [name for name in arguments.presets.split(",") if name]
    runs, summaries = of_kind(records, "scheme"), of_kind(records, "summary")
    names = presets_of(runs + summaries, wanted)
    rows, broken = check(records, names)
    sweep = sweep_of(runs)
    files = [] if arguments.no_plots else plot(arguments.out, [r for r in runs if r not in sweep],
                                               sweep, summaries, names)
    path = os.path.join(arguments.out, "schemes.md")
    with open(path, "w", encoding="utf-8") as out:
        out.write(report(records, names, rows, broken, files))
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    print(f"Wrote {path}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
