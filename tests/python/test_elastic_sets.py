# SPDX-License-Identifier: MIT
"""tamis.run_elastic: sets of states in a folder, as a run that is started again finds them."""

import json
import logging

import numpy as np
import pytest
from elastic_support import N, Death, Dies, Run, elastic, on_ranks, residual, run_local

import tamis
from tamis import Comm, Error, _pack, _sets


def state_of(runs):
    return [(residual(run.state.reducers[0]), run.state.step, run.w.copy()) for run in runs]


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole, runs = run_local(3, 9)
    run_local(3, 5, tmp_path)
    again, resumed = run_local(3, 9, tmp_path)
    assert [run.calls for run in resumed] == [[(5, 3)]] * 3
    assert all(np.array_equal(a, b) for a, b in zip(whole, again))
    for (a, _, _), (b, _, _) in zip(state_of(runs), state_of(resumed)):
        assert np.array_equal(a, b) and a.any()
    assert resumed[0].state.newest_set() == 9


def test_fewer_ranks_take_the_residuals_of_all(tmp_path):
    _, runs = run_local(3, 5, tmp_path)
    (a, _, w), (b, _, _), (c, _, _) = state_of(runs)
    _, resumed = run_local(2, 5, tmp_path)
    for (now, step, weights), then in zip(state_of(resumed), (a + c, b)):
        assert step == 5 and np.array_equal(weights, w)
        assert np.array_equal(now, then * np.float32(2 / 3))
    assert resumed[0].state.reducers[0].stats()["steps"] == 5
    out, _ = run_local(2, 9, tmp_path)
    assert np.array_equal(out[0], out[1]) and not np.array_equal(out[0], w)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_a_rank_that_joins_begins_with_no_residual(tmp_path, op):
    _, runs = run_local(2, 5, tmp_path, op=op)
    (a, _, w), (b, _, _) = state_of(runs)
    _, resumed = run_local(3, 5, tmp_path, op=op)
    share = np.float32(1.5 if op == "mean" else 1)
    for (now, step, weights), then in zip(state_of(resumed), (a * share, b * share, 0 * a)):
        assert step == 5 and np.array_equal(weights, w) and np.array_equal(now, then)
    assert [run.own[0] for run in resumed] == [0, 1, 2]


def test_moments_become_the_mean(tmp_path):
    options = dict(update=dict(rule="adam", beta1=0.9))

    def moments(runs):
        out = []
        for run in runs:
            first, second = np.zeros(N, np.float32), np.zeros(N, np.float32)
            passes = run.state.reducers[0].moments(first, second)
            out.append((first, second, passes))
        return out

    _, runs = run_local(2, 5, tmp_path, **options)
    a, b = moments(runs)
    _, resumed = run_local(3, 5, tmp_path, **options)
    for first, second, passes in moments(resumed):
        assert np.array_equal(first, (a[0] + b[0]) / 2) and first.any()
        assert np.array_equal(second, (a[1] + b[1]) / 2) and passes == a[2] == 5


def test_planned_buckets_find_their_thresholds_anew(tmp_path, caplog):
    """With another number of ranks they may begin elsewhere; nothing that was pending is lost."""
    segments = tamis.Layout([(f"s{i}", 4096) for i in range(8)])

    def run(nranks, steps):
        comms = Comm.local(nranks, 60000)

        def work(rank):
            w = np.zeros(segments.length, np.float32)
            link = dict(link_latency_us=6, link_gbit=0.5)
            reducer = tamis.Reducer(
                comms[rank], segments, bucket_length="planned", density=0.1, **link
            )
            state = tamis.ElasticState(comms[rank], {"w": w}, reducers=[reducer])

            def train(state):
                while state.step < steps:
                    grad = np.random.default_rng(rank).standard_normal(w.size).astype(np.float32)
                    state.reducers[0].start(grad)
                    state.reducers[0].wait()
                    w[:] += grad
                    state.step += 1
                    state.commit()
                out = np.zeros(w.size, np.float32)
                state.reducers[0].residual(out)
                return w, out, len(reducer.buckets())

            return elastic(train, state, folder=tmp_path)

        out = on_ranks(nranks, work)
        assert not any(isinstance(one, BaseException) for one in out), out
        return out

    before, after = run(8, 2), run(2, 2)
    assert before[0][2] != after[0][2] and "begin anew" in caplog.text
    pending = sum(one[1].astype(np.float64) for one in before) / 8
    now = sum(one[1].astype(np.float64) for one in after) / 2
    assert np.allclose(pending, now, atol=1e-6)
    later = run(2, 4)
    assert np.array_equal(later[0][0], later[1][0])


# --- what is not whole


def resumes_at(folder, nranks=2):
    """The step from which a run goes on."""
    _, runs = run_local(nranks, 0, folder)
    assert len({run.state.step for run in runs}) == 1
    return runs[0].state.step


def test_the_newest_set_that_is_whole_is_taken(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="tamis")
    run_local(2, 6, tmp_path)
    sets = _sets.Sets(tmp_path)
    assert sets.complete() == [6, 5] and resumes_at(tmp_path) == 6
    assert len(list(tmp_path.iterdir())) == 6  # the two newest stay
    path = tmp_path / "step000000000006.rank1.state"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert resumes_at(tmp_path) == 5 and "rank1.state is damaged" in caplog.text
    assert resumes_at(tmp_path, nranks=3) == 5
    path.write_bytes(data)
    assert resumes_at(tmp_path) == 6
    path.unlink()
    assert resumes_at(tmp_path) == 5 and "No such file" in caplog.text
    path.write_bytes(data)
    manifest = tmp_path / "step000000000006.set"
    text = manifest.read_text()
    manifest.write_text(text.replace('"ranks": 2', '"ranks": 1'))
    assert resumes_at(tmp_path) == 5 and "step000000000006.set is damaged" in caplog.text
    manifest.unlink()
    assert resumes_at(tmp_path) == 5 and "step 6" in caplog.text and "no manifest" in caplog.text
    assert json.loads(text.rpartition("\n")[0])["step"] == 6


def test_no_set_that_is_whole_is_an_error_on_all_ranks(tmp_path):
    run_local(2, 4, tmp_path)
    for path in tmp_path.glob("*.set"):
        path.write_text("x" + path.read_text())
    comms = Comm.local(2, 60000)

    def work(rank):
        run = Run(comms[rank])
        return elastic(run.train(9), run.state, folder=tmp_path)

    for rank, error in enumerate(on_ranks(2, work)):
        assert error.status == "TAMIS_E_FORMAT" and f"Rank {rank}" in str(error)
        assert "none of the 2 sets" in str(error) and str(tmp_path) in str(error)
    for path in tmp_path.glob("*.set"):
        path.unlink()
    assert resumes_at(tmp_path) == 0  # a run that ended before its first set


def test_a_set_that_cannot_be_written_ends_no_run(tmp_path, caplog, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    out, _ = run_local(2, 4, file)
    assert out[0].any() and "rank 1: the run goes on, but" in caplog.text

    folder, write = tmp_path / "sets", _sets._write

    def full(path, data):
        if "step000000000004.rank1" in path:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(_sets, "_write", full)
    run_local(2, 4, folder)
    assert "the set of step 4 is not complete: rank 1 failed" in caplog.text
    assert _sets.Sets(folder).complete() == [3, 2] and resumes_at(folder) == 3


def test_what_was_saved_must_fit(tmp_path):
    run_local(1, 3, tmp_path)

    def refused(kind, match, **values):
        comm = Comm.local(1)[0]
        reducer = tamis.Reducer(comm, tamis.Layout([("first", 96), ("second", 32)]), density=0.1)
        given = dict({"w": np.zeros(N, np.float32), "momentum": np.zeros(N, np.float32)}, **values)
        state = tamis.ElasticState(
            comm, given, own={"own": np.zeros(1, np.float32)}, reducers=[reducer]
        )
        with pytest.raises(kind, match=match):
            tamis.run_elastic(lambda state: None, state, folder=tmp_path)

    refused(ValueError, "'w' has shape .5,., but .128,. was saved", w=np.zeros(5, np.float32))
    refused(ValueError, "shared is .*'more'.* was saved", more=np.zeros(5, np.float32))
    comm = Comm.local(1)[0]
    with pytest.raises(ValueError, match="0 reducers, but 1 were saved"):
        w = {"w": np.zeros(N, np.float32), "momentum": np.zeros(N, np.float32)}
        state = tamis.ElasticState(comm, w, own={"own": np.zeros(1, np.float32)})
        tamis.run_elastic(print, state, folder=tmp_path)


def test_a_run_that_lost_a_rank_writes_sets_of_those_that_are_left(tmp_path):
    comms, death = Comm.local(3, 60000), Death(3, victim=1, step=4)

    def work(rank):
        run = Run(comms[rank])
        return elastic(run.train(8, death), run.state, folder=tmp_path, save_every=3)

    out = on_ranks(3, work)
    assert isinstance(out[1], Dies)
    sets = _sets.Sets(tmp_path)
    assert [sets.read_manifest(step)["ranks"] for step in sets.complete()] == [2, 3]
    assert sets.complete() == [6, 3]
    again, resumed = run_local(2, 8, tmp_path)
    assert np.array_equal(again[0], out[0]) and resumed[0].calls == [(6, 2)]


# --- the form of files


def test_values_survive():
    value = {
        "none": None,
        "numbers": [1, -(2**60), 0.1, float("inf"), True],
        3: ("tuple", b"\0\xff"),
        "text": 'quote" and ß',
        "nested": {"arrays": [np.arange(6, dtype=np.int16).reshape(2, 3), np.float64(2.5)]},
        "empty": np.zeros((0, 3), np.float32),
        "strided": np.arange(10, dtype=np.float32)[::2],
    }
    found = _pack.decode(_pack.encode(value, "value"))
    assert list(found) == list(value)
    for name in ("none", "numbers", 3, "text"):
        assert found[name] == value[name] and type(found[name]) is type(value[name])
    assert [type(one) for one in found["numbers"]] == [int, int, float, float, bool]
    array, scalar = found["nested"]["arrays"]
    assert array.dtype == np.int16 and np.array_equal(array, value["nested"]["arrays"][0])
    assert scalar == 2.5 and found["empty"].shape == (0, 3)
    assert np.array_equal(found["strided"], value["strided"])
    array[0, 0] = 7  # a copy of its own, to be written
    for wrong in (np.array([object()]), {1, 2}, lambda: None):
        with pytest.raises(TypeError, match=r"x\['deep'\] is a "):
            _pack.encode({"deep": wrong}, "x")
