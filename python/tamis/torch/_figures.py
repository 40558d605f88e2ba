# SPDX-License-Identifier: MIT
"""Figures of the last step, and totals since the state was made."""

import time
from typing import Any, Dict, List, Optional

from ..energy import Meter
from ._group import Group
from ._plot import History

PHASES = ("accumulate", "select", "exchange", "apply")


class Figures:
    """Sums over steps. Times are this rank's, in seconds."""

    def __init__(self) -> None:
        self.steps = self.lost = 0
        self.wire_bytes = self.dense_bytes = 0
        self.seconds = dict.fromkeys(PHASES + ("exposed",), 0.0)
        self.last: Dict[str, Any] = {}
        self._lasts: Dict[int, Dict[str, Any]] = {}  # by exchange
        self.gradient_norm: Optional[float] = None  # of the whole gradient of this rank
        self.history = History()
        self._ended = float("nan")  # when the last step ended: seconds of perf_counter

    def add(
        self,
        exchange: int,
        groups: List[Group],
        rows: List[Dict[str, Any]],
        exposed_s: float,
        lost: bool,
    ) -> None:
        """Add a step of an exchange that has ended; backward (or step) waited `exposed_s` for it. The
        last step is that of all exchanges, of which the first one counts."""
        last = {
            "length": sum(group.layout.length for group in groups),
            "selected": 0 if lost else sum(row["selected"] for row in rows),
            "wire_bytes": sum(row["wire_bytes"] for row in rows),
            "dense_bytes": sum(dense_bytes(group) for group in groups),
            "seconds": {phase: sum(row[phase + "_s"] for row in rows) for phase in PHASES},
            **_norms(rows),
        }
        last["seconds"]["exposed"] = exposed_s
        self._lasts[exchange] = last
        self.last = _sum_of(list(self._lasts.values()))
        if self.gradient_norm is not None:
            self.last["gradient_norm"] = self.gradient_norm
        self.steps += exchange == 0
        self.lost += lost
        self.wire_bytes += last["wire_bytes"]
        self.dense_bytes += last["dense_bytes"]
        for phase, value in last["seconds"].items():
            self.seconds[phase] += value
        now = time.perf_counter()
        hidden_s = max(0.0, sum(last["seconds"][phase] for phase in PHASES) - exposed_s)
        captured = last["captured"]
        self.history.add(
            last["wire_bytes"],
            last["dense_bytes"],
            float("nan") if captured is None else captured,
            now - self._ended,
            hidden_s,
            exposed_s,
        )
        self._ended = now

    def renew(self, rows: List[Dict[str, Any]]) -> None:
        """The last step has ended on the device, whose figures were those of an earlier one."""
        if not self.last or self.last["wire_bytes"] or not any(row["steps"] for row in rows):
            return
        self.last["selected"] = sum(row["selected"] for row in rows)
        self.last["wire_bytes"] = sum(row["wire_bytes"] for row in rows)
        self.wire_bytes += self.last["wire_bytes"]

    def read(self, groups: List[Group]) -> Dict[str, Any]:
        last = dict(self.last, seconds=dict(self.last["seconds"])) if self.last else {}
        if last:
            last["density"] = last["selected"] / last["length"]
            last.update(_ratios(last))
        total = {
            "steps": self.steps,
            "lost_steps": self.lost,
            "wire_bytes": self.wire_bytes,
            "dense_bytes": self.dense_bytes,
            "seconds": dict(self.seconds),
        }
        return {
            "step": last,
            "total": dict(total, **_ratios(total)),
            "groups": [
                dict(group.reducer.stats(), dtype=str(group.dtype).split(".")[1])
                for group in groups
            ],
        }


def _norms(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    """captured: of the energy that this rank had accumulated, the share that travelled."""
    kept, had = (sum(row[name] ** 2 for row in rows) for name in ("residual_norm", "acc_norm"))
    captured = max(0.0, 1.0 - kept / had) if had > 0.0 else None
    return {"residual_norm": kept**0.5, "acc_norm": had**0.5, "captured": captured}


def _sum_of(rows: List[Dict[str, Any]]) -> Dict[str, Any]:
    counts = ("length", "selected", "wire_bytes", "dense_bytes")
    found: Dict[str, Any] = {name: sum(row[name] for row in rows) for name in counts}
    found.update(_norms(rows))
    phases = rows[0]["seconds"]
    found["seconds"] = {name: sum(row["seconds"][name] for row in rows) for name in phases}
    return found


def _ratios(row: Dict[str, Any]) -> Dict[str, Optional[float]]:
    phases = sum(row["seconds"][phase] for phase in PHASES)
    sent = row["wire_bytes"]
    return {
        "compression": row["dense_bytes"] / sent if sent else None,
        "hidden": max(0.0, 1.0 - row["seconds"]["exposed"] / phases) if phases else 0.0,
    }


def merged(rows: List[Dict[str, Any]], lost: bool) -> Dict[str, Any]:
    """The fields of tamis_stats that a meter needs, for a step over all dtypes."""
    figures = {name: sum(row[name] for row in rows) for name in ("length", "target", "wire_bytes")}
    figures["selected"] = 0 if lost else sum(row["selected"] for row in rows)
    figures["residual_norm"] = sum(row["residual_norm"] ** 2 for row in rows) ** 0.5
    last = max(rows, key=lambda row: row["lag_s"])
    return dict(figures, lag_s=last["lag_s"], straggler=last["straggler"])


def joules(meter: Meter) -> Optional[Dict[str, Optional[float]]]:
    """Joules by phase; None if nothing is known."""
    totals = meter.read()
    if not totals["known"]:
        return None
    return {name: phase["joules"] for name, phase in totals["phases"].items()}


def dense_bytes(group: Group) -> int:
    """Bytes that this rank would send in a ring all-reduce of the gradient."""
    nranks = group.comm.nranks
    size = group.parameters[0].element_size()
    return 2 * (nranks - 1) * group.layout.length * size // nranks
