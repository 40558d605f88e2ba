# SPDX-License-Identifier: MIT
"""tamis._core with numpy: steps, options, state."""

import ast
import pathlib

import numpy as np
import pytest
from core_support import N, SEGMENTS, alone, gradient, ranks, refused
from tamis import _core
from tamis._core import Comm, Error, Layout, Plan, Reducer


# -- steps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nranks", [1, 2, 3])
@pytest.mark.parametrize("how", ["flat", "list", "plan"])
def test_ranks_that_are_threads_agree_and_nothing_is_lost(nranks, how):
    """The result of a step is what all ranks sent, over the number of ranks: what came out and what
    stayed is what went in."""
    comms, layout = Comm.local(nranks, 20000), Layout(SEGMENTS)
    results, given = [None] * nranks, np.zeros((nranks, N))
    kept = np.zeros((nranks, N), np.float32)

    def work(rank):
        reducer = Reducer(comms[rank], layout, density=0.1)
        out = []
        for step in range(5):
            grad = gradient(100 * rank + step)
            given[rank] += grad
            views = [grad[:96], grad[96:]]
            if how == "flat":
                reducer.start(grad)
            elif how == "list":
                reducer.start(views)
            else:
                reducer.ready(reducer.plan([1], [views[1]]))
                reducer.ready(reducer.plan([0], [views[0]]))
            reducer.wait()
            assert np.count_nonzero(grad) <= reducer.stats()["target"]
            out.append(grad.copy())
        results[rank] = out
        reducer.residual(kept[rank])
        reducer.close()
        comms[rank].close()

    ranks(nranks, work)
    for rank in range(1, nranks):
        assert all(np.array_equal(a, b) for a, b in zip(results[0], results[rank]))
    came = np.sum(results[0], axis=0, dtype=np.float64) * nranks
    assert np.count_nonzero(results[0][0]) > 0
    assert np.allclose(came + kept.sum(axis=0), given.sum(axis=0), atol=1e-5)


def test_scheme_dense_gives_the_mean_in_the_memory_that_was_given():
    comms, layout = Comm.local(2, 20000), Layout(SEGMENTS)
    grads = [gradient(1), gradient(2)]
    expected = ((grads[0] + grads[1]) / np.float32(2)).copy()
    where = [g.ctypes.data for g in grads]

    def work(rank):
        reducer = Reducer(comms[rank], layout, scheme="dense")
        reducer.start(grads[rank])
        reducer.wait()
        assert "dense" in str(refused(reducer.result))

    ranks(2, work)
    assert [g.ctypes.data for g in grads] == where
    assert np.array_equal(grads[0], expected) and np.array_equal(grads[1], expected)


def test_scale_and_accumulate_add_up():
    reducer, a, b = alone(density=1.0), gradient(1), gradient(2)
    expected = np.float32(0.5) * a + np.float32(0.25) * b
    reducer.accumulate(a, 0.5)
    assert np.count_nonzero(a) == 0  # its content is in the residual
    reducer.start([b[:96], b[96:]], scale=0.25)
    assert reducer.test() in (True, False)
    reducer.wait()
    assert np.array_equal(b, expected)


def test_segments_of_a_step_may_come_by_ready_and_the_rest_by_start():
    reducer, a = alone(density=1.0), gradient()
    expected, other = a.copy(), np.zeros(32, np.float32)
    reducer.ready(reducer.plan([1], [a[96:]]))
    reducer.start([a[:96], other])  # of which only the first counts
    reducer.wait()
    assert np.array_equal(a, expected) and not other.any()


def test_a_segment_is_ready_once_in_a_step():
    reducer, a, b = alone(density=1.0), gradient(), gradient(1)
    expected, untouched = a.copy(), b.copy()
    plans = [reducer.plan([0], [a[:96]]), reducer.plan([1], [a[96:]])]
    reducer.ready(plans[0])
    again = reducer.plan([1, 0], [b[96:], b[:96]])
    error = refused(reducer.ready, again)
    assert error.status == "TAMIS_E_STATE" and "first was already marked ready" in str(error)
    reducer.ready(plans[1])
    reducer.wait()
    assert np.array_equal(a, expected) and np.array_equal(b, untouched)


def test_a_step_has_one_scale():
    reducer, a = alone(), gradient()
    reducer.ready(reducer.plan([1], [a[96:]]), 1.0)
    first = reducer.plan([0], [a[:96]])
    assert "scale" in str(refused(reducer.ready, first, 0.5))
    reducer.ready(first)
    reducer.wait()


def test_gradients_that_overlap_are_refused():
    reducer, a = alone(), gradient()
    assert "overlap" in str(refused(reducer.start, [a[:96], a[:32]]))


def test_a_plan_says_what_is_wrong_with_it():
    reducer, a = alone(), gradient()
    assert "segment 2 is out of range: there are 2" in str(refused(reducer.plan, [2], [a]))
    assert "given twice" in str(refused(reducer.plan, [0, 0], [a[:96], a[:96]]))
    assert "1 segment(s) and 2 tensor(s)" in str(refused(reducer.plan, [0], [a, a]))
    assert "0 segment(s)" in str(refused(reducer.plan, [], []))
    assert "-1" in str(refused(reducer.plan, [-1], [a[:96]]))
    plan = alone().plan([0], [a[:96]])
    assert plan.segments == (0,)
    assert "another reducer" in str(refused(reducer.ready, plan))
    with pytest.raises(TypeError):
        reducer.ready([0])
    with pytest.raises(TypeError):
        Plan()


def test_nonfinite_loses_the_step_and_the_next_one_works():
    reducer, bad = alone(density=0.01), gradient()
    bad[5] = np.nan
    reducer.start(bad)
    with pytest.raises(Error) as caught:
        reducer.wait()
    assert (caught.value.status, caught.value.lost) == ("TAMIS_E_NONFINITE", "step")
    assert "learning rate" in caught.value.remedy
    good = gradient()
    reducer.start(good)
    reducer.wait()
    assert np.count_nonzero(good) == 1


def test_calls_out_of_order_are_errors_of_state():
    reducer, a = alone(), gradient()
    assert refused(reducer.wait).status == "TAMIS_E_STATE"
    assert refused(reducer.test).status == "TAMIS_E_STATE"
    assert refused(reducer.result).status == "TAMIS_E_STATE"
    reducer.start(a)
    for call, args in (
        (reducer.start, (a,)),
        (reducer.accumulate, (a,)),
        (reducer.control, ()),
        (reducer.residual, (np.zeros(N, np.float32),)),
        (reducer.set_density, (0.01,)),
    ):
        assert refused(call, *args).status == "TAMIS_E_STATE"
    reducer.join()


def test_a_stream_is_for_cuda():
    assert "stream is 5" in str(refused(alone().start, gradient(), stream=5))


def test_cuda_is_refused_where_the_build_has_none():
    if any(f["name"] == "cuda" and f["available"] for f in _core.features()):
        pytest.skip("this build has CUDA")
    error = refused(alone, device="cuda")
    assert error.status == "TAMIS_E_UNSUPPORTED" and "CUDA" in str(error).upper()


# -- options ---------------------------------------------------------------------------------------


def test_options_reach_the_reducer():
    reducer = alone(density=0.25, bucket_length=32, bucket_budget="length", scheme="topk")
    assert reducer.stats()["target"] in (0, 32)
    assert [b["nsegments"] for b in reducer.buckets()] == [1, 1]
    assert sum(b["target"] for b in reducer.buckets()) == 32
    a = gradient()
    reducer.start(a)
    reducer.wait()
    assert reducer.stats()["selected"] == 32 and reducer.stats()["steps"] == 1
    assert alone(bucket_length="planned").buckets()
    assert alone(dtype="float16").layout.length == N
    assert alone(index_codec="bitmap").buckets()[0]["index_codec"] == "bitmap"


def test_buckets_tell_what_auto_chose_and_what_it_expects():
    (chosen,) = alone(scheme="auto", link_latency_us=50.0, link_gbit=1.0).buckets()
    assert chosen["exchange"] == "dense" and chosen["index_codec"] == "none"  # one rank
    assert chosen["predicted_us"] > 0.0
    (fixed,) = alone(density=0.25).buckets()
    assert fixed["exchange"] == "union" and fixed["predicted_us"] == 0.0


def test_values_that_travel_as_bfloat16_leave_the_rest_behind():
    reducer = alone(density=1.0, value_codec="bfloat16")
    a = np.full(N, 1.0 + 2.0**-9, dtype=np.float32)  # halfway between two bfloat16, and to even
    rest = np.empty(N, dtype=np.float32)
    reducer.start(a)
    reducer.wait()
    reducer.residual(rest)
    assert (a == 1.0).all() and (rest == 2.0**-9).all()


def test_a_residual_decays_before_anything_is_added():
    reducer, first, second = alone(density=0.1, residual_decay=0.5), gradient(1), np.zeros(N, np.float32)
    kept, left = np.zeros(N, np.float32), np.zeros(N, np.float32)
    reducer.start(first)
    reducer.wait()
    reducer.residual(kept)
    reducer.start(second)
    reducer.wait()
    reducer.residual(left)
    assert np.count_nonzero(kept) > 0 and np.array_equal(second + left, 0.5 * kept)


def not_of(option):
    """What is said of another word than those of docs/options.md."""
    docs = (pathlib.Path(__file__).parents[2] / "docs/options.md").read_text()
    (row,) = (line for line in docs.splitlines() if line.startswith(f"| `{option}` |"))
    *first, last = (f'"{word}"' for word in row.split(" | ")[1].split("\\|"))
    return f'not {", ".join(first)} or {last}'


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(scheme="none"), "neither a preset"),
        (dict(density=-0.1), "density"),
        (dict(dtype="float64"), 'not "float32", "float16" or "bfloat16"'),
        (dict(dtype=np.float32), "dtype is <class"),
        (dict(output="none"), 'not "dense" or "sparse"'),
        (dict(bucket_length="all"), "bucket_length"),
        (dict(threads=-1), "threads is -1, not a number from 0 to 4294967295"),
        (dict(block=2**32), "not a number from 0"),
        (dict(link_gbit="fast"), "link_gbit is 'fast', not a number"),
        (dict(index_codec="u16"), not_of("index_codec")),
        (dict(value_codec="float16"), not_of("value_codec")),
        (dict(residual_decay=1.5), "residual_decay"),
        (dict(ranks_per_node=-1), "ranks_per_node is -1"),
        (dict(scheme=3), "scheme is 3, not a str"),
        (dict(densty=0.1), "no option 'densty'; options are: scheme, density"),
    ],
)
def test_a_wrong_option_is_named(options, words):
    with pytest.raises((Error, TypeError)) as caught:
        alone(**options)
    assert words in str(caught.value)


def test_a_reducer_wants_a_comm_and_a_layout():
    comm, layout = Comm.local(1)[0], Layout(SEGMENTS)
    for args, keywords in (((comm,), {}), ((layout, comm), {}), ((), {}), ((comm, layout, 1), {})):
        with pytest.raises(TypeError):
            Reducer(*args, **keywords)
    reducer = Reducer(layout=layout, comm=comm, density=0.5)
    assert reducer.comm is comm and reducer.layout is layout


def test_ranks_with_different_options_are_told():
    comms, layout, said = Comm.local(2, 20000), Layout(SEGMENTS), [None, None]

    def work(rank):
        said[rank] = refused(Reducer, comms[rank], layout, density=0.01 * (rank + 1))

    ranks(2, work)
    assert [e.status for e in said] == ["TAMIS_E_MISMATCH"] * 2
    assert all("density" in str(e) for e in said)


def test_a_layout_tells_what_it_is_and_what_is_wrong():
    layout = Layout(iter(SEGMENTS))
    assert (layout.length, layout.names, layout.lengths) == (N, ("first", "second"), (96, 32))
    for segments in (["a"], [("a",)], [(3, 4)], [("a", 1.5)], [("a", 4, 2, 1)], [("a", 4, 0.5)], 5):
        with pytest.raises(TypeError):
            Layout(segments)
    for segments in ([], [("a", 0)], [("a", 2**40)], [("a", -1)], [("a", 6, 4)]):
        assert refused(Layout, segments).status == "TAMIS_E_ARGUMENT"


def test_rows_that_a_rank_touched_are_exact():
    comms, layout = Comm.local(3, 20000), Layout([("head", 32), ("words", 96, 4)])

    def work(rank):
        reducer = Reducer(comms[rank], layout, density=0.1)
        for step in range(3):
            grad = np.zeros(128, np.float32)
            grad[32 + 4 * (7 * rank + step) :][:4] = rank + 1
            grad[32 + 92 :] += 3  # the last row, of all ranks
            reducer.start(grad)
            reducer.wait()
            expected = np.zeros((24, 4), np.float32)
            for r in range(3):
                expected[7 * r + step] = np.float32(r + 1) / np.float32(3)
            expected[23] = 3
            assert np.array_equal(grad[32:].reshape(24, 4), expected)

    ranks(3, work)


def test_the_module_tells_what_it_is():
    assert len(_core.version()) == 3
    assert {"tamis", "dense"} <= {s["name"] for s in _core.schemes()}
    assert all(isinstance(f["available"], bool) for f in _core.features())
    assert "TAMIS_TIMEOUT_MS" in {s["name"] for s in _core.settings()}
    assert _core.mpi_state() in ("absent", "foreign", "own", "finalized")
    assert _core.mpi_finalize() is None


def test_a_module_that_cannot_be_loaded_says_why(tmp_path):
    error = refused(Comm.mpi, str(tmp_path / "none.so"))
    assert error.status == "TAMIS_E_UNSUPPORTED" and "none.so" in str(error)
    assert "another transport" in error.remedy
    error = refused(Comm.mpi, _core.__file__)
    assert error.status == "TAMIS_E_UNSUPPORTED" and "is not the module of tamis" in str(error)
    with pytest.raises(TypeError):
        Comm.nccl("x", bootstrap=3)


# -- state -----------------------------------------------------------------------------------------


def steps(reducer, count, first=0):
    out = []
    for i in range(first, first + count):
        grad = gradient(i)
        reducer.start(grad)
        reducer.wait()
        out.append(grad)
    return out


def test_a_restored_run_goes_on_bit_for_bit(tmp_path):
    reducer = alone(density=0.05)
    steps(reducer, 3)
    control, residual = reducer.control(), np.empty(N, np.float32)
    reducer.residual(residual)
    reducer.save(tmp_path / "state")
    expected = steps(reducer, 3, first=3)
    for take_back in (
        lambda r: r.restore(control, residual),
        lambda r: r.load(str(tmp_path / "state")),
    ):
        other = alone(density=0.05)
        take_back(other)
        assert other.control() == control
        for a, b in zip(expected, steps(other, 3, first=3)):
            assert np.array_equal(a, b)


def test_states_that_are_a_step_apart_agree():
    comms, agreed = Comm.local(2, 20000), [None, None]

    def work(rank):
        reducer = Reducer(comms[rank], Layout(SEGMENTS), density=0.05)
        states = []
        for i in range(3):
            steps(reducer, 1, first=i)
            residual = np.empty(N, np.float32)
            reducer.residual(residual)
            states.append((reducer.control(), residual))
        reducer.restore(*states[2 - rank])  # rank 1 has not applied the last one
        agreed[rank] = reducer.resync()
        steps(reducer, 1, first=3)
        reducer.restore(*states[2 * rank])
        assert "more than one apart" in str(refused(reducer.resync))
        reducer.close()

    ranks(2, work)
    assert agreed == [2, 2]


def test_one_part_of_the_state_leaves_the_other():
    reducer, residual = alone(density=0.05), gradient(9)
    steps(reducer, 2)
    control = reducer.control()
    reducer.restore(None, residual)
    now = np.zeros(N, np.float32)
    reducer.residual(now)
    assert np.array_equal(now, residual) and reducer.stats()["steps"] == 2
    other = alone(density=0.05)
    other.restore(control, None)
    assert other.stats()["steps"] == 2
    other.residual(now)
    assert not now.any()


def test_a_wrong_state_is_refused_and_changes_nothing():
    reducer = alone(density=0.05)
    steps(reducer, 2)
    control = reducer.control()
    assert refused(reducer.restore, None, None).status == "TAMIS_E_ARGUMENT"
    assert refused(reducer.restore, control[:-1], None).status == "TAMIS_E_FORMAT"
    assert refused(reducer.restore, bytes(len(control)), None).status == "TAMIS_E_FORMAT"
    assert "elements" in str(refused(reducer.restore, None, np.zeros(3, np.float32)))
    assert refused(alone(density=0.1).restore, control, None).status == "TAMIS_E_FORMAT"
    with pytest.raises(TypeError):
        reducer.restore("text", None)
    assert reducer.control() == control
    assert refused(reducer.load, "/nowhere/at/all").status == "TAMIS_E_IO"


def test_the_stub_has_the_options_of_the_library():
    stub = ast.parse(pathlib.Path(_core.__file__).with_name("_core.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    init = next(node for node in classes["Reducer"].body if getattr(node, "name", "") == "__init__")
    with pytest.raises(TypeError, match="options are: ") as caught:
        Reducer(Comm.local(1)[0], Layout([("w", 4)]), nonsense=1)
    names = str(caught.value).split("options are: ")[1].split(", ")
    assert sorted(argument.arg for argument in init.args.kwonlyargs) == sorted(names)
