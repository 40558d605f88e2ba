# SPDX-License-Identifier: MIT
"""Steps of optimizers that the reducer takes as parameters after and before: to the bit, parameters
end as a plain formula says, whatever the groups, their rates, and what is frozen or skipped."""

import threading

import numpy as np
import pytest
import torch

import tamis
from tamis import Comm, Layout, Reducer
from tamis.torch import SparseState
from tamis.torch._rows import Moved, Subtracted

SHAPES = [(40, 30), (301,), (7, 11, 5), (1,), (64, 33)]
F = torch.float32


def parameters(seed=0):
    draw = torch.Generator().manual_seed(seed)
    found = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    found[2].data = found[2].data.permute(2, 0, 1)  # memory in another order than the elements
    return found


def groups_of(rows):
    """Several rates, one of them 0."""
    return [
        dict(params=rows[:2], lr=0.03),
        dict(params=[rows[2]], lr=0.5, weight_decay=0.0),
        dict(params=[rows[3]], lr=0.0),
        dict(params=[rows[4]]),
    ]


def state_of(optimizer, rows, comm=None, **options):
    named = [(f"p{number}", row) for number, row in enumerate(rows)]
    options = dict(dict(density=0.1, check_every=0, bucket_length=700), **options)
    where = dict(transport="local") if comm is None else dict(comm=comm)
    return SparseState(named, optimizer=optimizer, **where, **options)


def fill(rows, step, rank=0):
    draw = torch.Generator().manual_seed(1000 * step + rank)
    for row in rows:
        row.grad = torch.empty_like(row)
        row.grad.copy_(torch.randn(row.shape, generator=draw))


def in_memory_order(tensor):
    tensor = tensor.detach()
    return tensor.as_strided((tensor.numel(),), (1,)).clone()


def places(state):
    found = state.steppers[0]._places
    assert found
    return found


def result(state):
    """x of the last step, whole, in the order of segments."""
    group = state.groups[0]
    indices, values = group.sparse.result()
    found = np.zeros(group.layout.length, np.float32)
    found[np.frombuffer(indices, np.uint32)] = np.frombuffer(values, np.float32)
    return torch.split(torch.from_numpy(found), [p.numel() for p in group.parameters])


def rates(optimizer):
    return {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}


def keeps(optimizer):
    """What weight decay leaves, where it is apart from the gradient; 1 of what takes no part."""
    apart = isinstance(optimizer, torch.optim.AdamW)
    return {
        id(p): 1.0 - group["lr"] * group["weight_decay"] if apart and p.requires_grad else 1.0
        for group in optimizer.param_groups
        for p in group["params"]
    }


def want(optimizer, rows, before, x):
    """Multiply, then subtract, each rounded: no fused operation of torch."""
    found = []
    for row, old, one in zip(rows, before, x):
        keep, rate = keeps(optimizer)[id(row)], rates(optimizer)[id(row)]
        held = old if keep == 1.0 else torch.mul(old, keep)
        if row.requires_grad and rate != 0.0:
            moved = torch.mul(one, torch.tensor(rate, dtype=F))
            held = torch.where(one != 0, torch.sub(held, moved), held)
        found.append(held)
    return found


def equal(found, wanted):
    """To the bit."""
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(found, wanted))


OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=1e-3),
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "NAdam": lambda groups: torch.optim.NAdam(groups, lr=1e-3),
}


FORMS = [(kind, scheme) for kind in OPTIMIZERS for scheme in (None, "topk", "quantized")]
FORMS.remove(("SGD", "quantized"))  # whole gradients are exchanged


@pytest.mark.parametrize("kind, scheme", FORMS)
def test_parameters_end_as_the_plain_formula_says(kind, scheme):
    rows = parameters()
    optimizer = OPTIMIZERS[kind](groups_of(rows))
    options = {} if scheme is None else dict(scheme=scheme)
    if scheme == "quantized":
        options.update(density=1.0, reduce="step")
    state = state_of(optimizer, rows, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
    moved = [False] * len(rows)
    for step in range(6):
        if step == 3:
            rows[1].requires_grad_(False)
        before = [in_memory_order(row) for row in rows]
        fill(rows, step)
        optimizer.step()
        x = result(state)
        assert all(place.rates for place in places(state))  # by the way of this test
        wanted = want(optimizer, rows, before, x)
        assert equal([in_memory_order(row) for row in rows], wanted)
        moved = [was or not torch.equal(a, b) for was, a, b in zip(moved, before, wanted)]
        schedule.step()
    assert moved == [True, True, True, False, True]
    state.close()


@pytest.mark.parametrize("kind", list(OPTIMIZERS))
def test_both_ways_give_the_same_but_for_rounding(kind, monkeypatch):
    found = []
    for way in (Moved, Subtracted):
        monkeypatch.setattr("tamis.torch._local_stepper.LocalStepper._way", lambda self, way=way: way)
        rows = parameters()
        optimizer = OPTIMIZERS[kind](groups_of(rows))
        state = state_of(optimizer, rows, density=1.0, reduce="step")
        for step in range(4):
            fill(rows, step)
            optimizer.step()
            assert all((place.rates is None) == (way is Subtracted) for place in places(state))
        found.append([in_memory_order(row) for row in rows])
        state.close()
    start = [in_memory_order(row) for row in parameters()]
    for moved, subtracted, begin in zip(*found, start):
        assert (moved - subtracted).abs().max() <= 1e-5
    assert (found[0][0] - start[0]).abs().max() > 1e-2


def test_ranks_end_with_the_same_bits_and_the_mean_of_their_steps():
    nranks, ends = 3, [None] * 3
    comms = Comm.local(nranks, 60000)

    def work(rank):
        rows = parameters()
        optimizer = OPTIMIZERS["AdamW"](groups_of(rows))
        state = state_of(optimizer, rows, comm=comms[rank])
        for step in range(5):
            before = [in_memory_order(row) for row in rows]
            fill(rows, step, rank)
            optimizer.step()
            wanted = want(optimizer, rows, before, result(state))
            assert equal([in_memory_order(row) for row in rows], wanted)
        ends[rank] = [in_memory_order(row) for row in rows]
        state.close()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(end is not None and equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_step_that_is_not_finite_leaves_parameters_but_for_a_rounding(kind):
    rows = parameters()
    optimizer = OPTIMIZERS[kind](groups_of(rows))
    state = state_of(optimizer, rows, nonfinite="skip")
    for step in range(4):
        before = [in_memory_order(row) for row in rows]
        fill(rows, step)
        if step == 2:
            rows[2].grad[0, 1, 2] = float("nan")
        optimizer.step()
        factors = [keeps(optimizer)[id(row)] for row in rows]
        left = [torch.div(torch.mul(old, keep), keep) for old, keep in zip(before, factors)]
        assert equal([in_memory_order(row) for row in rows], left) == (step == 2)
        assert state.stats()["groups"][0]["skipped"] == (step == 2)
    state.close()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_scaler_that_skips_makes_all_ranks_skip_though_the_first_rate_is_0(frozen):
    rows = parameters()
    groups = [dict(params=[row], lr=0.0 if frozen and row is rows[0] else 0.1) for row in rows]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    state = state_of(optimizer, rows, nonfinite="skip")
    for step in range(3):
        before = [in_memory_order(row) for row in rows]
        fill(rows, step)
        optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(float(step == 1))
        optimizer.step()
        assert equal([in_memory_order(row) for row in rows], before) == (step == 1)
        assert state.stats()["groups"][0]["skipped"] == (step == 1)
    state.close()


def test_where_momentum_is_cleared_the_steps_are_computed_apart():
    for momentum, way in ((0.0, Moved), (0.9, Subtracted)):
        rows = parameters()
        optimizer = torch.optim.SGD(rows, lr=0.1, momentum=momentum)
        state = state_of(optimizer, rows)
        fill(rows, 0)
        optimizer.step()
        assert state.steppers[0]._way() is way
        assert (places(state)[0].rates is None) == (way is Subtracted)
        state.close()


def test_a_rate_that_the_library_refuses_is_computed_apart():
    rows = parameters()
    optimizer = torch.optim.SGD(rows, lr=0.1)
    state = state_of(optimizer, rows)
    for lr, way in ((0.1, Moved), (-0.1, Subtracted), (0.0, Moved), (0.1, Moved)):
        optimizer.param_groups[0]["lr"] = lr
        before = [in_memory_order(row) for row in rows]
        fill(rows, 1)
        optimizer.step()
        assert (places(state)[0].rates is None) == (way is Subtracted)
        assert equal([in_memory_order(row) for row in rows], before) == (lr == 0.0)
    state.close()


# ---------------------------------------------------------------------------------- of the reducer


def test_plans_and_rates_that_do_not_fit_are_refused_and_lose_nothing():
    layout = Layout([("a", 20), ("b", 30)])
    reducer = Reducer(Comm.local(1)[0], layout, density=0.5, update=dict(rule="step", scale=1.0))
    after = [np.full(n, 0.5, np.float32) for n in (20, 30)]
    before = [np.ones(n, np.float32) for n in (20, 30)]
    moved, plain = reducer.plan([0, 1], after, before), reducer.plan([0, 1], after)
    for plan, given, words in (
        (moved, None, "missing"),
        (plain, [1.0, 1.0], "has no `before`"),
        (moved, [1.0], "1 rate"),
        (moved, [1.0, -1.0], "the rate of b"),
        (reducer.plan([1], after[1:], after[1:]), [1.0], "overlap"),
    ):
        with pytest.raises(tamis.Error, match=words) as raised:
            reducer.ready(plan, rates=given)
        assert raised.value.lost == "nothing"
        if words == "the rate of b":  # a was marked
            with pytest.raises(tamis.Error, match="already"):
                reducer.ready(moved, rates=[1.0, 1.0])
            reducer.ready(reducer.plan([1], after[1:], before[1:]), rates=[0.25])
            reducer.wait()
            assert sum(int((one != 1).sum()) for one in after) == 25
    with pytest.raises(TypeError):
        reducer.ready(moved, rates=[1.0, "x"])
    with pytest.raises(tamis.Error, match="1 tensor"):
        reducer.plan([0, 1], after, before[:1])
    with pytest.raises(tamis.Error, match="what b was before"):
        reducer.plan([0, 1], after, [before[0], before[1][:3]])
    with pytest.raises(tamis.Error, match="scale must be 1"):
        reducer.ready(moved, 2.0, rates=[1.0, 1.0])
