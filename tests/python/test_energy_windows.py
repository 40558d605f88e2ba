# SPDX-License-Identifier: MIT
"""Windows of tamis.energy.Meter, as users of Zeus know them."""

import contextlib
import dataclasses
import threading
import time

import pytest

from core_support import refused
from counter import Counter

import tamis
from tamis import Error, _measure
from tamis.energy import Measurement, Meter

# Those of zeus.monitor.Measurement of zeus 0.16.0, in their order.
ZEUS = ["time", "gpu_energy", "cpu_energy", "dram_energy", "soc_energy"]


class Host:
    """Counters of two GPUs, a processor and its memory, of 100, 200, 300 and 400 W."""

    def __init__(self, folder):
        self.counters, self.files = [], []
        for number, name in enumerate(("gpu0", "gpu1", "package0", "dram0")):
            (folder / name).mkdir()
            self.counters.append(Counter(folder / name, watts=100.0 * (number + 1)))
            self.files.append(f"{name}={self.counters[-1].path}:uJ")

    def __enter__(self):
        for counter in self.counters:
            counter.__enter__()
        self.meter = Meter(sources="file", files=",".join(self.files), settle_s=0.1)
        time.sleep(0.3)  # until each has been read
        return self.meter

    def __exit__(self, *_):
        self.meter.close()
        for counter in self.counters:
            counter.__exit__()


def near(joules, watts, seconds):
    """A tick of 20 ms, and the time that a busy machine takes."""
    return abs(joules - watts * seconds) < watts * 0.35


def test_fields_are_those_of_zeus_and_ours():
    names = [field.name for field in dataclasses.fields(Measurement)]
    assert names[: len(ZEUS)] == ZEUS
    assert names[len(ZEUS):] == ["known", "joules", "phases", "grams", "missing"]


def test_a_window_has_joules_of_each_device(tmp_path):
    with Host(tmp_path) as meter:
        meter.begin_window("epoch", False)
        with meter.phase("compute"):
            time.sleep(1.0)
        took = meter.end_window("epoch")
        assert 1.0 <= took.time < 3.0 and took.known and took.missing == ""
        assert list(took.gpu_energy) == [0, 1]
        assert near(took.gpu_energy[0], 100.0, took.time)
        assert near(took.gpu_energy[1], 200.0, took.time)
        assert list(took.cpu_energy) == [0] and near(took.cpu_energy[0], 300.0, took.time)
        assert list(took.dram_energy) == [0] and near(took.dram_energy[0], 400.0, took.time)
        assert took.total_energy == pytest.approx(sum(took.gpu_energy.values()))
        assert near(took.joules, 1000.0, took.time)
        assert took.phases["compute"]["joules"] > 0.0 and took.soc_energy is None


def test_windows_nest_and_the_block_has_its_figures_after_it(tmp_path):
    with Host(tmp_path) as meter:
        with meter.window("whole") as whole:
            assert whole.joules is whole.total_energy is None and whole.missing
            with meter.window("part") as part:
                time.sleep(0.4)
            time.sleep(0.4)
        assert whole.time > part.time + 0.3 and whole.total_energy > part.total_energy > 0.0


def test_a_counter_that_stands_still_is_unknown_and_not_zero(tmp_path):
    host = Host(tmp_path)
    with host as meter:
        host.counters[1].__exit__()
        time.sleep(0.3)
        with meter.window("epoch") as took:
            time.sleep(0.3)
        assert took.gpu_energy[0] > 0.0 and took.gpu_energy[1] is None
        assert took.total_energy is None and "file:gpu1" in took.missing


def test_without_counters_nothing_is_zero():
    with Meter(sources="none") as meter:
        with meter.window("epoch") as took:
            time.sleep(0.01)
        assert took.time >= 0.01 and took.known is False and took.missing
        assert took.gpu_energy == {} and took.cpu_energy is took.dram_energy is None
        assert took.total_energy is took.joules is took.grams is None


def test_a_source_that_is_not_there_is_no_device(tmp_path):
    with Meter(sources="rapl", sysfs_root=tmp_path) as meter:
        with meter.window("epoch") as took:
            pass
        assert took.cpu_energy is None and "rapl" in took.missing


def test_names_that_are_wrong_are_refused():
    with Meter(sources="none") as meter:
        with pytest.raises(ValueError, match="no window named 'epoch' is open"):
            meter.end_window("epoch")
        meter.begin_window("epoch")
        with pytest.raises(ValueError, match="a window named 'epoch' is open: end it"):
            meter.begin_window("epoch")
        meter.begin_window("epoch", restart=True)
        assert meter.end_window("epoch", cancel=True) == Measurement(
            missing="the window was cancelled")
        with pytest.raises(ValueError, match="no window named"):
            meter.end_window("epoch")
        for call in (meter.begin_window, meter.end_window):
            with pytest.raises(ValueError, match=r"torch\.cuda\.synchronize\(\) before"):
                call("epoch", sync_execution=True)
        with pytest.raises(TypeError, match="the name of a window is 3"):
            meter.begin_window(3)


def test_a_window_that_cannot_end_stays_open():
    comms = tamis.Comm.local(2, 2000)  # rank 1 stays away: a report waits for its deadline
    with Meter(sources="none") as meter:
        meter.begin_window("epoch")
        for wait_s in 20 * ["long", float("nan"), -1.0]:
            with pytest.raises(ValueError):
                meter.end_window("epoch", wait_s=wait_s)
        reporter = threading.Thread(target=report, args=(meter, comms[0]))
        reporter.start()
        await_report(meter, reporter)
        assert "in progress" in str(refused(meter.end_window, "epoch"))
        reporter.join()
        assert meter.end_window("epoch").time > 0.0


def test_a_window_waits_for_a_report(tmp_path):
    comms = tamis.Comm.local(2, 1000)
    with Host(tmp_path) as meter:
        meter.begin_window("epoch")
        opened = meter._opened["epoch"]
        seconds = _measure.stop(meter, opened)
        reporter = threading.Thread(target=report, args=(meter, comms[0]))
        reporter.start()
        await_report(meter, reporter)
        took = _measure.finish(meter, opened, seconds, 30.0)
        reporter.join()
        assert took.known and took.joules > 0.0


def report(meter, comm):
    with contextlib.suppress(Error):  # nobody came
        meter.report(comm)


def await_report(meter, reporter):
    """Until the meter is busy with it."""
    while reporter.is_alive():
        try:
            meter.domains()
        except Error:
            return
        time.sleep(0.001)


def test_a_block_that_closes_the_meter_raises_its_own():
    meter = Meter(sources="none")
    with pytest.raises(ZeroDivisionError):
        with meter.window("epoch"):
            meter.close()
            1 / 0


def test_a_block_that_raises_cancels_its_window():
    with Meter(sources="none") as meter:
        with pytest.raises(ZeroDivisionError):
            with meter.window("epoch") as took:
                1 / 0
        assert "cancelled" in took.missing
        for number in range(40):  # none is left open: there are 16
            meter.begin_window(str(number))
            meter.end_window(str(number), cancel=True)
        for number in range(16):
            meter.begin_window(str(number))
        assert refused(meter.begin_window, "one more").status == "TAMIS_E_UNSUPPORTED"


def test_a_deadline_that_is_too_short_leaves_joules_unknown(tmp_path):
    with Host(tmp_path) as meter:
        meter.begin_window("epoch")
        time.sleep(0.2)
        took = meter.end_window("epoch", wait_s=0.0)
        if took.joules is None:  # else the counters were quick
            assert took.known is False and "within 0 s" in took.missing and took.phases == {}
        assert took.time >= 0.2 and took.gpu_energy[0] > 0.0


def test_a_closed_meter_is_refused():
    meter = Meter(sources="none")
    meter.begin_window("epoch")
    meter.close()
    for call, name in ((meter.end_window, "epoch"), (meter.begin_window, "next")):
        assert refused(call, name).status == "TAMIS_E_STATE"


def test_threads_end_windows_while_others_go_on(tmp_path):
    with Host(tmp_path) as meter:
        found = {}

        def work(name):
            for _ in range(3):
                meter.begin_window(name)
                time.sleep(0.05)
                found[name] = meter.end_window(name)

        threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(took.known and took.joules > 0.0 for took in found.values()) and len(found) == 4
