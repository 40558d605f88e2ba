# SPDX-License-Identifier: MIT
"""What a run looked like, step by step, and a picture of it."""

from array import array
from typing import Any, Dict, List, Optional, Sequence

KEPT = 1024


class History:
    """A few figures of each step; of a long run their means over `every` steps: KEPT to 2 * KEPT
    points, whatever its length."""

    NAMES = ("wire_bytes", "dense_bytes", "captured", "step_s", "hidden_s", "exposed_s")

    def __init__(self) -> None:
        self.every = 1
        self.rows: Dict[str, "array[float]"] = {name: array("d") for name in self.NAMES}
        self._sums: List[float] = [0.0] * len(self.NAMES)
        self._summed = 0

    def add(self, *values: float) -> None:
        """A step's, in the order of NAMES."""
        self._sums = [total + value for total, value in zip(self._sums, values)]
        self._summed += 1
        if self._summed < self.every:
            return
        for name, total in zip(self.NAMES, self._sums):
            self.rows[name].append(total / self.every)
        self._sums, self._summed = [0.0] * len(self.NAMES), 0
        if len(self.rows["wire_bytes"]) == 2 * KEPT:
            self._halve()

    def _halve(self) -> None:
        for name, row in self.rows.items():
            self.rows[name] = array("d", [(a + b) / 2 for a, b in zip(row[::2], row[1::2])])
        self.every *= 2

    def steps(self) -> List[int]:
        """The number of the last step of each point, from 1 on."""
        return [self.every * (point + 1) for point in range(len(self.rows["wire_bytes"]))]


def draw(history: History, losses: Optional[Sequence[float]], title: str) -> Any:
    """A matplotlib Figure: losses, if there are any; what is captured; bytes; times."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib: pip install matplotlib (Debian: python3-matplotlib);"
            " scalars() has the figures without it"
        ) from error
    steps, rows = history.steps(), history.rows
    if not steps:
        raise ValueError("plot: no step was made yet, so there is nothing to draw")
    captured = any(value == value for value in rows["captured"])  # NaN: nothing is kept
    number = 2 + captured + (losses is not None)
    figure = Figure(figsize=(7, 2.2 * number), layout="constrained")
    axes = list(figure.subplots(number, 1, sharex=True))
    figure.suptitle(title, fontsize="medium")
    if losses is not None:
        each = steps[-1] / max(1, len(losses))
        axes[0].plot([each * (i + 1) for i in range(len(losses))], list(losses), label="loss", linewidth=0.8)
        axes[0].set_ylabel("loss")
    if captured:
        axes[-3].plot(steps, rows["captured"], label="captured", linewidth=0.8)
        axes[-3].set_ylabel("share of energy")
        axes[-3].set_ylim(0, 1)
    axes[-2].plot(steps, rows["dense_bytes"], "--", color="gray", label="dense, a ring")
    sent, dense = sum(rows["wire_bytes"]), sum(rows["dense_bytes"])
    ratio = f", 1/{dense / sent:.1f} of dense" if sent else ""
    axes[-2].plot(steps, rows["wire_bytes"], label="sent" + ratio)
    axes[-2].set_ylabel("bytes a step")
    if sent:
        axes[-2].set_yscale("log")
    for name, label in (("step_s", "step"), ("exposed_s", "waited"), ("hidden_s", "hidden")):
        axes[-1].plot(steps, [1e3 * value for value in rows[name]], label=label, linewidth=0.8)
    axes[-1].set_ylabel("ms")
    slow = sorted(value for value in rows["step_s"] if value == value)  # the first one is NaN
    if slow:
        axes[-1].set_ylim(0, 1.5e3 * slow[int(0.99 * (len(slow) - 1))])  # a hiccup hides no curve
    axes[-1].set_xlabel("step")
    for one in axes:
        one.legend(loc="best", fontsize="small")
        one.grid(alpha=0.3)
    return figure
