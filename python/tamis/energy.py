# SPDX-License-Identifier: MIT
"""Joules of a training run, by phase, and None where nothing can be measured.

    with tamis.energy.Meter(json="energy.jsonl") as meter:
        reducer = tamis.Reducer(comm, layout, density=0.01, meter=meter)
        for batch in batches:
            with meter.phase("compute"):
                gradient = backward(batch)
            reducer.start(gradient)
            reducer.wait()
            meter.step(reducer.stats())
        print(meter.report(comm))
        reducer.close()

docs/energy.md says what is measured and how well; include/tamis/energy.h what each option means.
"""

import contextlib
import os
from typing import Any, Dict, Iterator, List, Union

from . import _core
from ._core import Comm, Error

__all__ = ["Meter"]


class Meter(_core.Meter):
    """Reads the energy counters of this host, on threads of the library. One per process.

    sources     names joined by "," (docs/energy.md), "auto" or "none"; None: TAMIS_ENERGY
    files       other counters, "name=path:unit,..."
    gpus        UUIDs or PCI bus ids; None: all of the host
    json        file of JSON Lines to write, a path of its own for each rank
    run, rank, nranks        in that file
    window_s    between two of its lines (5)
    settle_s    report a phase at most this long after it began (2; 0 to 5)
    pue, g_per_kwh, intensity     for grams of CO2: power of the site / power of the computers; a
                constant; a file "time,g_per_kwh"
    sysfs_root, nvml_path    where to look in place of /sys and libnvidia-ml.so.1

    None is the default of each. A host without counters is a normal state: `known` is then False,
    joules are None, and `missing` says why.

    Marks (begin, end, phase) come from any thread. A reducer, or tamis.torch, that got the meter
    reports its own phases, and keeps it alive; close those first.

    Errors: `Error` ARGUMENT; IO, FORMAT for files of the options
    """

    def __new__(cls, **options: Any) -> "Meter":
        for name in ("json", "intensity", "sysfs_root", "nvml_path"):
            if options.get(name) is not None:
                options[name] = os.fspath(options[name])
        return super().__new__(cls, **{k: v for k, v in options.items() if v is not None})

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Close it. Where an exception leaves reducers open, that one is raised; the meter is then
        closed after them."""
        try:
            self.close()
        except Error:
            if kind is None:
                raise

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """begin and end of a phase: "compute", "forward", "backward", "optimizer", "input", or
        "user0" to "user9". Phases nest and overlap as they like."""
        self.begin(name)
        try:
            yield
        finally:
            self.end(name)

    def step(self, stats: Dict[str, Union[int, float]]) -> None:
        """A step has ended, of which Reducer.stats() gives bytes and entries. tamis.torch does it
        by itself."""
        super().step(stats)

    def read(self) -> Dict[str, Any]:
        """Joules of this process' counters since they were opened, as far as they have been
        attributed: until some seconds ago. Never waits.

        known         False: nothing could be measured
        joules        of the counted domains; phases and `unattributed` add up to it
        phases        {name: {joules, low, high, seconds, method, inseparable}} of those that took
                      time. low, high: 95 % interval; method: "regressed", ...; inseparable: phases
                      of which only the sum with this one is known
        seconds, steps, wire_bytes, unattributed
        grams         of CO2
        missing       domains that are not in `joules`, and why

        What is unknown is None.
        """
        return super().read()

    def domains(self) -> List[Dict[str, Any]]:
        """Every counter that was looked for: id, source, kind, status, reason, counted, joules,
        wraps, resets, tick_s, lag_s, duty."""
        return super().domains()

    def report(self, comm: Comm) -> Dict[str, Any]:
        """As read, of all ranks together: each counter once, however many ranks see it.

        Collective: over `comm`, between steps     Errors: `Error` as the communicator
        """
        return super().report(comm)
