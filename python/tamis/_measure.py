# SPDX-License-Identifier: MIT
"""Windows of a meter, in the form that users of Zeus know."""

import dataclasses
import logging
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from ._core import Error, Meter

log = logging.getLogger("tamis")

Joules = Dict[int, Optional[float]]
Domain = Dict[str, Any]


@dataclasses.dataclass
class Measurement:
    """What a window took. The first five fields are those of Zeus' Measurement. What is unknown is
    None, never 0; `missing` says why.

    time            seconds
    gpu_energy      {index: joules} of all GPUs that were found, in the order of Meter.domains()
    cpu_energy      {index: joules} of processor packages; None: of none are they known
    dram_energy     the same of memory
    soc_energy      None: no source measures parts of a chip
    known           False: nothing could be measured
    joules          of all counted domains, each once
    phases          as Meter.read() gives them
    grams           of CO2
    missing         what could not be measured, and why
    """

    time: float = 0.0
    gpu_energy: Joules = dataclasses.field(default_factory=dict)
    cpu_energy: Optional[Joules] = None
    dram_energy: Optional[Joules] = None
    soc_energy: None = None
    known: bool = False
    joules: Optional[float] = None
    phases: Dict[str, Any] = dataclasses.field(default_factory=dict)
    grams: Optional[float] = None
    missing: str = ""

    @property
    def total_energy(self) -> Optional[float]:
        """The sum of gpu_energy; None if there is no GPU, or one is unknown."""
        known = [joules for joules in self.gpu_energy.values() if joules is not None]
        return sum(known) if known and len(known) == len(self.gpu_energy) else None


class Opened(NamedTuple):
    """A window that has begun."""

    number: int
    at_s: float
    domains: List[Domain]


def _is_gpu(domain: Domain) -> bool:
    return bool(domain["source"] == "nvml" or domain["kind"] == "gpu")


KINDS: Dict[str, Callable[[Domain], bool]] = {
    "gpu_energy": _is_gpu,
    "cpu_energy": lambda domain: bool(domain["kind"] == "package"),
    "dram_energy": lambda domain: bool(domain["kind"] == "dram"),
}


def _why_unknown(before: Domain, after: Domain) -> str:
    """"" if what the counter gained between two looks is what the domain took."""
    for domain in (after, before):
        if domain["status"] != "ok":
            return str(domain["reason"] or domain["status"])
    if after["resets"] != before["resets"]:
        return "its counter was reset in the window"
    return "" if after["joules"] > before["joules"] else "its counter did not move in the window"


def _by_kind(before: List[Domain], after: List[Domain], missing: List[str]) -> Dict[str, Joules]:
    """{field: {index: joules}}; appends to `missing` what is unknown."""
    found: Dict[str, Joules] = {field: {} for field in KINDS}
    for field, belongs in KINDS.items():
        for old, new in zip(before, after):
            if ":" not in new["id"] or not belongs(new):  # no colon: the source has no such domain
                continue
            why = _why_unknown(old, new)
            joules = None if why else round(new["joules"] - old["joules"], 6)
            found[field][len(found[field])] = joules
            if why and not any(new["id"] in text for text in missing):
                missing.append(f"{new['id']}: {why}")
    return found


def begin(meter: Meter, name: str) -> Opened:
    domains = meter.domains()
    return Opened(meter._window_begin(name), time.monotonic(), domains)


def drop(meter: Meter, opened: Opened) -> Measurement:
    meter._window_drop(opened.number)
    return Measurement(missing="the window was cancelled")


def _retry(call: Callable[[], Any], until: float) -> Any:
    """What it returns, once that is not None; a report of another thread is waited for. At the
    deadline None, or its Error."""
    while True:
        late = time.monotonic() >= until
        try:
            found = call()
            if found is not None or late:
                return found
        except Error as error:
            if late or error.status != "TAMIS_E_STATE":
                raise
        time.sleep(0.005)


def stop(meter: Meter, opened: Opened) -> float:
    """The window ends now, if the meter takes it. Returns its seconds."""
    meter._window_end(opened.number)
    return time.monotonic() - opened.at_s


def finish(meter: Meter, opened: Opened, seconds: float, wait_s: float) -> Measurement:
    """What a stopped window measured. It is free after, whatever happens."""
    until = time.monotonic() + wait_s
    try:
        after = _retry(meter.domains, until)
        totals = _retry(lambda: meter._window_result(opened.number), until)
    except BaseException:
        _try_drop(meter, opened)
        raise
    if totals is None:
        _try_drop(meter, opened)
    return _made(opened, seconds, after, totals, wait_s)


def _try_drop(meter: Meter, opened: Opened) -> None:
    try:
        meter._window_drop(opened.number)
    except Error as error:
        log.debug("a window stays open: %s", error)


def _made(
    opened: Opened,
    seconds: float,
    after: List[Domain],
    totals: Optional[Dict[str, Any]],
    wait_s: float,
) -> Measurement:
    late = f"the counters have not moved past the end of the window within {wait_s:g} s"
    missing = [text for text in [totals["missing"] if totals else late] if text]
    found = _by_kind(opened.domains, after, missing)
    made = Measurement(time=seconds, gpu_energy=found["gpu_energy"])
    made.cpu_energy, made.dram_energy = map(_or_none, (found["cpu_energy"], found["dram_energy"]))
    if totals:
        made.time = totals["seconds"]
        made.known, made.joules = totals["known"], totals["joules"]
        made.phases, made.grams = totals["phases"], totals["grams"]
    made.missing = "; ".join(missing)
    return made


def _or_none(joules: Joules) -> Optional[Joules]:
    return joules if any(value is not None for value in joules.values()) else None
