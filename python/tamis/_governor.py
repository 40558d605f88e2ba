# SPDX-License-Identifier: MIT
"""A governor in the loop of a training run. docs/energy.md explains how it decides."""

import json
import logging
import math
import os
import time
from typing import Any, Callable, Dict, IO, NamedTuple, Optional, Protocol, Tuple, Union

from . import _core
from ._core import Comm, Meter

log = logging.getLogger("tamis")

Decision = Dict[str, Any]
# Called with the number of the next step.
Budget = Callable[[int], Union[None, float, Tuple[float, int]]]


class Target(Protocol):
    """A Reducer, or a SparseState of tamis.torch."""

    def set_density(self, density: float) -> None: ...


class Governor(_core.Governor):
    """A budget of watts or grams in, knobs out. Give all ranks the same options.

    policy                   "off", "budget", "carbon-threshold", "carbon-proportional"
    budget_w, budget_g_per_h of the job; with both the tighter holds
    pue                      watts of the site per watt of the job (1)
    slowdown, slowdown_most  carbon: share of time that may be lost on average, and at worst
    threshold_g_per_kwh      carbon-threshold; 0: the mean of the outlook
    density_min, density_max open this knob if they differ; training then takes another course
    residual_max             norm above which density is the largest
    pace_max_s               longest pause after a step; 0: none
    allow_cap, cap_min_w, cap_max_w, devices     power limits of devices are proposed
    dead_band, ramp_w_per_s, lead_steps          tamis/governor.h
    intensity, g_per_kwh     CO2 of the power, as for a Meter

    decide(step, steps, seconds, uj=None, density, pace_s, cap_w, residual_norm,
           intensity_g_per_kwh, outlook_g_per_kwh, outlook_low_g_per_kwh) learns from a window of
    steps, all by name: the number of the step after it, how many it had, how long they took,
    microjoules of all ranks. None is unknown, and never 0. It returns what to do from "step" on:
    density, pace_s, cap_w (0: none), reason, changed, and what that is based on: watts, budget_w,
    expected_w, slowdown, low_w, high_w. Ranks that are given the same windows decide the same, bit
    for bit. `drive` does all this in a loop.

    set_budget(watts=0, g_per_h=0, until_step=0) replaces the budget; the configured one holds again
    for windows that end after until_step. line() is the last decision as a line for tamis_replay.

    Errors: `Error` ARGUMENT, which names the option; IO, FORMAT for `intensity`
    """

    density_range: Tuple[float, float]
    caps: bool
    agreed: str  # options that ranks have in common

    def __new__(cls, **options: Any) -> "Governor":
        given = {name: value for name, value in options.items() if value is not None}
        if "intensity" in given:
            given["intensity"] = os.fspath(given["intensity"])
        made = super().__new__(cls, **given)
        made.density_range = given.get("density_min", 0.01), given.get("density_max", 0.01)
        made.caps = bool(given.get("allow_cap"))
        alone = ("intensity", "g_per_kwh")  # rank 0's is what decides
        made.agreed = repr(sorted((k, v) for k, v in given.items() if k not in alone))
        return made

    def drive(
        self,
        comm: Comm,
        meter: Meter,
        target: Optional[Target] = None,
        *,
        budget_w: Optional[Budget] = None,
        set_cap: Optional[Callable[[float], None]] = None,
        every: int = 50,
        step: int = 0,
        decisions: Union[None, str, "os.PathLike[str]"] = None,
        horizon_s: float = 86400.0,
    ) -> "Drive":
        """Govern a loop: call step() of the result after every step, on all ranks.

        target     gets the density, if that knob is open: density_max now
        budget_w   asked on rank 0 once a window, with the number of the next step. It returns
                   watts; (watts, until_step), after which step the configured budget holds again
                   unless it has answered anew; or None: as before. All ranks wait for it, so let
                   it return what it knows
        set_cap    called on every rank with the limit of a device in watts; 0: none
        every      steps of a window
        step       number of the next step, in a run that goes on
        decisions  file to append to on rank 0, for tamis_replay
        horizon_s  length of the outlook

        Collective over `comm`     Errors: ValueError; RuntimeError on all ranks, where rank 0 fails;
                                   `Error` MISMATCH on all, where options, every or step differ
        """
        if every < 1:
            raise ValueError(f"every is {every}, not a number of steps from 1 on")
        if self.caps and set_cap is None:
            raise ValueError("allow_cap=True, but nothing sets a cap: give drive a set_cap")
        return Drive(self, comm, meter, target, budget_w, set_cap, every, step, decisions, horizon_s)


class _Mark(NamedTuple):
    """Where a window begins."""

    step: int
    at_s: float
    joules: Optional[float]


class Drive:
    """A governor at work, made by Governor.drive. `decision` is the last one, None before the
    first. Close it, or use it in a with statement."""

    def __init__(
        self,
        governor: Governor,
        comm: Comm,
        meter: Meter,
        target: Optional[Target],
        ask: Optional[Budget],
        set_cap: Optional[Callable[[float], None]],
        every: int,
        step: int,
        decisions: Union[None, str, "os.PathLike[str]"],
        horizon_s: float,
    ) -> None:
        least, most = governor.density_range
        self.governor, self.decision = governor, None  # type: Governor, Optional[Decision]
        self._comm, self._meter, self._ask = comm, meter, ask
        self._target = target if least < most else None
        self._set_cap, self._every, self._horizon_s = set_cap, every, horizon_s
        self._pending: Optional[Decision] = None
        self._density, self._pace_s, self._cap_w = most, 0.0, 0.0
        self._paused_s = 0.0  # in this window
        self._step, self._file = step, None  # type: int, Optional[IO[str]]
        _core.check_equal(comm, repr((governor.agreed, every, step)).encode())
        self._share("decisions", lambda: self._open(decisions))
        if self._target:
            self._target.set_density(most)
        self._begin = self._mark()

    def __enter__(self) -> "Drive":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Take caps back and close the file. Density stays."""
        if self._file:
            self._file.close()
        self._file = None
        if self._cap_w and self._set_cap:
            self._set_cap(0.0)
        self._cap_w = 0.0

    def step(self, residual_norm: Optional[float] = None) -> Optional[Decision]:
        """A step has ended: apply what was decided for the next one, pause, and at the end of a
        window decide. Returns a decision that was made.

        residual_norm   rank 0's, for residual_max

        Collective at the end of a window     Errors: as those of Meter.report; RuntimeError, on
        all ranks, where budget_w raised: the budget stays, the window goes on, and so may the run
        """
        self._step += 1
        if self._pending and self._step >= self._pending["step"]:
            self._apply(self._pending)
        if self._pace_s > 0.0:
            time.sleep(self._pace_s)
        self._paused_s += self._pace_s
        if self._step % self._every != 0:
            return None
        return self._decide(residual_norm)

    # -- knobs ------------------------------------------------------------------------------------

    def _apply(self, decision: Decision) -> None:
        self._pending = None
        if self._target and decision["density"] != self._density:
            self._target.set_density(decision["density"])
        if self._set_cap and decision["cap_w"] != self._cap_w:
            self._set_cap(decision["cap_w"])
        self._density = decision["density"]
        self._pace_s = decision["pace_s"]
        self._cap_w = decision["cap_w"]

    # -- windows ----------------------------------------------------------------------------------

    def _mark(self) -> _Mark:
        """Joules are of all ranks and the same on each."""
        joules = self._meter.report(self._comm)["joules"]
        return _Mark(self._step, time.monotonic(), joules)

    def _decide(self, residual_norm: Optional[float]) -> Decision:
        now, begin = self._mark(), self._begin
        told = self._share("budget_w", lambda: self._tell(now.at_s - begin.at_s, residual_norm))
        budget = told.pop("budget")
        if budget:
            self.governor.set_budget(watts=budget[0], until_step=budget[1])
            self._write(json.dumps(
                {"type": "budget", "watts": budget[0], "g_per_h": 0.0, "until_step": budget[1]}))
        steps = now.step - begin.step
        decision = self.governor.decide(
            step=now.step, steps=steps, uj=_gained(begin, now), pace_s=self._paused_s / steps, **told)
        self._begin, self.decision = now, decision
        if decision["changed"]:  # else one that is not applied yet still will be
            self._pending = decision
        self._paused_s = 0.0
        self._write(self.governor.line())
        return decision

    def _tell(self, seconds: float, residual_norm: Optional[float]) -> Dict[str, Any]:
        """What rank 0 alone knows."""
        ahead = self.governor.outlook(time.time(), self._horizon_s)
        answer = self._ask(self._step) if self._ask else None
        budget = _checked(answer)
        norm = None if residual_norm is None else float(residual_norm)
        return dict(ahead, budget=budget, seconds=seconds, residual_norm=norm)

    def _share(self, what: str, make: Callable[[], Dict[str, Any]]) -> Dict[str, Any]:
        """What make() returns on rank 0, on all ranks; or RuntimeError on all, if it raises."""
        cause: Optional[BaseException] = None
        told: Dict[str, Any] = {}
        if self._comm.rank == 0:
            try:
                told = make()
            except BaseException as error:  # the others wait
                cause, told = error, {"error": f"{what} failed on rank 0: {error!r}"}
        told = json.loads(self._comm.broadcast(json.dumps(told).encode()))
        if cause is not None and not isinstance(cause, Exception):
            raise cause
        if "error" in told:
            raise RuntimeError(f"Governor.drive: {told['error']}. Nothing is lost") from cause
        return told

    # -- the file ---------------------------------------------------------------------------------

    def _open(self, path: Union[None, str, "os.PathLike[str]"]) -> Dict[str, Any]:
        self._file = open(path, "a", buffering=1) if path is not None else None
        return {}

    def _write(self, line: str) -> None:
        """Where the file ends, the run goes on."""
        try:
            if self._file:
                self._file.write(line + "\n")
        except OSError as error:
            log.warning("decisions are no longer written: %s", error)
            self._file = None


def _checked(answer: Any) -> Optional[Tuple[float, int]]:
    """What budget_w returned, as set_budget takes it."""
    watts, until = answer if isinstance(answer, tuple) else (answer, 0)
    if watts is None:
        return None
    watts, until = float(watts), int(until)
    if not 0.0 <= watts < math.inf or not 0 <= until < 2**64:
        raise ValueError(f"budget_w returned {answer!r}, not watts or (watts, until_step)")
    return watts, until


def _gained(begin: _Mark, now: _Mark) -> Optional[int]:
    """Microjoules, or None."""
    if begin.joules is None or now.joules is None:
        return None
    return round(now.joules * 1e6) - round(begin.joules * 1e6)
