# SPDX-License-Identifier: MIT
"""tamis._core: ranks that are left go on (Comm.shrink, Reducer.migrate).

A rank dies by closing its communicator when all have made the step before: the others then notice
at once, on a busy machine too. In test_elastic.py one just stops calling.
"""

import gc
import threading
import weakref

import numpy as np
import pytest
from core_support import N, SEGMENTS, Table, gradient, ranks, refused
from tamis._core import Comm, Error, Layout, Local, Reducer

DEADLINE_MS = 100000


def make(comms, **options):
    """A reducer for each rank, made together."""
    made = [None] * len(comms)

    def work(rank):
        made[rank] = Reducer(comms[rank], Layout(SEGMENTS), **options)

    ranks(len(comms), work)
    return made


def step(reducer, seed):
    grad = gradient(seed)
    reducer.start(grad)
    reducer.wait()
    return grad


def residual(reducer):
    out = np.zeros(N, np.float32)
    reducer.residual(out)
    return out


def die(reducer):
    comm = reducer.comm
    reducer.close()
    comm.close()


def lose(reducer):
    """A step in which another rank is missing."""
    with pytest.raises(Error) as caught:
        reducer.start(gradient())
        reducer.wait()
    assert caught.value.lost == "comm"


def test_three_of_four_go_on_and_then_two():
    """The mean is of those that are left, residuals stay, what the dead held is reported."""
    comms = Comm.local(4, DEADLINE_MS)
    made = make(comms, density=0.1)
    all_made = threading.Barrier(4, timeout=100), threading.Barrier(3, timeout=100)
    out = {}

    def work(rank):
        reducer = made[rank]
        step(reducer, rank)
        all_made[0].wait()
        if rank == 3:
            die(reducer)
            return
        lose(reducer)
        kept = residual(reducer)
        smaller = comms[rank].shrink()
        assert (smaller.rank, smaller.nranks, smaller.transport) == (rank, 3, "local")
        migrated, report = reducer.migrate(smaller)
        share = np.float32(3) / np.float32(4)  # of the mean it keeps its part
        assert np.array_equal(residual(migrated), kept * share)
        assert migrated.comm is smaller and migrated.layout is reducer.layout
        assert migrated.residual_length == N and migrated.residual_decay == reducer.residual_decay
        reducer.close()
        comms[rank].close()
        all_made[1].wait()
        if rank == 0:
            die(migrated)
            return
        lose(migrated)
        least = smaller.shrink([1, 2])
        assert [least.rank_before(r) for r in range(2)] == [1, 2]
        assert [smaller.rank_before(r) for r in range(3)] == [0, 1, 2]
        last, second = migrated.migrate(least)
        migrated.close()
        smaller.close()
        out[rank] = report, second, residual(last), step(last, 10 + rank), residual(last)
        out[rank] += (last.stats()["steps"],)

    ranks(4, work)
    first, second = out[1][0], out[1][1]
    assert (first["step"], first["gone"]) == (1, 1) and first == out[2][0]
    assert (second["step"], second["gone"]) == (1, 1)
    assert first["lost_square"] == pytest.approx(first["kept_square"] / 3)
    assert np.array_equal(out[1][3], out[2][3]) and out[1][3].any() and out[1][5] == 2
    # Conservation: what was pending on two ranks and came in is applied twice, or pending.
    before = out[1][2] + out[2][2] + gradient(11) + gradient(12)
    after = 2 * out[1][3] + out[1][4] + out[2][4]
    assert np.allclose(before, after, atol=1e-5)


def test_update_mode_migrates_with_its_moments():
    comms = Comm.local(2, DEADLINE_MS)
    made = make(comms, density=0.1, update=dict(rule="adam", beta1=0.9))
    all_made = threading.Barrier(2, timeout=100)

    def work(rank):
        step(made[rank], rank)
        all_made.wait()
        if rank == 1:
            die(made[1])
            return
        was = np.zeros(N, np.float32), np.zeros(N, np.float32)
        lose(made[0])
        passes = made[0].moments(*was)
        migrated, report = made[0].migrate(comms[0].shrink())
        now = np.zeros(N, np.float32), np.zeros(N, np.float32)
        assert migrated.moments(*now) == passes and report["gone"] == 1
        assert np.array_equal(was, now) and now[0].any() and now[1].any()
        assert migrated.update == made[0].update
        assert step(migrated, 5).any()

    ranks(2, work)


def test_a_callback_network_of_the_ranks_that_are_left():
    wide, narrow = Table(3), Table(2)
    comms = [Comm.callback(r, 3, wide.of(r), 60000) for r in range(3)]
    made = make(comms, density=0.1)
    all_made, out = threading.Barrier(3, timeout=100), {}

    def work(rank):
        step(made[rank], rank)
        all_made.wait()
        if rank == 1:
            wide.barrier.abort()
            return
        lose(made[rank])
        place = [0, 2].index(rank)
        smaller = comms[rank].shrink([0, 2], narrow.of(place))
        assert (smaller.rank, smaller.nranks, smaller.transport) == (place, 2, "callback")
        migrated, report = made[rank].migrate(smaller)
        made[rank].close()
        comms[rank].close()
        out[rank] = step(migrated, rank), report["gone"]

    ranks(3, work)
    assert np.array_equal(out[0][0], out[2][0]) and out[0][1] == out[2][1] == 1


def test_what_an_all_gather_raises_while_lists_are_compared_is_the_cause():
    def broken(send, recv):
        raise ValueError("no such network")

    comm = Comm.callback(0, 2, lambda send, recv: None)
    with pytest.raises(Error) as caught:
        comm.shrink([0], broken)
    assert caught.value.status == "TAMIS_E_TRANSPORT"
    assert "no such network" in str(caught.value.__cause__)
    alone = comm.shrink([0], lambda send, recv: recv.__setitem__(slice(None), send))
    assert (alone.rank, alone.nranks) == (0, 1)  # it may be repeated


def test_lists_are_checked():
    comm = Comm.local(3)[1]
    assert "must ascend" in str(refused(comm.shrink, [2, 1]))
    assert "must ascend" in str(refused(comm.shrink, [1, 3]))
    assert "does not name rank 1" in str(refused(comm.shrink, [0, 2]))
    assert "nranks is 0" in str(refused(comm.shrink, []))
    assert "-1" in str(refused(comm.shrink, [-1]))
    for wrong in (3, "ab", [1.5]):
        with pytest.raises((TypeError, Error)):
            comm.shrink(wrong)
    with pytest.raises(TypeError, match="not an all-gather"):
        comm.shrink([1], 7)
    carried = Comm.callback(0, 2, print)
    for given in ({}, {"ranks": [0]}, {"callbacks": print}):
        assert refused(carried.shrink, **given).status == "TAMIS_E_ARGUMENT"
    assert comm.rank_before(2) == 2
    assert "rank 3 of 3 does not exist" in str(refused(comm.rank_before, 3))
    comm.close()
    assert "closed" in str(refused(comm.rank_before, 0))
    assert "closed" in str(refused(comm.shrink))


def test_lists_that_differ_are_refused_on_all_ranks():
    comms = Comm.local(3, 60000)
    said = [None] * 2

    def work(rank):
        said[rank] = refused(comms[rank].shrink, [[0, 1], [0, 1, 2]][rank])

    ranks(2, work)
    assert {error.status for error in said} == {"TAMIS_E_MISMATCH"}


def test_a_reducer_migrates_once_between_steps_to_a_smaller_comm():
    comms = Comm.local(2, DEADLINE_MS)
    made = make(comms)
    with pytest.raises(TypeError, match="takes a Comm"):
        made[0].migrate(3)
    made[0].start(gradient())
    die(made[1])
    smaller = comms[0].shrink()
    assert refused(made[0].migrate, smaller).status == "TAMIS_E_STATE"  # wait comes first
    with pytest.raises(Error):
        made[0].wait()
    plan = made[0].plan([0], [np.zeros(96, np.float32)])
    migrated, _ = made[0].migrate(smaller)
    assert "has migrated already" in str(refused(made[0].migrate, smaller))
    assert "another" in str(refused(migrated.ready, plan))
    residual(made[0])  # still there
    made[0].close()
    assert "closed" in str(refused(made[0].migrate, smaller))
    assert step(migrated, 3).any()


def test_a_reducer_cannot_migrate_to_its_own_comm():
    comm = Comm.local(1)[0]
    reducer = Reducer(comm, Layout(SEGMENTS))
    assert "own communicator is not what has become of" in str(refused(reducer.migrate, comm))


def test_local_steps_above_a_reducer_are_named():
    comms = Comm.local(1)
    reducer = make(comms, scheme="dense")[0]
    params = [np.zeros(96, np.float32), np.zeros(32, np.float32)]
    local = Local(reducer, params)
    smaller = comms[0].shrink()
    assert "1 Local object(s) use it" in str(refused(reducer.migrate, smaller))
    local.close()
    assert reducer.migrate(smaller)[1]["gone"] == 0


def test_nodes_do_not_migrate():
    comms = Comm.local(2, 60000)
    made = make(comms, ranks_per_node=2)
    said = [None, None]

    def work(rank):
        smaller = comms[rank].shrink([0, 1])
        said[rank] = refused(made[rank].migrate, smaller)

    ranks(2, work)
    assert {error.status for error in said} == {"TAMIS_E_UNSUPPORTED"}
    assert "ranks_per_node" in str(said[0])


def test_a_migrated_reducer_keeps_its_comm_and_the_old_ones_go():
    comms = Comm.local(1)
    reducer = make(comms)[0]
    old = weakref.ref(comms[0]), weakref.ref(reducer)
    migrated, _ = reducer.migrate(comms[0].shrink())
    del reducer, comms
    gc.collect()
    assert [w() for w in old] == [None, None]
    watch = weakref.ref(migrated.comm), weakref.ref(migrated)
    assert step(migrated, 1).any()
    refused(migrated.comm.close)  # the reducer uses it
    migrated.start(gradient())  # and is dropped in the midst of a step
    del migrated
    gc.collect()
    assert [w() for w in watch] == [None, None]


def test_a_meter_follows():
    import tamis.energy

    meter = tamis.energy.Meter()
    comms = Comm.local(1)
    reducer = make(comms, meter=meter)[0]
    migrated, _ = reducer.migrate(comms[0].shrink())
    reducer.close()
    refused(meter.close)  # the migrated one uses it
    step(migrated, 0)
    migrated.close()
    meter.close()
