# SPDX-License-Identifier: MIT
"""Tables and plots of fidelity.py."""
import math
import os
import statistics
from dataclasses import dataclass


@dataclass
class Row:
    workload: str
    optimizer: str
    variant: str
    rate: float
    tried: dict  # rate -> metric of seed 1
    runs: list  # the records of each seed, the summary last

    @property
    def summaries(self):
        return [records[-1] for records in self.runs]

    @property
    def identical(self):
        return all(s["replicas_identical"] for s in self.summaries)

    @property
    def finished(self):
        """Summaries of runs that did not diverge; diverged runs have no figures."""
        return [s for s in self.summaries if s["metric_value"] is not None]

    @property
    def is_loss(self):
        return all(s["metric"] == "validation_loss" for s in self.finished)

    @property
    def values(self):
        return [float("nan") if s["metric_value"] is None else s["metric_value"]
                for s in self.summaries]

    @property
    def bytes_share(self):
        """Bytes as a share of a dense all-reduce in float32."""
        shares = [s["wire_bytes_per_step"] / s["dense_bytes_per_step"] for s in self.finished]
        return statistics.mean(shares) if shares else math.nan

    def mean(self):
        return statistics.mean(self.values)

    def spread(self):
        return max(self.values) - min(self.values)

    @property
    def group(self):
        """The key of rows that are compared with each other."""
        return self.workload, self.optimizer, self.summaries[0]["steps"]

    @property
    def is_curve(self):
        """Whether this is a plain density of tamis, a point of the curve for at_same_bytes."""
        return self.variant.startswith("tamis") and self.variant.endswith("%")


def text_of(value, is_loss):
    return f"{value:.4f}" if is_loss else f"{100 * value:.2f} %"


def line(row):
    return (f"{row.workload:4} {row.optimizer:9} {row.variant:22} lr {row.rate:<7g} "
            f"{text_of(row.mean(), row.is_loss):>9} bytes {100 * row.bytes_share:7.3f} %")


def against(row, dense):
    """Losses as a ratio, accuracies in percentage points."""
    if row.is_loss:
        return f"{100 * (row.mean() / dense.mean() - 1):+.2f} %"
    return f"{100 * (row.mean() - dense.mean()):+.2f}"


def at_same_bytes(row, rows):
    """The metric of tamis at the bytes of another row, interpolated linearly over log(bytes); None
    if these bytes lie outside the range of its densities."""
    curve = sorted((math.log(r.bytes_share), r.mean()) for r in rows if r.is_curve)
    at = math.log(row.bytes_share)
    for (x0, y0), (x1, y1) in zip(curve, curve[1:]):
        if x0 <= at <= x1:
            return y0 + (y1 - y0) * (at - x0) / (x1 - x0)
    return None


def table(rows):
    lines = ["| variant | metric | against dense | spread of seeds | bytes of dense "
             "| tamis, same bytes | lr | lr tried: seed 1 |",
             "|---|---|---|---|---|---|---|---|"]
    dense = next(r for r in rows if r.variant == "dense")
    for r in rows:
        spread = r.spread() if len(r.values) > 1 else None
        same = None if r.is_curve or r is dense else at_same_bytes(r, rows)
        tried = ", ".join(f"{rate:g}: {'-' if value is None else text_of(value, r.is_loss)}"
                          for rate, value in r.tried.items())
        lines.append("| " + " | ".join([
            r.variant, text_of(r.mean(), r.is_loss), against(r, dense),
            "-" if spread is None else text_of(spread, r.is_loss),
            f"{100 * r.bytes_share:.2f} %", "-" if same is None else text_of(same, r.is_loss),
            f"{r.rate:g}", tried or "-"]) + " |")
    return "\n".join(lines) + "\n"


def groups(rows):
    found = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


def style(row):
    """tamis is solid, or dotted if it feeds the optimizer with gradients; others are dashed."""
    if row.variant == "dense":
        return dict(color="black", linewidth=2.2)
    dashes = ":" if row.variant.endswith("gradients") else "-" if "tamis" in row.variant else "--"
    return dict(linestyle=dashes, linewidth=1.4)


def plot(rows, path, over):
    """Validation loss of seed 1 over steps or over bytes that a rank has sent."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(8, 5))
    shades = plt.get_cmap("tab20").colors
    axes.set_prop_cycle(color=shades[0::2] + shades[1::2])
    for row in rows:
        points = [r for r in row.runs[0] if r["record"] == "step"]
        axes.plot([p[over] for p in points], [p["validation_loss"] for p in points],
                  label=row.variant, **style(row))
    axes.set_xlabel("steps" if over == "step" else "bytes sent by a rank")
    axes.set_ylabel("validation loss")
    axes.set_title("{}, {}, {} steps".format(*rows[0].group))
    if over != "step":
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def frontier(rows, path):
    """What a variant loses beside dense, over its bytes; means of all seeds that did not diverge."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    dense = next(r for r in rows if r.variant == "dense")
    figure, axes = plt.subplots(figsize=(9, 6))
    for row in rows:
        over = 100 * (row.mean() / dense.mean() - 1)
        if row is dense or math.isnan(over):
            continue
        own = row.variant.startswith(("tamis", "local")) and not row.variant.endswith("gradients")
        axes.plot(100 * row.bytes_share, over, "o" if own else "x",
                  color="tab:blue" if own else "tab:red")
        axes.annotate(row.variant, (100 * row.bytes_share, over), xytext=(4, 3),
                      textcoords="offset points", fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=5)
    axes.set_xlabel("bytes, % of a dense all-reduce in float32")
    axes.set_ylabel("validation loss over dense, %")
    axes.set_title("{}, {}, {} steps".format(*rows[0].group))
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(rows, folder):
    parts = ["# Fidelity\n"]
    for (workload, optimizer, steps), group in groups(rows).items():
        seeds = [s["seed"] for s in group[0].finished]
        first = group[0].finished[0]
        parts.append(f"## {workload}, {optimizer}\n\n{steps} steps, {first['ranks']} ranks, "
                     f"{first['parameters']} parameters, metric {first['metric']}, mean of seeds "
                     f"{', '.join(map(str, seeds))}\n")
        parts.append(table(group))
        if group[0].is_loss:
            name = f"{workload}-{optimizer}-{steps}-frontier.png"
            frontier(group, os.path.join(folder, name))
            parts.append(f"![what is lost over bytes]({name})\n")
        for over in ("step", "wire_bytes"):
            name = f"{workload}-{optimizer}-{steps}-{over}.png"
            plot(group, os.path.join(folder, name), over)
            parts.append(f"![{over}]({name})\n")
    path = os.path.join(folder, "fidelity.md")
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(parts))
    print(f"Wrote {path}")
