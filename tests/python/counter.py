# SPDX-License-Identifier: MIT
"""A counter of energy in a file, for the source `file`: it ticks as a host of so many watts would."""

import os
import pathlib
import threading
import time


class Counter:
    def __init__(self, folder, watts=100.0, tick_s=0.02):
        self.path = pathlib.Path(folder) / "node.uj"
        self.watts, self.tick_s = watts, tick_s
        self.uj = 0.0
        self._stop = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def files(self):
        """As the option of a meter."""
        return f"node={self.path}:uJ"

    def _write(self):
        beside = self.path.with_suffix(".new")
        beside.write_text(f"{int(self.uj)}\n")
        os.replace(beside, self.path)

    def _run(self):
        before = time.monotonic()
        while not self._stop.wait(self.tick_s):
            now = time.monotonic()
            self.uj += 1e6 * self.watts * (now - before)
            before = now
            self._write()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def await_joules(meter, joules, seconds=20.0):
    """What a meter reads once it has attributed so many joules."""
    end = time.monotonic() + seconds
    totals = meter.read()
    while not (totals["known"] and totals["joules"] >= joules):
        assert time.monotonic() < end, f"{totals} after {seconds} s"
        time.sleep(0.05)
        totals = meter.read()
    return totals


def adds_up(totals):
    """Phases and the rest are the whole, to the microjoule."""
    parts = [phase["joules"] or 0.0 for phase in totals["phases"].values()]
    return abs(sum(parts) + totals["unattributed"] - totals["joules"]) < 1e-6 * (len(parts) + 1)
