# SPDX-License-Identifier: MIT
"""tamis.energy: joules by phase where there is a counter, None and a reason where there is none."""

import gc
import json
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from core_support import N, alone, gradient, ranks, refused
from counter import Counter, adds_up, await_joules

import tamis
import tamis.energy
from tamis.energy import Meter

PHASE = {"joules", "low", "high", "seconds", "method", "inseparable"}
TOTALS = {"known", "joules", "seconds", "steps", "wire_bytes", "phases", "unattributed", "grams",
          "missing"}


def step(reducer):
    values = gradient()
    reducer.start(values)
    reducer.wait()


# ----------------------------------------------------------------------------- without a counter


def test_without_counters_nothing_is_zero():
    with Meter(sources="none", settle_s=0.0) as meter:
        reducer = alone(density=0.1, meter=meter)
        with meter.phase("compute"):
            time.sleep(0.01)
        step(reducer)
        meter.step(reducer.stats())
        for totals in (meter.read(), meter.report(tamis.Comm.local(1)[0])):
            assert set(totals) == TOTALS and totals["known"] is False and totals["missing"]
            assert totals["joules"] is totals["unattributed"] is totals["grams"] is None
            assert all(phase["joules"] is None for phase in totals["phases"].values())
        assert meter.domains() == []
        reducer.close()


def test_a_counter_that_is_not_there_says_why(tmp_path):
    with Meter(sources="rapl", sysfs_root=tmp_path) as meter:
        (domain,) = meter.domains()
        assert domain["status"] == "absent" and domain["reason"]
        assert domain["joules"] is domain["tick_s"] is domain["lag_s"] is domain["duty"] is None
        assert "rapl" in meter.read()["missing"]


# -------------------------------------------------------------------------------- with a counter


def test_joules_by_phase_add_up(tmp_path):
    log = tmp_path / "energy.jsonl"
    with Counter(tmp_path) as counter:
        meter = Meter(sources="file", files=counter.files, json=log, run="one", window_s=0.5,
                      settle_s=0.1, g_per_kwh=360.0, pue=1.5)
        with meter:
            reducer = alone(density=0.1, meter=meter)
            end = time.monotonic() + 2.0
            while time.monotonic() < end:
                with meter.phase("compute"):
                    time.sleep(0.01)
                step(reducer)
                meter.step(reducer.stats())
                time.sleep(0.005)
            totals = await_joules(meter, 150.0)
            assert adds_up(totals) and totals["missing"] == ""
            assert {"compute", "select", "exchange", "idle"} <= set(totals["phases"])
            assert all(set(phase) == PHASE for phase in totals["phases"].values())
            compute = totals["phases"]["compute"]
            assert compute["method"] in ("regressed", "time_share") and compute["joules"] > 20.0
            assert compute["method"] != "regressed" or (
                compute["low"] <= compute["joules"] <= compute["high"])
            assert totals["grams"] == pytest.approx(totals["joules"] * 360.0 * 1.5 / 3.6e6)
            assert totals["steps"] > 50
            (domain,) = meter.domains()
            assert domain["id"] == "file:node" and domain["kind"] == "node" and domain["counted"]
            assert 100.0 < domain["joules"] <= counter.uj / 1e6 + 1.0
            comm = tamis.Comm.local(1)[0]
            everywhere = meter.report(comm)
            assert everywhere["known"] and adds_up(everywhere)
            reducer.close()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert records[0]["run"] == "one" and records[0]["pue"] == 1.5
    assert records[-1]["type"] == "summary" and records[-1]["steps"] >= totals["steps"]


def test_ranks_of_a_host_count_a_counter_once(tmp_path):
    found = [None, None]
    comms = tamis.Comm.local(2)
    with Counter(tmp_path) as counter:

        def work(rank):
            with Meter(sources="file", files=counter.files, settle_s=0.0) as meter:
                await_joules(meter, 30.0)
                found[rank] = meter.report(comms[rank]), counter.uj / 1e6

        ranks(2, work)
    assert found[0][0] == found[1][0]
    assert 25.0 < found[0][0]["joules"] <= found[0][1] + 1.0


def test_threads_mark_while_others_read(tmp_path):
    with Counter(tmp_path) as counter, Meter(files=counter.files, sources="file") as meter:
        stop = threading.Event()

        def mark():
            while not stop.is_set():
                with meter.phase("user3"):
                    pass

        threads = [threading.Thread(target=mark) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(200):
            meter.read(), meter.domains()
        stop.set()
        for thread in threads:
            thread.join()


# --------------------------------------------------------------------------------------- its life


def test_a_reducer_keeps_its_meter():
    meter = Meter(sources="none")
    reducer = alone(density=0.1, meter=meter)
    error = refused(meter.close)
    assert error.status == "TAMIS_E_STATE" and "1 reducer" in str(error)
    watch = weakref.ref(meter)
    del meter, error  # whose traceback has it, too
    gc.collect()
    step(reducer)
    assert watch() is not None
    reducer.close()
    gc.collect()
    assert watch() is None


def test_reducers_that_end_without_close_let_go():
    meter = Meter(sources="none")
    for options in ({"density": 0.1}, {"density": 7.0}):
        try:
            alone(meter=meter, **options)
        except tamis.Error:
            pass
    gc.collect()
    meter.close()


def test_an_exception_is_not_hidden_by_reducers_that_are_open():
    with pytest.raises(ZeroDivisionError):
        with Meter(sources="none") as meter:
            reducer = alone(density=0.1, meter=meter)
            1 / 0
    reducer.close()
    meter.close()


def test_a_closed_meter_is_refused():
    meter = Meter(sources="none")
    meter.close()
    meter.close()
    calls = [meter.read, meter.domains, lambda: meter.begin("compute"), lambda: meter.step({}),
             lambda: meter.report(tamis.Comm.local(1)[0]), lambda: alone(meter=meter)]
    for call in calls:
        assert refused(call).status == "TAMIS_E_STATE"


def test_what_is_wrong_is_named(tmp_path):
    assert "pue" in str(refused(Meter, pue=0.5))
    assert "nowhere" in str(refused(Meter, sources="none", json=tmp_path / "nowhere" / "log"))
    with pytest.raises(TypeError):
        Meter(sources=3)
    with pytest.raises(TypeError):
        Meter(nonsense=1)
    assert "rank" in str(refused(Meter, rank=-1))
    with Meter(sources="none") as meter:
        assert "'nonsense'" in str(refused(meter.begin, "nonsense"))
        assert "'idle'" in str(refused(meter.begin, "idle"))
        with pytest.raises(TypeError):
            meter.step(3)
        with pytest.raises(TypeError):
            meter.report(3)
    with pytest.raises(TypeError, match="meter is 3"):
        alone(meter=3)
    assert N  # of core_support, whose reducers these are


# Nobody closes anything: the end of the process does, and the file has its last line.
FORGOTTEN = """
import sys, numpy, tamis, tamis.energy
assert "torch" not in sys.modules and "mpi4py" not in sys.modules
meter = tamis.energy.Meter(sources="none", json=sys.argv[1])
reducer = tamis.Reducer(tamis.Comm.local(1)[0], tamis.Layout([("w", 64)]), meter=meter)
gradient = numpy.ones(64, numpy.float32)
reducer.start(gradient); reducer.wait()
"""


def test_the_end_of_the_process_closes_it(tmp_path):
    log = tmp_path / "log"
    subprocess.run([sys.executable, "-c", FORGOTTEN, str(log)], check=True, timeout=100)
    assert json.loads(log.read_text().splitlines()[-1])["type"] == "summary"
