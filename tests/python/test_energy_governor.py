# SPDX-License-Identifier: MIT
"""tamis.energy.Governor: what it decides, alone and in the loop of a run."""

import json
import os
import pathlib
import subprocess
import time

import pytest

from core_support import N, alone, gradient, ranks, refused
from counter import Counter, await_joules

import tamis
from tamis.energy import Governor, Meter

LIBRARY = os.environ.get("LIBTAMIS")  # libtamis.so, when ctest runs this
REPLAY = pathlib.Path(LIBRARY).parent / "bench" / "lab" / "tamis_replay" if LIBRARY else None
needs_replay = pytest.mark.skipif(not REPLAY or not REPLAY.exists(), reason="no tamis_replay")

DECISION = {"step", "density", "pace_s", "cap_w", "reason", "changed", "watts", "budget_w",
            "expected_w", "slowdown", "low_w", "high_w"}
OPTIONS = dict(policy="budget", budget_w=20e3, pace_max_s=0.5, density_min=0.001, density_max=0.01,
               lead_steps=2)
FLAGS = ["--policy", "budget", "--budget", "20000", "--pace-max", "0.5", "--density-min", "0.001",
         "--density-max", "0.01", "--lead", "2"]


def replay(path, *flags):
    return subprocess.run([REPLAY, "--log", path, *flags], timeout=100, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def windows(count):
    """Some of 28 kW, or less with pauses, which are sent in; some without joules or steps. The work
    changes in between."""
    step, pace = 0, 0.0
    for i in range(count):
        steps = 0 if i % 11 == 10 else 8 + i % 5
        step += steps
        busy = 0.1 + steps * (0.5 if i < count // 2 else 0.7) + 0.01 * (i % 7)
        uj = int(28e9 * busy + 10e9 * steps * pace) + 1000003 * i
        pace = yield dict(step=step, steps=steps, seconds=busy + steps * pace,
                          pace_s=pace if steps else None,
                          uj=uj if i % 13 != 12 else None)


# ---------------------------------------------------------------------------------------- decisions


@needs_replay
def test_decisions_are_those_of_the_c_library_bit_for_bit(tmp_path):
    governor, lines, reasons = Governor(**OPTIONS), [], set()
    work = windows(200)
    window = next(work)
    for number in range(199):
        if number % 40 == 30:
            budget = dict(watts=22e3 + number, g_per_h=0.0, until_step=window["step"] + 90)
            governor.set_budget(**budget)
            lines.append(json.dumps(dict(type="budget", **budget)))
        decision = governor.decide(**window)
        assert set(decision) == DECISION
        lines.append(governor.line())
        reasons.add(decision["reason"])
        window = work.send(decision["pace_s"])
    assert {"budget", "hold", "unknown energy", "no steps"} <= reasons
    log = tmp_path / "decisions"
    log.write_text("\n".join(lines) + "\n")
    done = replay(log, *FLAGS)
    assert done.returncode == 0, done.stdout
    last = json.loads(lines[-1])
    assert {last[name] == decision[name] for name in ("pace_s", "density", "reason")} == {True}
    log.write_text("\n".join(lines).replace('"reason":"budget"', '"reason":"hold"', 1) + "\n")
    assert replay(log, *FLAGS).returncode == 1


def test_a_budget_is_met_by_pauses():
    """Steps of 0.5 s and 10 kJ, and a paused host of 8 kW."""
    governor, pace, step = Governor(policy="budget", budget_w=14e3, pace_max_s=2.0), 0.0, 0
    for _ in range(6):
        step += 10
        decision = governor.decide(step=step, steps=10, seconds=10 * (0.5 + pace), pace_s=pace,
                                   uj=int(10e6 * (10e3 + 8e3 * pace)))
        pace = decision["pace_s"]
    assert decision["watts"] == pytest.approx(14e3, rel=0.02) and decision["reason"] == "hold"
    assert decision["low_w"] < 14e3 < decision["high_w"]


def test_what_is_unknown_is_none_and_changes_nothing():
    governor = Governor(**OPTIONS)
    decision = governor.decide(step=10, steps=10, seconds=5.0)
    assert decision["reason"] == "unknown energy" and decision["changed"] == 0
    assert decision["watts"] is None and decision["pace_s"] == 0.0
    carbon = Governor(policy="carbon-threshold", pace_max_s=1.0)
    decision = carbon.decide(step=10, steps=10, seconds=5.0, uj=10**11)
    assert decision["reason"] == "unknown intensity"


def test_carbon_is_read_from_a_trace(tmp_path):
    trace = tmp_path / "grid.csv"
    trace.write_text("time,g_per_kwh\n1000,100\n2000,500\n3000,\n")
    governor = Governor(policy="carbon-threshold", pace_max_s=1.0, intensity=trace)
    assert governor.outlook(1500.0, 1000.0) == dict(
        intensity_g_per_kwh=100.0, outlook_g_per_kwh=300.0, outlook_low_g_per_kwh=100.0)
    assert set(governor.outlook(5000.0, 1000.0).values()) == {None}
    reasons = []
    for step, unix_s in ((10, 1500.0), (20, 2500.0)):
        reasons.append(governor.decide(step=step, steps=10, seconds=5.0, uj=10**11,
                                       **governor.outlook(unix_s, 400.0))["reason"])
    assert reasons == ["free", "free"]  # its own mean is the threshold
    decision = governor.decide(step=30, steps=10, seconds=5.0, uj=10**11, intensity_g_per_kwh=500.0,
                               outlook_g_per_kwh=300.0, outlook_low_g_per_kwh=100.0)
    assert decision["reason"] == "carbon" and decision["pace_s"] > 0.0
    assert Governor(g_per_kwh=250.0).outlook(0.0, 1.0)["intensity_g_per_kwh"] == 250.0


def test_options_that_are_wrong_are_named(tmp_path):
    assert "carbon-threshold" in str(refused(Governor, policy="nonsense"))
    assert "budget_w" in str(refused(Governor, policy="budget"))
    assert "pace_max_s" in str(refused(Governor, pace_max_s=-1.0))
    assert refused(Governor, intensity=tmp_path / "none").status == "TAMIS_E_IO"
    assert refused(Governor().set_budget, watts=1.0).status == "TAMIS_E_UNSUPPORTED"
    assert refused(Governor().line).status == "TAMIS_E_STATE"
    governor = Governor(**OPTIONS)
    governor.decide(step=10, steps=10, seconds=5.0)
    assert "previous one" in str(refused(governor.decide, step=12, steps=10, seconds=5.0))
    assert "seconds" in str(refused(governor.decide, step=20, steps=10))
    for call, name in ((Governor, "watts"), (governor.decide, "joules")):
        with pytest.raises(TypeError, match=f"has no option '{name}'"):
            call(**{name: 3})
    with pytest.raises(TypeError, match="pue is 'x', not a number"):
        Governor(pue="x")
    with pytest.raises(TypeError):
        governor.decide(step=20, steps=10, seconds=5.0, uj=1.5)
    for call in (governor.decide, tamis._core.Governor):
        with pytest.raises(TypeError, match="by name"):
            call(1)


# --------------------------------------------------------------------------------------- in a loop


def counted(files):
    return Meter(sources="file", files=files, settle_s=0.1, window_s=0.2)


class Knobs:
    """What a target and set_cap were told."""

    def __init__(self):
        self.densities, self.caps = [], []

    def set_density(self, density):
        self.densities.append(density)

    def set_cap(self, watts):
        self.caps.append(watts)


def drive_ranks(files, body, nranks=2):
    """body(rank, comm, meter) on threads, each with a meter of the same counter."""
    comms = tamis.Comm.local(nranks)

    def work(rank):
        with counted(files) as meter:
            await_joules(meter, 1.0)
            body(rank, comms[rank], meter)

    ranks(nranks, work)


@needs_replay
def test_ranks_decide_the_same_and_a_replay_agrees(tmp_path):
    log, decided, knobs = tmp_path / "decisions", [[], []], [Knobs(), Knobs()]
    asked = []

    def allowed(step):
        asked.append(step)
        return 60.0

    with Counter(tmp_path) as counter:

        def body(rank, comm, meter):
            governor = Governor(policy="budget", budget_w=90.0, pace_max_s=0.02, density_min=0.001)
            with governor.drive(comm, meter, knobs[rank], budget_w=allowed if rank == 0 else None,
                                every=10, decisions=log) as drive:
                for _ in range(60):
                    time.sleep(0.005 * (rank + 1))
                    decided[rank].append(drive.step())
                assert drive.decision is decided[rank][-1]

        drive_ranks(counter.files, body)
    assert decided[0] == decided[1] and sum(one is not None for one in decided[0]) == 6
    assert asked == [10, 20, 30, 40, 50, 60]
    last = decided[0][-1]
    assert last["budget_w"] == 60.0 and last["pace_s"] > 0.0 and last["watts"] > 50.0
    assert knobs[0].densities == knobs[1].densities
    assert knobs[0].densities[0] == 0.01 and knobs[0].densities[-1] < 0.01
    flags = ["--policy", "budget", "--budget", "90", "--pace-max", "0.02", "--density-min", "0.001"]
    done = replay(log, *flags)
    assert done.returncode == 0, done.stdout
    assert len([line for line in log.read_text().splitlines() if '"decision"' in line]) == 6


def test_pauses_are_made_from_the_step_that_was_decided_on(tmp_path):
    with Counter(tmp_path) as counter, counted(counter.files) as meter:
        await_joules(meter, 1.0)
        governor = Governor(policy="budget", budget_w=1.0, pace_max_s=0.2, lead_steps=2)
        drive, took = governor.drive(tamis.Comm.local(1)[0], meter, every=4), []
        for _ in range(8):
            time.sleep(0.02)
            begin = time.monotonic()
            drive.step()
            took.append(time.monotonic() - begin)
        assert drive.decision["reason"] == "out of reach"
        assert all(seconds < 0.15 for seconds in took[:3] + took[4:5]), took
        assert all(seconds >= 0.2 for seconds in took[5:]), took  # its window ended with step 4


def test_windows_that_are_shorter_than_the_lead_do_not_put_a_decision_off(tmp_path):
    with Counter(tmp_path) as counter, counted(counter.files) as meter:
        await_joules(meter, 1.0)
        governor = Governor(policy="budget", budget_w=1.0, pace_max_s=0.05, lead_steps=3)
        drive, reasons, begin = governor.drive(tamis.Comm.local(1)[0], meter, every=1), [], 0.0
        for _ in range(9):
            time.sleep(0.03)
            begin = time.monotonic()
            reasons.append(drive.step()["reason"])
        assert "pending" in reasons and time.monotonic() - begin >= 0.05, reasons


def test_a_budget_that_raises_is_reported_on_all_ranks_and_the_run_goes_on(tmp_path):
    told, budgets = [None, None], [None, None]

    def allowed(step):
        if step == 10:
            raise ConnectionError("the grid does not answer")
        return 70.0

    with Counter(tmp_path) as counter:

        def body(rank, comm, meter):
            governor = Governor(policy="budget", budget_w=90.0, pace_max_s=0.01)
            drive = governor.drive(comm, meter, budget_w=allowed, every=5)
            for step in range(1, 16):
                time.sleep(0.01)
                try:
                    drive.step()
                except RuntimeError as error:
                    told[rank] = step, str(error), type(error.__cause__)
            budgets[rank] = drive.decision["budget_w"]
            assert json.loads(governor.line())["in"]["steps"] == 10  # no step is lost

        drive_ranks(counter.files, body)
    assert told[0][:2] == told[1][:2] and told[0][0] == 10
    assert "budget_w failed on rank 0: ConnectionError('the grid does not answer')" in told[0][1]
    assert told[0][2] is ConnectionError and told[1][2] is type(None)
    assert budgets == [70.0, 70.0]


def test_a_budget_that_has_become_stale_gives_way_to_the_configured_one(tmp_path):
    answers = {5: (60.0, 12), 10: None, 15: None, 20: 50.0, 25: None, 30: (40.0, 29)}
    with Counter(tmp_path) as counter, counted(counter.files) as meter:
        await_joules(meter, 1.0)
        governor, found = Governor(policy="budget", budget_w=90.0, pace_max_s=0.01), []
        drive = governor.drive(tamis.Comm.local(1)[0], meter, budget_w=answers.get, every=5)
        for _ in range(30):
            time.sleep(0.01)
            decision = drive.step()
            if decision:
                found.append(decision["budget_w"])
    assert found == [60.0, 60.0, 90.0, 50.0, 50.0, 90.0]


def test_ranks_get_intensity_from_rank_0(tmp_path):
    decided = [None, None]
    with Counter(tmp_path) as counter:

        def body(rank, comm, meter):
            governor = Governor(policy="carbon-threshold", threshold_g_per_kwh=100.0,
                                pace_max_s=0.05, slowdown=0.3, slowdown_most=0.5,
                                g_per_kwh=400.0 if rank == 0 else None)
            drive = governor.drive(comm, meter, every=5)
            for _ in range(10):
                time.sleep(0.01)
                drive.step()
            decided[rank] = drive.decision

        drive_ranks(counter.files, body)
    assert decided[0] == decided[1] and decided[0]["reason"] in ("carbon", "hold")
    assert 0.0 < decided[0]["slowdown"] <= 0.51


@pytest.mark.parametrize(
    "answer",
    [-1.0, float("nan"), float("inf"), "much", (1.0, -1), (1.0, 2**70), (1.0, 2, 3)],
)
def test_an_answer_that_is_no_budget_is_refused(answer):
    with Meter(sources="none") as meter:
        governor = Governor(policy="budget", budget_w=90.0)
        drive = governor.drive(tamis.Comm.local(1)[0], meter, budget_w=lambda step: answer, every=1)
        time.sleep(0.01)
        with pytest.raises(RuntimeError, match="budget_w failed on rank 0"):
            drive.step()
        assert drive.decision is None


@pytest.mark.parametrize("of_rank", [dict(every=5), dict(step=3), dict(pace_max_s=0.2)])
def test_ranks_that_differ_are_told_at_the_start(tmp_path, of_rank):
    told = {}
    with Counter(tmp_path) as counter:

        def body(rank, comm, meter):
            given = dict(dict(every=7, step=0, pace_max_s=0.01), **(of_rank if rank else {}))
            governor = Governor(policy="budget", budget_w=90.0, pace_max_s=given.pop("pace_max_s"))
            with pytest.raises(tamis.Error) as caught:
                governor.drive(comm, meter, **given)
            told[rank] = caught.value.status

        drive_ranks(counter.files, body)
    assert told == {0: "TAMIS_E_MISMATCH", 1: "TAMIS_E_MISMATCH"}


def test_an_exit_in_the_callback_ends_rank_0_and_is_told_to_the_others(tmp_path):
    def allowed(step):
        raise SystemExit(3)

    told = {}
    with Counter(tmp_path) as counter:

        def body(rank, comm, meter):
            governor = Governor(policy="budget", budget_w=90.0, pace_max_s=0.01)
            drive = governor.drive(comm, meter, budget_w=allowed, every=1)
            time.sleep(0.01)
            with pytest.raises((RuntimeError, SystemExit)) as caught:
                drive.step()
            told[rank] = caught.type

        drive_ranks(counter.files, body)
    assert told == {0: SystemExit, 1: RuntimeError}


def test_without_counters_nothing_changes():
    knobs = Knobs()
    with Meter(sources="none") as meter:
        governor = Governor(policy="budget", budget_w=90.0, pace_max_s=1.0)
        with governor.drive(tamis.Comm.local(1)[0], meter, knobs, every=1) as drive:
            for _ in range(3):
                assert drive.step()["reason"] == "unknown energy"
    assert knobs.densities == []  # the knob is not open


def test_caps_are_set_and_taken_back(tmp_path):
    knobs = Knobs()
    with Counter(tmp_path, watts=400.0) as counter:
        with counted(counter.files) as meter:
            await_joules(meter, 1.0)
            governor = Governor(policy="budget", budget_w=300.0, allow_cap=True, cap_min_w=150.0,
                                cap_max_w=400.0)
            with pytest.raises(ValueError, match="nothing sets a cap"):
                governor.drive(tamis.Comm.local(1)[0], meter)
            with governor.drive(tamis.Comm.local(1)[0], meter, set_cap=knobs.set_cap,
                                every=5) as drive:
                for _ in range(12):
                    time.sleep(0.02)
                    drive.step()
    assert len(knobs.caps) >= 2 and 150.0 <= knobs.caps[0] < 400.0 and knobs.caps[-1] == 0.0


def test_a_reducer_is_a_target(tmp_path):
    with Counter(tmp_path) as counter, counted(counter.files) as meter:
        await_joules(meter, 1.0)
        reducer = alone(density=0.1, meter=meter)
        governor = Governor(policy="budget", budget_w=20.0, density_min=0.05, density_max=0.08)
        with governor.drive(reducer.comm, meter, reducer, every=5) as drive:
            assert reducer.density == pytest.approx(0.08, abs=1.0 / N)
            for _ in range(6):
                time.sleep(0.02)
                values = gradient()
                reducer.start(values)
                reducer.wait()
                drive.step()
            assert reducer.density < 0.075
        reducer.close()


def test_a_file_that_cannot_be_opened_is_told_on_all_ranks(tmp_path):
    told = [None, None]
    comms = tamis.Comm.local(2)

    def work(rank):
        with Meter(sources="none") as meter:
            with pytest.raises(RuntimeError, match="decisions failed on rank 0: FileNotFoundError"):
                Governor().drive(comms[rank], meter, decisions=tmp_path / "nowhere" / "log")
            told[rank] = True

    ranks(2, work)
    assert told == [True, True]
    with Meter(sources="none") as meter:
        with pytest.raises(ValueError, match="every is 0"):
            Governor().drive(comms[0], meter, every=0)
