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

    meter.begin_window("epoch")                       # windows as those of Zeus
    ...
    print(meter.end_window("epoch").total_energy)     # joules of the GPUs, or None

    governor = tamis.energy.Governor(policy="budget", budget_w=20e3, pace_max_s=1.0)
    with governor.drive(comm, meter, reducer) as drive:
        for batch in batches:
            ...
            drive.step()                              # pauses, and decides every 50 steps

docs/energy.md says what is measured and how well; include/tamis/energy.h what each option means.
"""

import contextlib
import math
import os
from typing import Any, Dict, Iterator, List, Union

from . import _core, _measure
from ._core import Comm, Error
from ._governor import Drive, Governor
from ._measure import Measurement

__all__ = ["Drive", "Governor", "Measurement", "Meter"]


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

    _opened: Dict[str, _measure.Opened]

    def __new__(cls, **options: Any) -> "Meter":
        for name in ("json", "intensity", "sysfs_root", "nvml_path"):
            if options.get(name) is not None:
                options[name] = os.fspath(options[name])
        made = super().__new__(cls, **{k: v for k, v in options.items() if v is not None})
        made._opened = {}
        return made

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

    def begin_window(self, key: str, sync_execution: bool = False, restart: bool = False) -> None:
        """Joules are measured from here to end_window(key). Windows overlap as they like; at most
        16 are open at a time. The key is the name of the window's line in the file `json`.

        sync_execution   must be False: no device is ever waited for here. Work that was started
                         and is under way counts where it runs; torch.cuda.synchronize() before this
                         call and before end_window makes a window of the work itself
        restart          a window of that name that is open is given up

        Errors: ValueError, if a window of that name is open; `Error` UNSUPPORTED, if too many are
        """
        self._check_sync(sync_execution)
        if key in self._opened and not restart:
            raise ValueError(
                f"a window named {key!r} is open: end it first, or give restart=True"
            )
        if key in self._opened:
            _measure.drop(self, self._opened.pop(key))
        self._opened[key] = _measure.begin(self, key)

    def end_window(
        self, key: str, sync_execution: bool = False, cancel: bool = False, wait_s: float = 5.0
    ) -> Measurement:
        """What was measured since begin_window(key).

        time, joules and phases are those of the window to the moment; this call waits for the
        counters to pass its end, about 0.1 s on GPUs. Joules of single GPUs, packages and memories
        are what their counters gained between its ends, so a tick too much or too little, as with
        Zeus. One that did not move is unknown.

        cancel   the window is given up, and nothing is measured
        wait_s   for the counters, at most; joules and phases are unknown if it is not enough

        Errors: ValueError, if no window of that name is open
        """
        self._check_sync(sync_execution)
        if key not in self._opened:
            raise ValueError(
                f"no window named {key!r} is open: begin_window comes first"
            )
        opened = self._opened[key]
        if not 0.0 <= float(wait_s) < math.inf:
            raise ValueError(f"wait_s is {wait_s!r}, not a number of seconds")
        if cancel:
            dropped = _measure.drop(self, opened)
            del self._opened[key]
            return dropped
        seconds = _measure.stop(self, opened)  # if it is refused, the window stays open
        del self._opened[key]
        return _measure.finish(self, opened, seconds, float(wait_s))

    @contextlib.contextmanager
    def window(self, name: str, wait_s: float = 5.0) -> Iterator[Measurement]:
        """begin_window and end_window. The Measurement has its figures after the block; a block that
        raises cancels the window."""
        figures = Measurement(missing="the window has not ended")
        self.begin_window(name)
        try:
            yield figures
        except BaseException:
            with contextlib.suppress(Error, ValueError):  # the block may have closed the meter
                vars(figures).update(vars(self.end_window(name, cancel=True)))
            raise
        vars(figures).update(vars(self.end_window(name, wait_s=wait_s)))

    @staticmethod
    def _check_sync(wanted: bool) -> None:
        if wanted:
            raise ValueError(
                "sync_execution=True: a Meter never waits for a device; leave it out, and call"
                " torch.cuda.synchronize() before the window begins and ends"
            )

    def step(self, stats: Dict[str, Union[int, float]]) -> None:
        """A step has ended, of which Reducer.stats() gives bytes and entries. tamis.torch does it
        by itself."""
        super().step(stats)

    def read(self) -> Dict[str, Any]:
        """Joules of this process' counters since they were opened, up to their last ticks. Never
        waits.

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
