#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# mypy: disallow-subclassing-any=False
"""An hour of a simulated training job on a weak feeder, run by a controller of OpenG2G.

    pip install openg2g==0.2.0.post1
    python3 examples/openg2g_training.py

A feeder supplies the job and a neighbourhood whose load rises in the first half hour. A controller
looks at the voltage once a minute and sends the job watts that keep it, by a command of its own
(SetBudget). tamis.energy.Governor turns watts into pauses between steps. From minute 36 to 46 the
controller is silent: its last word expires, and the job falls back to the budget that it was
configured with. Steps are simulated, and so are joules: there is no GPU, and nobody waits.

Run with openg2g 0.2.0.post1, numpy 2.4.6 and CPython 3.11.7. Nothing of tamis needs openg2g.
"""

import dataclasses
import sys
from fractions import Fraction
from typing import Any, Dict, List, Tuple

try:
    import openg2g
    from openg2g.common import ThreePhase
    from openg2g.controller.base import Controller
    from openg2g.coordinator import Coordinator
    from openg2g.datacenter.base import DatacenterBackend, DatacenterState
    from openg2g.datacenter.command import DatacenterCommand
    from openg2g.grid.base import BusVoltages, GridBackend, GridState, PhaseVoltages
except ImportError as error:
    sys.exit(f"This example needs OpenG2G ({error}): pip install openg2g==0.2.0.post1")

import numpy as np

import tamis
from tamis.energy import Governor

HOUR_S, WINDOW_S, CONTROL_S = 3600, 5, 60
STEP_S, BUSY_W, PAUSED_W = 0.5, 27.7e3, 8e3  # of the job: 64 devices
FALLBACK_W, VALID_S = 14e3, 90  # without a controller; how long its word holds
PU_PER_W, V_MIN = 0.08 / 60e3, 0.95  # of the feeder, at 37.5 kW
MARGIN_W = 1e3  # by which the neighbours' load rises until the next command has an effect
SILENT_S = (36 * 60, 46 * 60)


def neighbours_w(t: float) -> float:
    """8 kW, rising to 20 kW from minute 10 to 25, and back from minute 50 on."""
    up, down = (t - 600.0) / 900.0, (t - 3000.0) / 300.0
    return 8e3 + 12e3 * (min(max(up, 0.0), 1.0) - min(max(down, 0.0), 1.0))


@dataclasses.dataclass(frozen=True)
class TrainingState(DatacenterState):
    steps: int = 0
    watts: float = 0.0
    decision: Dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class SetBudget(DatacenterCommand):
    """Watts of the job, which hold for some seconds."""

    watts: float
    valid_s: float
    target: "TrainingDatacenter" = dataclasses.field(kw_only=True)


class TrainingDatacenter(DatacenterBackend):
    """A training job: a window of steps every WINDOW_S, after which the governor decides."""

    def __init__(self) -> None:
        super().__init__(name="training")
        self.reset()

    @property
    def dt_s(self) -> Fraction:
        return Fraction(WINDOW_S)

    def reset(self) -> None:
        self.governor = Governor(policy="budget", budget_w=FALLBACK_W, pace_max_s=3.0)
        self.done, self.pause_s, self.left_s = 0, 0.0, 0.0
        self.told_w, self.until_s = 0.0, 0.0

    def step(self, clock: Any, events: Any) -> TrainingState:
        """The steps that end in this window; what is left of it belongs to the next one."""
        each_s = STEP_S + self.pause_s
        steps = int((WINDOW_S + self.left_s) / each_s)
        self.left_s += WINDOW_S - steps * each_s
        watts = (BUSY_W * STEP_S + PAUSED_W * self.pause_s) / each_s
        if steps == 0:
            return TrainingState(clock.time_s, _phases(watts), self.done, watts)
        self.done += steps
        if clock.time_s < self.until_s:  # for this window; else the configured budget holds
            self.governor.set_budget(watts=self.told_w, until_step=self.done)
        decision = self.governor.decide(
            step=self.done, steps=steps, seconds=steps * each_s, pace_s=self.pause_s,
            uj=round(1e6 * watts * steps * each_s))
        self.pause_s = decision["pace_s"]
        return TrainingState(clock.time_s, _phases(watts), self.done, watts, decision)

    def apply_control(self, command: DatacenterCommand, events: Any) -> None:
        if not isinstance(command, SetBudget):
            raise TypeError(f"TrainingDatacenter takes SetBudget, not {type(command).__name__}")
        self.told_w, self.until_s = command.watts, events.clock.time_s + command.valid_s
        events.emit("training.budget", {"watts": self.told_w, "until_s": self.until_s})


def _phases(watts: float) -> ThreePhase:
    return ThreePhase(a=watts / 3, b=watts / 3, c=watts / 3)


class FeederGrid(GridBackend):
    """One bus behind one impedance, the same on all phases."""

    @property
    def dt_s(self) -> Fraction:
        return Fraction(WINDOW_S)

    def reset(self) -> None:
        self.volts = 1.0

    def step(self, clock: Any, power_samples_w: Any, events: Any) -> GridState:
        samples = [p for trace in power_samples_w.values() for p in trace]
        job_w = sum(p.a + p.b + p.c for p in samples) / max(len(samples), 1)
        self.volts = 1.0 - PU_PER_W * (job_w + neighbours_w(clock.time_s))
        bus = PhaseVoltages(a=self.volts, b=self.volts, c=self.volts)
        return GridState(time_s=clock.time_s, voltages=BusVoltages({"feeder": bus}))

    def apply_control(self, command: Any, events: Any) -> None:
        raise TypeError(f"FeederGrid takes no commands, not {type(command).__name__}")

    def voltages_vector(self) -> Any:
        return np.full(3, self.volts)

    @property
    def v_index(self) -> List[Tuple[str, int]]:
        return [("feeder", phase) for phase in (1, 2, 3)]

    def estimate_sensitivity(self, perturbation_kw: float = 100.0, dc: Any = None) -> Any:
        return np.full((3, 1), -PU_PER_W * 1e3), self.voltages_vector()


class VoltageController(Controller[TrainingDatacenter, FeederGrid]):
    """The job may take what it takes now and what the voltage leaves."""

    def __init__(self, job: TrainingDatacenter, grid: FeederGrid) -> None:
        self.job, self.grid = job, grid

    @property
    def dt_s(self) -> Fraction:
        return Fraction(CONTROL_S)

    def reset(self) -> None:
        """It keeps nothing between steps."""

    def step(self, clock: Any, events: Any) -> List[DatacenterCommand]:
        if SILENT_S[0] <= clock.time_s < SILENT_S[1]:
            return []
        volts = self.grid.state.voltages["feeder"].a
        watts = self.job.state.watts + (volts - V_MIN) / PU_PER_W - MARGIN_W
        return [SetBudget(max(watts, 1.0), VALID_S, target=self.job)]


def main() -> int:
    print(f"openg2g {openg2g.__version__}, tamis {'.'.join(map(str, tamis.version()))}")
    job, grid = TrainingDatacenter(), FeederGrid()
    run = Coordinator(datacenters=[job], grid=grid, controllers=[VoltageController(job, grid)],
                      total_duration_s=HOUR_S).run()
    print("minute  neighbours  budget     job  voltage  reason")
    for state, seen in zip(run.dc_states, run.grid_states):
        if state.time_s % 300 == 0 and state.decision:
            print(f"{state.time_s / 60:6.0f}  {neighbours_w(state.time_s) / 1e3:7.1f} kW"
                  f"  {state.decision['budget_w'] / 1e3:6.1f}  {state.watts / 1e3:6.1f}"
                  f"  {seen.voltages['feeder'].a:7.4f}  {state.decision['reason']}")
    volts = [state.voltages["feeder"].a for state in run.grid_states]
    low_s = WINDOW_S * sum(v < V_MIN for v in volts)
    free = int(HOUR_S / STEP_S)
    print(f"{job.done} steps of {free} without a budget; {len(run.commands)} commands;"
          f" voltage {min(volts):.4f} to {max(volts):.4f}, below {V_MIN} for {low_s} s")
    return 0 if low_s == 0 and 0 < job.done < free else 1


if __name__ == "__main__":
    sys.exit(main())
