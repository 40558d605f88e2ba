# SPDX-License-Identifier: MIT
"""Update mode with numpy, entry by entry against a plain loop; the hierarchical exchange."""

import numpy as np
import pytest
from core_support import N, SEGMENTS, alone, gradient, ranks, refused
from tamis._core import Comm, Error, Layout, Reducer

STEPS = 6
F = np.float32


class Plain:
    """What one rank keeps: the formulas of docs/fidelity.md, with one rounding each."""

    def __init__(self, reducer, beta1, beta2=0.0, epsilon=0.0, n=N):
        self.rule = reducer.update["rule"]
        self.adam = self.rule == "adam"
        self.scale, self.decay = reducer.update["scale"], F(reducer.residual_decay)
        self.beta1, self.beta2, self.epsilon = beta1, beta2, F(epsilon)
        self.m, self.v, self.acc = (np.zeros(n, F) for _ in range(3))
        self.t = 0

    def add(self, g):
        self.t += 1
        if self.adam:
            self.m = F(self.beta1) * self.m + F(1 - self.beta1) * g if self.beta1 else g.copy()
            self.v = F(self.beta2) * self.v + (F(1 - self.beta2) * g) * g
            correct1 = F(1 / (1 - self.beta1**self.t))
            correct2 = F(1 / (1 - self.beta2**self.t))
            u = self.m * correct1 / (np.sqrt(self.v * correct2) + self.epsilon)
        elif self.rule == "momentum":
            self.m = F(self.beta1) * self.m + g
            u = self.m
        else:
            u = g.copy()
        self.acc = self.decay * self.acc + u

    def clear(self, chosen):
        self.acc[chosen] = 0
        if not self.adam:
            self.m[chosen] = 0


def same(a, b):
    """NumPy's powers and the library's may differ in the last bit of a correction."""
    return np.allclose(a, b, rtol=1e-6, atol=1e-7)


CASES = [
    (dict(rule="adam", beta1=0.8, beta2=0.95, epsilon=1e-6, scale=5.0), (0.8, 0.95, 1e-6), None),
    (dict(rule="adam", beta1=0.8, beta2=0.95, epsilon=1e-6, scale=5.0), (0.8, 0.95, 1e-6), 0.5),
    (dict(rule="adam", beta1=0.0, beta2=0.95, scale=5.0), (0.0, 0.95, 1e-8), 0.95),
    (dict(rule="momentum", beta1=0.5), (0.5,), None),
    (dict(rule="step", scale=3.0), (0.0,), None),
    (dict(rule="step", scale=2.0), (0.0,), 0.9),
]


@pytest.mark.parametrize("nranks", [1, 2, 3])
@pytest.mark.parametrize("update, numbers, decay", CASES)
def test_ranks_add_their_own_steps_and_get_the_mean_of_what_was_chosen(
    nranks, update, numbers, decay
):
    comms, layout = Comm.local(nranks, 20000), Layout(SEGMENTS)
    plains, seen = [None] * nranks, [None] * nranks

    def work(rank):
        reducer = Reducer(
            comms[rank],
            layout,
            density=0.1,
            value_codec="float32",
            update=update,
            residual_decay=decay,
        )
        plain = plains[rank] = Plain(reducer, *numbers)
        seen[rank] = []
        for step in range(STEPS):
            grad = gradient(100 * rank + step)
            plain.add(grad)
            reducer.start(grad)
            reducer.wait()
            chosen = np.frombuffer(reducer.result()[0], np.uint32)
            seen[rank].append((plain.acc.copy(), chosen.copy(), grad))
            plain.clear(chosen)
            kept = np.empty(N, F)
            reducer.residual(kept)
            assert same(kept, plain.acc)
        first = np.empty(N, F) if numbers[0] else None
        second = np.empty(N, F) if plain.adam else None
        assert reducer.moments(first, second) == STEPS
        assert first is None or same(first, plain.m)
        assert second is None or same(second, plain.v)

    ranks(nranks, work)
    for step in range(STEPS):
        _, chosen, result = seen[0][step]
        assert len(chosen) == 12
        for rank in range(nranks):  # replicas, to the bit
            assert np.array_equal(seen[rank][step][2], result)
        want = np.zeros(N)
        want[chosen] = sum(row[step][0][chosen].astype(float) for row in seen)
        assert np.allclose(result, plains[0].scale * want / nranks, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2])
def test_long_residuals_that_start_at_0_are_the_steps(threads):
    n = (1 << 22) + 100
    layout = Layout([("aligned", 1 << 21), ("longer", 1), ("shifted", n - (1 << 21) - 1)])
    update = dict(beta1=0.9, scale=1.0)
    reducer = Reducer(Comm.local(1)[0], layout, density=0.001, update=update, threads=threads)
    assert reducer.residual_decay == 0.0
    plain, kept = Plain(reducer, 0.9, 0.99, 1e-8, n), np.empty(n, F)
    for step in range(3):
        grad = gradient(step, n)
        plain.add(grad)
        reducer.start(grad)
        reducer.wait()
        chosen = np.frombuffer(reducer.result()[0], np.uint32)
        plain.clear(chosen)
        reducer.residual(kept)
        assert len(chosen) == n // 1000 and same(kept, plain.acc)


def test_what_is_left_out_is_what_suits_the_update():
    for update in ("adam", {}, dict(rule="adam", scale=None), dict(beta1=0.9)):
        reducer = alone(density=0.08, update=update)
        assert reducer.update == dict(
            rule="adam",
            beta1=0.9,
            beta2=0.99,
            epsilon=1e-8,
            scale=0.0,  # no bound
            norm_matching=pytest.approx(2.0, abs=0.05),
        )
        assert (reducer.density, reducer.residual_decay) == (0.08, 0.0)
    assert alone(update="adam", density=0.0).density == 0.3
    plain = alone(update=dict(beta1=0.0), density=0.0)
    assert (plain.update["beta1"], plain.update["scale"]) == (0.0, 1.25)
    assert (plain.density, plain.residual_decay) == (0.033, 0.98)
    assert alone(update="adam", density=0.01).update["beta1"] == 0.0
    own = alone(density=0.03, update=dict(scale=3.0), residual_decay=0.25)
    assert (own.update["scale"], own.residual_decay) == (3.0, 0.25)
    assert own.update["norm_matching"] == 0.0
    momentum = alone(density=0.03, update="momentum")
    # Momentum that is cleared every n / k steps gives that much less than it would in the end.
    interval = N / int(0.03 * N)
    kept = 0.9 * (1 - 0.9**interval) / (interval * 0.1)
    assert momentum.update["scale"] == pytest.approx(1 / (1 - kept), rel=1e-6)
    assert momentum.residual_decay == 1.0
    assert alone(density=0.4, update="momentum").update["scale"] == 1.0
    given = alone(density=1.0, update="step")
    assert (given.update["beta1"], given.update["norm_matching"]) == (0.0, 1.0)
    assert given.residual_decay == 0.0
    plain = alone(density=0.0, update=None, residual_decay=None)
    assert (plain.update, plain.density, plain.residual_decay) == (None, 0.3, 1.0)


@pytest.mark.parametrize(
    "update, words",
    [
        ("adamw", 'update is \'adamw\', not "adam", "momentum" or "step"'),
        (0.9, "update is 0.9"),
        (dict(rule="sgd"), 'rule is \'sgd\', not "adam", "momentum" or "step"'),
        (dict(betas=0.9), "update has no option 'betas'; options are: rule, beta1"),
        ({1: 2}, "update has no option 1"),
        (dict(beta1=1.0), "beta1 is 1"),
        (dict(beta2="high"), "beta2 is 'high', not a number"),
        (dict(epsilon=0), "epsilon is 0"),
        (dict(scale=-1), "scale is -1"),
    ],
)
def test_a_wrong_update_is_named(update, words):
    with pytest.raises((Error, TypeError)) as caught:
        alone(update=update)
    assert words in str(caught.value)


def test_what_an_update_does_not_go_with_is_refused():
    assert refused(alone, update="adam", scheme="dense").status == "TAMIS_E_UNSUPPORTED"
    assert refused(alone(update="adam").accumulate, gradient()).status == "TAMIS_E_UNSUPPORTED"


# -- state -----------------------------------------------------------------------------------------


def steps(reducer, numbers):
    out = []
    for i in numbers:
        grad = gradient(i)
        reducer.start(grad)
        reducer.wait()
        out.append(grad)
    return np.array(out)


@pytest.mark.parametrize("update", [dict(beta1=0.9), dict(beta1=0.0), "momentum"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(update, tmp_path):
    options = dict(density=0.05, update=update)
    reducer = alone(**options)
    steps(reducer, range(4))
    control, residual = reducer.control(), np.empty(N, F)
    first = None if update == dict(beta1=0.0) else np.empty(N, F)
    second = None if update == "momentum" else np.empty(N, F)
    reducer.residual(residual)
    passes = reducer.moments(first, second)
    reducer.save(tmp_path / "state")
    expected = steps(reducer, range(4, 8))

    parts, file, forgetful = alone(**options), alone(**options), alone(**options)
    parts.restore(control, residual)
    parts.restore_moments(first=first, second=second, passes=passes)
    file.load(tmp_path / "state")
    forgetful.restore(control, residual)
    assert np.array_equal(steps(parts, range(4, 8)), expected)
    assert np.array_equal(steps(file, range(4, 8)), expected)
    assert not np.array_equal(steps(forgetful, range(4, 8)), expected)


def test_wrong_moments_are_refused_and_change_nothing():
    reducer = alone(update=dict(beta1=0.9))
    steps(reducer, range(2))
    first, second = np.empty(N, F), np.empty(N, F)
    passes = reducer.moments(first, second)
    assert "has this moment" in str(refused(reducer.moments, None, second))
    assert "elements" in str(refused(reducer.moments, first, np.empty(3, F)))
    bad = second.copy()
    bad[3] = -1
    for args in ((None, second, 2), (first, bad, 2), (np.full(N, np.inf, F), second, 2)):
        assert refused(reducer.restore_moments, *args).status == "TAMIS_E_ARGUMENT"
    assert "passes is -1" in str(refused(reducer.restore_moments, first, second, -1))
    now = np.empty(N, F), np.empty(N, F)
    assert reducer.moments(*now) == passes
    assert np.array_equal(now[0], first) and np.array_equal(now[1], second)
    assert refused(alone().moments, None, None).status == "TAMIS_E_UNSUPPORTED"
    reducer.start(gradient())
    assert refused(reducer.moments, first, second).status == "TAMIS_E_STATE"
    reducer.wait()
    reducer.close()
    assert "closed" in str(refused(reducer.moments, first, second))


# -- nodes -----------------------------------------------------------------------------------------


def places(reducer):
    """The elements that the residual holds, in its order."""
    found = np.empty(reducer.residual_length, np.int64)
    for b in reducer.buckets():
        i = np.arange(b["residual_length"])
        run, at = b["shard_run"], b["begin"] + b["shard_first"]
        found[b["residual_begin"] + i] = at + i // run * b["shard_stride"] + i % run
    return found


def test_with_nodes_a_rank_holds_the_residual_of_its_shard_alone():
    nranks, comms, layout = 4, Comm.local(4, 20000), Layout([("a", 512), ("b", 512)])
    given, applied, held = np.zeros((3, nranks, 1024))
    lengths = [None] * nranks

    def work(rank):
        reducer = Reducer(comms[rank], layout, density=0.05, ranks_per_node=2, bucket_length=512)
        for step in range(4):
            grad = np.random.default_rng(10 * step + rank).integers(-8, 9, 1024).astype(F)
            given[rank] += grad
            reducer.start(grad)
            reducer.wait()
            applied[rank] += grad
        lengths[rank] = reducer.residual_length
        residual = np.empty(lengths[rank], F)
        reducer.residual(residual)
        held[rank][places(reducer)] = residual
        assert "elements" in str(refused(reducer.residual, np.empty(1024, F)))
        control, again = reducer.control(), residual.copy()
        reducer.restore(control, residual)
        reducer.residual(again)
        assert np.array_equal(again, residual)

    ranks(nranks, work)
    assert lengths[0] + lengths[1] == 1024 and lengths[2:] == lengths[:2]
    assert held.any() and applied.any()
    assert np.array_equal(given.sum(0), applied.sum(0) + held.sum(0))
    flat = alone()
    assert flat.residual_length == N and np.array_equal(places(flat), np.arange(N))
