# SPDX-License-Identifier: MIT
"""Tables and plots of fidelity.py."""
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
    runs: list  # of each seed its records, the summary last

    @property
    def summaries(self):
        return [records[-1] for records in self.runs]

    @property
    def identical(self):
        return all(s["replicas_identical"] for s in self.summaries)

    @property
    def is_loss(self):
        return self.summaries[0]["metric"] == "validation_loss"

    @property
    def values(self):
        return [float("nan") if s["metric_value"] is None else s["metric_value"]
                for s in self.summaries]

    @property
    def bytes_share(self):
        """Of a dense all-reduce in float32."""
        return statistics.mean(s["wire_bytes_per_step"] / s["dense_bytes_per_step"]
                               for s in self.summaries)

    def mean(self):
        return statistics.mean(self.values)


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


def table(rows):
    lines = ["| variant | metric | against dense | spread of seeds | bytes of dense | lr | lr tried: seed 1 |",
             "|---|---|---|---|---|---|---|"]
    dense = next(r for r in rows if r.variant == "dense")
    for r in rows:
        spread = max(r.values) - min(r.values) if len(r.values) > 1 else None
        tried = ", ".join(f"{rate:g}: {'-' if value is None else text_of(value, r.is_loss)}"
                          for rate, value in r.tried.items())
        lines.append("| " + " | ".join([
            r.variant, text_of(r.mean(), r.is_loss), against(r, dense),
            "-" if spread is None else text_of(spread, r.is_loss),
            f"{100 * r.bytes_share:.2f} %", f"{r.rate:g}", tried or "-"]) + " |")
    return "\n".join(lines) + "\n"


def groups(rows):
    found = {}
    for row in rows:
        found.setdefault((row.workload, row.optimizer), []).append(row)
    return found


def plot(rows, path, over):
    """Validation loss of seed 1 over steps or over bytes that a rank has sent."""
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(8, 5))
    for row in rows:
        points = [r for r in row.runs[0] if r["record"] == "step"]
        axes.plot([p[over] for p in points], [p["validation_loss"] for p in points],
                  label=row.variant, linewidth=2.2 if row.variant == "dense" else 1.2,
                  color="black" if row.variant == "dense" else None)
    axes.set_xlabel("steps" if over == "step" else "bytes sent by a rank")
    axes.set_ylabel("validation loss")
    axes.set_title(f"{rows[0].workload}, {rows[0].optimizer}")
    if over != "step":
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def write(rows, folder):
    parts = ["# Fidelity\n"]
    for (workload, optimizer), group in groups(rows).items():
        seeds = [s["seed"] for s in group[0].summaries]
        first = group[0].summaries[0]
        parts.append(f"## {workload}, {optimizer}\n\n{first['steps']} steps, {first['ranks']} ranks, "
                     f"{first['parameters']} parameters, metric {first['metric']}, mean of seeds "
                     f"{', '.join(map(str, seeds))}\n")
        parts.append(table(group))
        for over in ("step", "wire_bytes"):
            name = f"{workload}-{optimizer}-{over}.png"
            plot(group, os.path.join(folder, name), over)
            parts.append(f"![{over}]({name})\n")
    path = os.path.join(folder, "fidelity.md")
    with open(path, "w", encoding="utf-8") as out:
        out.write("\n".join(parts))
    print(f"Wrote {path}")
