# SPDX-License-Identifier: MIT
"""tamis._core: several threads, lifetimes, time."""

import gc
import json
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from core_support import SEGMENTS, Table, alone, gradient, ranks, refused
from load import stretch
from tamis._core import Comm, Error, Layout, Reducer


# -- other threads ---------------------------------------------------------------------------------


def test_what_another_thread_uses_is_not_closed():
    """One rank waits for the other, which comes late: meanwhile nothing can be taken from it."""
    comms, layout = Comm.local(2, 20000), Layout(SEGMENTS)
    reducers = [None, None]

    def make(rank):
        reducers[rank] = Reducer(comms[rank], layout)

    ranks(2, make)
    waits, spare = reducers[0], gradient(3)
    grads = [gradient(1), gradient(2)]
    waits.start(grads[0])
    thread = threading.Thread(target=waits.wait)
    thread.start()
    deadline = time.monotonic() + 20
    while "in progress" not in str(refused(comms[0].close)):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    for call, args in (
        (waits.close, ()),
        (waits.start, (spare,)),
        (waits.wait, ()),
        (waits.test, ()),
        (waits.join, ()),
        (waits.stats, ()),
        (waits.accumulate, (spare,)),
    ):
        error = refused(call, *args)
        assert error.status == "TAMIS_E_STATE" and "Reducer.wait" in str(error)
    assert thread.is_alive()  # and other threads have run all the while
    reducers[1].start(grads[1])
    reducers[1].wait()
    thread.join(20)
    assert not thread.is_alive() and np.array_equal(*grads)
    assert "1 reducer(s)" in str(refused(comms[0].close))


@pytest.mark.parametrize("transport", ["local", "callback"])
def test_ready_may_meet_wait(transport):
    table = Table(2)
    comms = (
        Comm.local(2, 20000)
        if transport == "local"
        else [Comm.callback(r, 2, table.of(r), 20000) for r in range(2)]
    )
    segments = [("s%d" % i, 16 + i) for i in range(12)]
    layout, out = Layout(segments), [None, None]

    def work(rank):
        reducer = Reducer(comms[rank], layout, density=0.2, bucket_length=40)
        out[rank] = []
        grad = np.zeros(layout.length, np.float32)
        views = np.split(grad, np.cumsum(layout.lengths)[:-1])
        plans = [reducer.plan([i], [v]) for i, v in enumerate(views)]
        for step in range(50):
            grad[:] = gradient(1000 * rank + step, layout.length)
            reducer.ready(plans[11 - rank])
            waiter = threading.Thread(target=reducer.wait)
            waiter.start()
            for i in sorted(set(range(12)) - {11 - rank}, reverse=rank == 0):
                reducer.ready(plans[i])
            waiter.join(20)
            assert not waiter.is_alive()
            out[rank].append(grad.copy())

    ranks(2, work)
    for a, b in zip(*out):
        assert np.array_equal(a, b) and 0 < np.count_nonzero(a) <= layout.length // 5


def test_abort_wakes_a_wait():
    comms, layout = Comm.local(2, 60000), Layout(SEGMENTS)
    made = [None, None]
    ranks(2, lambda rank: made.__setitem__(rank, Reducer(comms[rank], layout)))
    made[0].start(gradient())
    errors = []

    def wait():
        with pytest.raises(Error) as caught:
            made[0].wait()
        errors.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    comms[0].abort()
    thread.join(20)
    assert not thread.is_alive()
    assert errors[0].status == "TAMIS_E_ABORTED" == comms[0].status and errors[0].lost == "comm"


def test_a_rank_that_does_not_come_is_a_timeout():
    comms, layout = Comm.local(2, stretch(300)), Layout(SEGMENTS)
    made = [None, None]
    ranks(2, lambda rank: made.__setitem__(rank, Reducer(comms[rank], layout)))
    made[0].start(gradient())
    with pytest.raises(Error, match="rank 0, tamis_.*: waited .* s for rank.* 1") as caught:
        made[0].wait()
    error = caught.value
    assert (error.status, error.lost) == ("TAMIS_E_TIMEOUT", "comm")
    assert error.remedy in str(error) and "Check the rank" in error.remedy


def test_a_flight_recorder_is_written(tmp_path):
    comm = Comm.local(1)[0]
    reducer = Reducer(comm, Layout(SEGMENTS))
    reducer.start(gradient())
    reducer.wait()
    comm.write_flight(str(tmp_path))
    (file,) = tmp_path.glob("flight-*-0-*.jsonl")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[0]["record"] == "flight" and records[0]["ranks"] == 1
    assert [r["event"] for r in records[1:] if "collective" not in r] == ["start", "wait", "done"]
    with pytest.raises(Error, match="TAMIS_FLIGHT is not set"):
        comm.write_flight()
    with pytest.raises(Error, match="none-such"):
        comm.write_flight("/none-such")


# -- lifetimes -------------------------------------------------------------------------------------


def test_a_step_holds_what_it_was_lent_until_it_has_ended():
    reducer, grad = alone(), gradient()
    views = [grad[:96], grad[96:]]
    before = sys.getrefcount(grad)
    for step in range(3):
        reducer.start(grad)
        assert sys.getrefcount(grad) > before
        reducer.wait()
        assert sys.getrefcount(grad) == before
    reducer.accumulate(grad)
    assert sys.getrefcount(grad) == before
    plan = reducer.plan([0, 1], views)
    lent = [sys.getrefcount(v) for v in views]
    count = sys.getrefcount(plan)
    for step in range(3):
        reducer.ready(plan)
        assert sys.getrefcount(plan) == count + 1
        reducer.join()
        assert sys.getrefcount(plan) == count
    del plan
    assert [sys.getrefcount(v) for v in views] == [n - 1 for n in lent]
    grad[3] = np.inf
    reducer.start(grad)
    with pytest.raises(Error):
        reducer.wait()
    assert sys.getrefcount(grad) == before


def test_refused_calls_hold_nothing():
    reducer, grad = alone(), gradient()
    bad = np.zeros(5, np.float32)
    before = sys.getrefcount(grad), sys.getrefcount(bad)
    for call in (
        lambda: refused(reducer.start, [grad[:96], bad]),
        lambda: refused(reducer.plan, [0, 1], [grad[:96], bad]),
        lambda: refused(reducer.start, grad, stream=1),
    ):
        call()
        gc.collect()
        assert (sys.getrefcount(grad), sys.getrefcount(bad)) == before


def test_a_reducer_keeps_its_comm_and_needs_no_close():
    comm = Comm.local(1)[0]
    reducer = Reducer(comm, Layout(SEGMENTS))
    watch = weakref.ref(comm), weakref.ref(reducer)
    del comm
    reducer.start(gradient())  # and is dropped in the midst of a step
    del reducer
    gc.collect()
    assert [w() for w in watch] == [None, None]


def test_a_cycle_through_the_callback_is_collected():
    class State:
        def allgather(self, send, recv):
            recv[:] = send

    state = State()
    state.reducer = Reducer(Comm.callback(0, 1, state.allgather), Layout(SEGMENTS))
    state.reducer.start(gradient())
    watch = weakref.ref(state), weakref.ref(state.reducer)
    del state
    gc.collect()
    assert [w() for w in watch] == [None, None]


def test_what_is_closed_says_so():
    comm = Comm.local(1)[0]
    reducer = Reducer(comm, Layout(SEGMENTS))
    plan = reducer.plan([0], [np.zeros(96, np.float32)])
    reducer.close()
    reducer.close()
    assert "closed" in str(refused(reducer.start, gradient()))
    assert "closed" in str(refused(reducer.ready, plan))
    assert "closed" in str(refused(reducer.wait))
    comm.close()
    comm.close()
    assert (comm.rank, comm.nranks, comm.transport, comm.status) == (0, 1, "local", "TAMIS_OK")
    assert "closed" in str(refused(comm.abort)) and "closed" in repr(comm)
    assert "closed" in str(refused(Reducer, comm, Layout(SEGMENTS)))


def test_only_the_main_interpreter_has_it():
    code = """
import sys
try:
    import _interpreters as sub
except ImportError:
    import _xxsubinterpreters as sub
text = '''
try:
    import tamis._core
except ImportError as error:
    print("refused:", error, flush=True)
'''
one = sub.create("legacy") if sys.version_info >= (3, 13) else sub.create()
run = getattr(sub, "run_string", None) or sub.exec
run(one, text)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "refused:" in run.stdout, run.stdout + run.stderr


# -- time ------------------------------------------------------------------------------------------


def test_ready_costs_little_beyond_the_library():
    """The hook of a bucket has 20 us. A plan of 16 segments: one call of Python."""
    count = 16
    layout = Layout([("s%d" % i, 64) for i in range(count)] + [("last", 64)])
    reducer = Reducer(Comm.local(1)[0], layout)
    grads = np.zeros((count + 1, 64), np.float32)
    plan = reducer.plan(range(count), list(grads[:count]))
    last = reducer.plan([count], [grads[count]])
    times = []
    for step in range(300):
        begin = time.perf_counter()
        reducer.ready(plan)
        times.append(time.perf_counter() - begin)
        reducer.ready(last)
        reducer.wait()
    best = sorted(times)[len(times) // 10]
    print("ready of a plan of %d segments: %.2f us" % (count, 1e6 * best))
    assert best < 20e-6
