# SPDX-License-Identifier: MIT
"""tamis.run_elastic: ranks that are left go on in place. Sets of states: test_elastic_sets.py.

The reference is made by Comm.shrink and Reducer.migrate alone, from a run that nothing disturbed.
"""

import threading

import numpy as np
import pytest
from core_support import Table
from elastic_support import N, SEGMENTS, Death, Dies, Run
from elastic_support import elastic, on_ranks, reference, residual, run_local
from load import stretch

import tamis
from tamis import Comm, Error


def test_four_ranks_become_three_and_then_two():
    """The first rank just stops calling, and comes too late; the second ends with an exception.

    A machine that stands still for seconds makes more timeouts: then all that live meet again.
    """
    comms, runs = Comm.local(4, stretch(2000)), [None] * 4
    stopped, died, over = threading.Event(), threading.Event(), threading.Event()
    all_there = threading.Barrier(3, timeout=60)

    def before(state):
        if (state.step, state.comm.nranks, state.comm.rank) == (4, 4, 3):
            stopped.set()
            over.wait(90)
        if (state.step, state.comm.nranks) == (8, 3) and not died.is_set():
            all_there.wait()
            if state.comm.rank == 0:
                died.set()
                raise Dies
            died.wait()

    def regroup(comm):
        left = list(range(comm.nranks))
        if comm.nranks == 4 and stopped.is_set() and comm.rank != 3:
            left.remove(3)
        if comm.nranks == 3 and died.is_set():
            left.remove(0)
        return left, None

    def work(rank):
        run = runs[rank] = Run(comms[rank])
        try:
            return elastic(run.train(12, before), run.state, regroup=regroup, max_recoveries=20)
        finally:
            if rank in (1, 2):
                over.set()

    out = on_ranks(4, work)
    assert isinstance(out[0], Dies) and isinstance(out[3], Error), out
    assert "Rank 3 of 4, at step 4: run_elastic gives up" in str(out[3])
    assert "too late" in str(out[3])
    assert np.array_equal(out[1], out[2])
    assert np.array_equal(out[1], reference(4, [([0, 1, 2, 3], 4), ([0, 1, 2], 8), ([1, 2], 12)]))
    for rank in (1, 2):
        assert runs[rank].calls[0] == (0, 4) and {(4, 3), (8, 2)} <= set(runs[rank].calls)
        state = runs[rank].state
        assert state.recoveries >= 2 and [one for one in state.gone if one] == [[3], [0]]
        assert state.comm.nranks == 2 and state.reducers[0].comm is state.comm
        assert "closed" in repr(comms[rank]) and "closed" in repr(runs[rank].reducer)


class Cut(Table):
    """Breaks on one rank when the last all-gather of a step is over for the others."""

    def __init__(self, nranks, victim, step):
        super().__init__(nranks)
        self.victim, self.step = victim, step
        self.calls, self.in_step, self.now = 0, None, 0

    def begins(self, step):
        """What the victim does before each step."""
        if step == 1:
            self.in_step = self.calls  # all steps make as many
        self.calls, self.now = 0, step

    def of(self, rank):
        whole = super().of(rank)

        def allgather(send, recv):
            whole(send, recv)
            if rank != self.victim:
                return
            self.calls += 1
            if self.now == self.step and self.calls == self.in_step:
                raise ConnectionError("the link of rank 1 is cut")

        return allgather


@pytest.mark.parametrize("every", [1, 2])
def test_a_rank_that_is_a_step_ahead_goes_back(every):
    wide, narrow = Cut(3, victim=1, step=6), Table(2)
    comms = [Comm.callback(rank, 3, wide.of(rank), 100000) for rank in range(3)]
    runs, seen, ahead = [None] * 3, [[], [], []], threading.Barrier(2, timeout=60)

    def work(rank):
        def before(state):
            seen[rank].append(state.step)
            if rank == 1 and state.comm.nranks == 3:
                wide.begins(state.step)
            if rank != 1 and state.step == 7 and state.comm.nranks == 3:
                ahead.wait()
            if rank == 2 and state.step == 7:
                wide.barrier.abort()
                raise Dies

        run = runs[rank] = Run(comms[rank])
        return elastic(
            run.train(10, before, every),
            run.state,
            regroup=lambda comm: ([0, 1], narrow.of(comm.rank)),
        )

    out = on_ranks(3, work)
    assert isinstance(out[2], Dies), out
    assert np.array_equal(out[0], out[1])
    assert np.array_equal(out[0], reference(3, [([0, 1, 2], 6), ([0, 1], 10)]))
    assert seen[0] == [*range(8), *range(6, 10)]  # it had made step 6, and made it again
    assert seen[1] == [*range(7), *range(6, 10)]
    assert runs[0].own[0] == 0 and runs[1].own[0] == 1


def test_a_rank_that_missed_the_last_step_calls_the_others_back():
    """All live; they meet in another network."""
    wide, other = Cut(3, victim=1, step=5), Table(3)
    comms = [Comm.callback(rank, 3, wide.of(rank), 100000) for rank in range(3)]
    runs = [None] * 3

    def work(rank):
        def before(state):
            if rank == 1 and state.recoveries == 0:
                wide.begins(state.step)

        def regroup(comm):
            wide.barrier.abort()
            return [0, 1, 2], other.of(comm.rank)

        run = runs[rank] = Run(comms[rank])
        return elastic(run.train(6, before), run.state, regroup=regroup)

    out = on_ranks(3, work)
    assert all(np.array_equal(w, run_local(3, 6)[0][0]) for w in out), out
    assert [run.calls for run in runs] == [[(0, 3), (5, 3)]] * 3
    assert runs[0].state.gone == [[]]


def test_commits_every_few_steps_repeat_what_was_not_committed():
    comms = Comm.local(3, 100000)
    runs, death = [None] * 3, Death(3, victim=1, step=5)

    def work(rank):
        run = runs[rank] = Run(comms[rank])
        return elastic(run.train(8, death, every=3), run.state)

    out = on_ranks(3, work)
    assert np.array_equal(out[0], out[2]) and isinstance(out[1], Dies)
    assert runs[0].calls == [(0, 3), (3, 2)]
    assert np.array_equal(out[0], reference(3, [([0, 1, 2], 3), ([0, 2], 8)]))


def test_update_mode_and_dense_go_on():
    for options in (dict(update=dict(rule="adam", beta1=0.9)), dict(scheme="dense")):
        comms = Comm.local(3, 100000)
        death = Death(3, victim=0, step=3)

        def work(rank):
            run = Run(comms[rank], **options)
            w = elastic(run.train(6, death), run.state)
            return w, run.state.reducers[0].stats()["steps"]

        out = on_ranks(3, work)
        assert isinstance(out[0], Dies)
        assert np.array_equal(out[1][0], out[2][0]) and out[1][0].any()
        assert out[1][1] == 6


def test_another_loss_in_the_midst_of_a_recovery():
    """Two reducers; a rank dies when the first has migrated: the others shrink once more."""
    comms = Comm.local(4, 100000)
    states, death = [None] * 4, Death(4, victim=3, step=2)

    def work(rank):
        w = np.zeros(N, np.float32)
        made = [tamis.Reducer(comms[rank], tamis.Layout(SEGMENTS)) for _ in range(2)]
        state = states[rank] = tamis.ElasticState(comms[rank], {"w": w}, reducers=made)
        if rank == 2:

            def die(other, joins):
                other.abort()
                raise Dies

            state.parts[1].migrate = die

        def train(state):
            while state.step < 6:
                death(state)
                for reducer in state.reducers:
                    grad = np.full(N, 1 + state.comm.rank, np.float32)
                    reducer.start(grad)
                    reducer.wait()
                    w[:] -= grad
                state.step += 1
                state.commit()
            return w.copy(), residual(state.reducers[1])

        return elastic(train, state)

    out = on_ranks(4, work)
    assert isinstance(out[2], Dies) and isinstance(out[3], Dies)
    assert np.array_equal(out[0][0], out[1][0]) and np.isfinite(out[0][1]).all()
    assert states[0].gone == states[1].gone == [[3], [2]]
    assert states[0].recoveries == 2 and states[0].reducers[0].stats()["steps"] == 6


# --- limits and mistakes


def test_commits_without_an_exchange_between_them_are_refused():
    comms, all_there = Comm.local(3, 60000), threading.Barrier(3, timeout=60)

    def work(rank):
        state = tamis.ElasticState(comms[rank], {"w": np.zeros(N, np.float32)})

        def train(state):
            for _ in range(3 if rank == 0 else 0):
                state.commit()
            all_there.wait()
            if rank == 2:
                raise Dies
            tamis.check_equal(state.comm, b"step")

        return elastic(train, state)

    out = on_ranks(3, work)
    for rank in (0, 1):
        assert out[rank].status == "TAMIS_E_MISMATCH"
        assert f"Rank {rank}: no commit" in str(out[rank])


def ends(nranks, **options):
    """What each rank of a run raises, or returns, of which rank 1 dies at step 2."""
    comms, death = Comm.local(nranks, 100000), Death(nranks, victim=1, step=2)

    def work(rank):
        run = Run(comms[rank])
        return elastic(run.train(6, death), run.state, **options)

    return on_ranks(nranks, work)


def test_fewer_ranks_than_min_ranks_end_the_run():
    out = ends(3, min_ranks=3)
    for rank, place in ((0, 0), (2, 1)):
        text = str(out[rank])
        assert isinstance(out[rank], Error) and out[rank].lost == "comm"
        assert f"Rank {place} of 2, at step 2" in text
        assert "2 ranks are left, fewer than min_ranks, 3; gone: 1 of 3" in text
        assert "The cause: rank" in text and isinstance(out[rank].__cause__, Error)


def test_max_recoveries_ends_the_run(tmp_path):
    out = ends(2, max_recoveries=0)
    assert "0 recoveries were made, as many as allowed" in str(out[0])
    assert "Rank 0 of 2" in str(out[0])
    out = ends(2, max_recoveries=0, folder=tmp_path)
    assert f"from the set of step 2 in {tmp_path}" in out[0].remedy


def test_what_train_raises_otherwise_ends_its_rank_alone():
    out = ends(2)
    assert isinstance(out[1], Dies) and out[0].any()

    def nonfinite(state):
        grad = np.full(N, np.nan, np.float32)
        state.reducers[0].start(grad)
        state.reducers[0].wait()

    run = Run(Comm.local(1)[0])
    with pytest.raises(Error) as caught:  # only the step is lost, which is for train to handle
        tamis.run_elastic(nonfinite, run.state)
    assert caught.value.status == "TAMIS_E_NONFINITE"
    assert run.state.comm.status == "TAMIS_OK" and run.state.recoveries == 0


def test_a_callback_without_regroup_says_what_to_do():
    def allgather(send, recv):
        if broken:
            raise ConnectionError("the network is gone")
        recv[:] = send

    broken = []
    run = Run(Comm.callback(0, 1, allgather))
    with pytest.raises(Error) as caught:
        tamis.run_elastic(
            run.train(5, lambda state: broken.append(1) if state.step == 3 else None), run.state
        )
    text = str(caught.value)
    assert "Rank 0 of 1, at step 3" in text and "regroup" in text and "all-gather callback" in text
    assert "the network is gone" in str(caught.value.__cause__.__cause__)


def test_lists_of_regroup_that_differ_end_the_run():
    wide, narrow = Table(3), Table(2)
    comms = [Comm.callback(rank, 3, wide.of(rank), 100000) for rank in range(3)]
    lists = {0: [0, 1], 1: [1, 2]}

    def work(rank):
        def before(state):
            if rank == 2 and state.step == 1:
                wide.barrier.abort()
                raise Dies

        run = Run(comms[rank])
        return elastic(
            run.train(5, before),
            run.state,
            regroup=lambda comm: (lists[comm.rank], narrow.of(comm.rank)),
        )

    out = on_ranks(3, work)
    for rank in (0, 1):
        assert out[rank].status == "TAMIS_E_TRANSPORT" and f"Rank {rank} of 3" in str(out[rank])
        assert "cannot go on" in str(out[rank]) and "the ranks that are left" in str(out[rank])


def test_ranks_that_do_not_begin_the_same_way_are_refused():
    for what in ("w", "step"):
        comms = Comm.local(2, 100000)

        def work(rank):
            run = Run(comms[rank])
            if rank == 1:
                run.w[3] += what == "w"
                run.state.step += what == "step"
            return elastic(run.train(5), run.state)

        out = on_ranks(2, work)
        for error in out:
            assert error.status == "TAMIS_E_MISMATCH" and "Before the first step" in str(error)
            assert ("'w'" in str(error)) == (what == "w") and "rank" in str(error)


def test_what_differs_after_a_recovery_is_never_used():
    """Something that steps change, and that is not in the state: ranks that go back differ."""
    wide, narrow = Cut(3, victim=1, step=2), Table(2)
    comms = [Comm.callback(rank, 3, wide.of(rank), 100000) for rank in range(3)]

    class Forgetful:
        """Does not go back."""

        count = 0

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, saved):
            pass

    ahead = threading.Barrier(2, timeout=60)

    def work(rank):
        forgetful = Forgetful()
        reducer = tamis.Reducer(comms[rank], tamis.Layout(SEGMENTS))
        state = tamis.ElasticState(comms[rank], {"counter": forgetful}, reducers=[reducer])

        def train(state):
            while state.step < 6:
                if rank == 1 and state.comm.nranks == 3:
                    wide.begins(state.step)
                if rank != 1 and state.step == 3:
                    ahead.wait()
                if rank == 2 and state.step == 3:
                    wide.barrier.abort()
                    raise Dies
                state.reducers[0].start(np.ones(N, np.float32))
                state.reducers[0].wait()
                forgetful.count += 1
                state.step += 1
                state.commit()

        return elastic(
            train, state, regroup=lambda comm: ([0, 1], narrow.of(comm.rank))
        )

    out = on_ranks(3, work)
    for error in out[:2]:
        assert error.status == "TAMIS_E_MISMATCH" and "'counter'" in str(error), out
        assert "After the loss of ranks" in str(error)


def test_arguments_are_checked():
    comm, other = Comm.local(1)[0], Comm.local(1)[0]
    w = np.zeros(N, np.float32)
    reducer = tamis.Reducer(other, tamis.Layout(SEGMENTS))
    with pytest.raises(TypeError, match="'w' is a list"):
        tamis.ElasticState(comm, {"w": [1, 2]})
    with pytest.raises(TypeError, match=r"reducers\[0\] is a Comm"):
        tamis.ElasticState(comm, {"w": w}, reducers=[comm])
    state = tamis.ElasticState(comm, {"w": w}, reducers=[reducer])
    with pytest.raises(ValueError, match=r"reducers\[0\] is over another communicator"):
        tamis.run_elastic(print, state)
    state = tamis.ElasticState(comm, {"w": w})
    for wrong in (dict(max_recoveries=-1), dict(min_ranks=0), dict(save_every=0)):
        with pytest.raises(ValueError, match=list(wrong)[0]):
            tamis.run_elastic(print, state, **wrong)
    with pytest.raises(ValueError, match="min_ranks is 2, but there are 1"):
        tamis.run_elastic(print, state, min_ranks=2)
    assert comm.status == "TAMIS_OK"

    class Odd:
        def state_dict(self):
            return {"inner": [1, {2: object()}]}

        def load_state_dict(self, saved):
            pass

    with pytest.raises(TypeError, match=r"'odd'\['inner'\]\[1\]\[2\] is a object"):
        tamis.run_elastic(print, tamis.ElasticState(other, {}, own={"odd": Odd()}))
    assert run_local(1, 3)[0][0].any()
