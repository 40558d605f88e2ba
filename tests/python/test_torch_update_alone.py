# SPDX-License-Identifier: MIT
"""Update mode of one rank: whose moments they are, what is refused, what a state goes to."""

import copy
import warnings

import pytest
import torch

from torch_models import Weighted, batch, network
from torch_updates import alone, flat, held, inner, normal, wrap

import tamis
import tamis.torch
from tamis.torch import _checkpoint


def learn(optimizer, model, steps=8, clip=False):
    """A rate that changes at each step, by a scheduler of the inner optimizer."""
    own = getattr(optimizer, "optimizer", optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(own, lambda step: 1.0 / (step + 1))
    for step in range(steps):
        x, y = batch(step, 0)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        if clip and own is not optimizer:
            with optimizer.no_sync():
                loss.backward()
        else:
            loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "Adam"])
def test_alone_and_with_all_entries_it_is_the_optimizer_itself(kind, clip):
    """Schedules, groups with rates and weight decays of their own, clipping."""
    found = []
    for update in (False, True):
        model = network()
        groups = [
            dict(params=model[0].parameters(), lr=0.03, weight_decay=0.0),
            dict(params=[*model[2].parameters(), *model[4].parameters()]),
        ]
        own = inner(kind, groups)
        optimizer = alone(model, optimizer=own, density=1.0) if update else own
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler warns if its optimizer does not step
            learn(optimizer, model, clip=clip)
        found.append(flat(model.parameters()))
        assert len(own.state) == (0 if update else 6)
    assert (found[0] - found[1]).abs().max() < 1e-5
    assert (found[0] - flat(network().parameters())).abs().max() > 1e-2


def test_it_learns_where_adam_on_sparse_means_is_slow():
    losses = {}
    for reduce in ("update", "gradient"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5)
        )
        own = torch.optim.AdamW(model.parameters(), lr=3e-3)
        optimizer = tamis.torch.DistributedOptimizer(
            own, model, density=0.01, reduce=reduce, comm=tamis.Comm.local(1)[0]
        )
        losses[reduce] = 0.0
        for step in range(100):
            x, y = batch(step, 0, size=64)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses[reduce] += loss.item() / 20 if step >= 80 else 0.0
    print(losses)  # 1.61 at the start
    assert losses["update"] < 0.5 and losses["gradient"] > 0.9


class Scaler:
    """What a GradScaler is to a state."""

    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


def scaled_run(kind, scale):
    """Weights after three steps, whose second one has Inf; residual, moments."""
    model = Weighted()
    scaler = Scaler(scale)
    optimizer = alone(model, kind, scaler=scaler)
    for step in range(3):
        optimizer.zero_grad()
        factors = normal(model, step, 0)
        factors[0][3, 4] = float("inf") if step == 1 else 1.0
        (scaler.scale * model(factors)).backward()
        optimizer.synchronize()
        lost = any(value.grad.isinf().any() for value in model.values)
        assert lost == (step == 1)
        for value in model.values:
            value.grad /= scaler.scale
        if lost:
            scaler.scale /= 2
            optimizer.zero_grad()
        else:
            optimizer.step()
    state = optimizer.tamis.state_dict()
    kinds = [name for name in ("residual", "first", "second") if name in state]
    return [flat(model.values)] + [flat(state[name].values()) for name in kinds]


@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD"])
def test_moments_are_of_unscaled_gradients_whatever_the_scale(kind):
    for a, b in zip(scaled_run(kind, 1.0), scaled_run(kind, 1024.0)):
        assert torch.equal(a, b) and a.any() and a.isfinite().all()


def test_the_step_follows_the_density_unless_a_scale_was_given():
    found = []
    scales = [tamis.update_advise(density, 0.8)[0] for density in (0.1, 0.01)]
    for scale in (None, scales[0]):
        model = Weighted()
        optimizer = alone(model, density=0.1, scale=scale)
        for step in range(3):
            optimizer.zero_grad()
            model(normal(model, step, 0)).backward()
            optimizer.synchronize()
            found.append(flat(value.grad for value in model.values))
            optimizer.step()
            optimizer.tamis.set_density(0.01)
    assert torch.equal(found[0], found[3])
    for advised, given in ((found[1], found[4]), (found[2], found[5])):
        assert given.any() and torch.allclose(advised, scales[1] / scales[0] * given)


def matched_step(model, optimizer, step):
    optimizer.zero_grad()
    model(normal(model, step, 0)).backward()
    optimizer.synchronize()
    left = flat(value.grad for value in model.values)
    optimizer.step()
    return left


def test_the_step_follows_norms_where_match_says_so_also_after_a_load():
    model = Weighted()
    optimizer = alone(model, density=0.1, match=2.0)
    first = matched_step(model, optimizer, 0)
    # Every step of a first Adam update is 1, so the rank's own whole one has the norm sqrt(n).
    assert first.norm().item() == pytest.approx(2.0 * first.numel() ** 0.5, rel=1e-4)
    matched_step(model, optimizer, 1)
    saved = optimizer.state_dict()
    other = Weighted()
    again = alone(other, density=0.1, match=2.0)
    again.load_state_dict(saved)
    for step in (2, 3):
        left = matched_step(model, optimizer, step)
        assert left.any() and torch.equal(left, matched_step(other, again, step))
    third = Weighted()
    bounded = alone(third, density=0.1, match=2.0, scale=1.5)
    assert matched_step(third, bounded, 0).norm() < first.norm()
    assert bounded.tamis.stats()["groups"][0]["update_scale"] == 1.5


def test_a_step_that_another_dtype_loses_goes_back_into_the_residual():
    model = Weighted(dtypes=(torch.float32, torch.bfloat16))
    comms = [tamis.Comm.local(1)[0] for _ in range(2)]
    optimizer = wrap(model, comm=comms)
    state = optimizer.tamis
    for step in range(2):
        optimizer.zero_grad()
        factors = normal(model, step, 0)
        if step == 1:
            factors[1][2] = float("nan")  # of bfloat16
        before = flat(state.groups[0].pieces(state.groups[0].residual()).values())
        model(factors).backward()
        try:
            optimizer.step()
        except tamis.Error as error:
            assert (step, error.lost) == (1, "step")
    group = state.groups[0]
    (wholes, passes), decay = group.vectors(), group.sparse.residual_decay
    m, v = wholes["first"] / (1 - 0.8**passes), wholes["second"] / (1 - 0.95**passes)
    wanted = decay * before + m / (v.sqrt() + 1e-6)
    assert passes == 2 and (wholes["residual"] - wanted).abs().max() < 1e-4
    assert not any(value.grad.any() for value in model.values)


def told(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


def test_optimizers_that_it_does_not_know_are_named():
    model = network()
    rows = list(model.parameters())
    groups = [dict(params=rows[:2]), dict(params=rows[2:], betas=(0.8, 0.9))]
    apart = inner("AdamW", groups)
    assert "param_groups[1] has betas (0.8, 0.9), param_groups[0] has (0.8, 0.95)" in told(
        ValueError, lambda: alone(model, optimizer=apart)
    )
    refused = [
        (ValueError, "amsgrad=True", inner("AdamW", rows, amsgrad=True)),
        (ValueError, "maximize=True", inner("Adam", rows, maximize=True)),
        (ValueError, "nesterov=True", inner("SGD", rows, nesterov=True)),
        (ValueError, "dampening=0.5", inner("SGD", rows, dampening=0.5)),
        (ValueError, "without momentum", torch.optim.SGD(rows, lr=0.1)),
        (TypeError, "not that of RMSprop", torch.optim.RMSprop(rows)),
        (TypeError, "not that of Own", type("Own", (torch.optim.Adam,), {})(rows)),
    ]
    for kind, words, optimizer in refused:
        assert words in told(kind, lambda: alone(model, optimizer=optimizer))
    stepped = inner("AdamW", rows)
    train_alone(model, stepped)
    assert "already made steps" in told(ValueError, lambda: alone(model, optimizer=stepped))


def test_rmsprop_is_told_which_adam_is_nearest():
    model = network()
    rows = list(model.parameters())
    words = told(TypeError, lambda: alone(model, optimizer=torch.optim.RMSprop(rows, alpha=0.95)))
    assert "torch.optim.Adam with betas=(0.0, 0.95)" in words and "bias correction" in words
    for more in (dict(momentum=0.9), dict(centered=True)):
        other = torch.optim.RMSprop(rows, **more)
        assert "betas" not in told(TypeError, lambda: alone(model, optimizer=other))


def test_rmsprop_is_adam_without_first_moment_and_bias_correction():
    found = {}
    for kind, options in (
        ("RMSprop", dict(alpha=0.9, weight_decay=0.1)),
        ("Adam", dict(betas=(0.0, 0.9), weight_decay=0.1)),
    ):
        weight = torch.nn.Parameter(torch.zeros(50))
        optimizer = getattr(torch.optim, kind)([weight], lr=1.0, eps=0.0, **options)
        steps = []
        for step in range(60):
            weight.data.fill_(1.0)
            weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(step))
            optimizer.step()
            steps.append(1.0 - weight.detach().clone())
        found[kind] = torch.stack(steps)
    correction = (1 - 0.9 ** torch.arange(1.0, 61.0)).sqrt()[:, None]
    assert torch.allclose(found["RMSprop"] * correction, found["Adam"], rtol=1e-4, atol=1e-5)


def train_alone(model, optimizer):
    x, y = batch(0, 0)
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def test_what_does_not_go_together_is_told():
    model = network()
    assert 'not "gradient" or "update"' in told(
        ValueError,
        lambda: tamis.torch.DistributedOptimizer(inner("AdamW", model.parameters()), model,
                                                 reduce="step"),
    )
    assert 'belong to reduce="update"' in told(TypeError, lambda: alone(model, update="adam"))
    assert 'belong to reduce="update"' in told(
        TypeError,
        lambda: tamis.torch.DistributedOptimizer(inner("AdamW", model.parameters()), model,
                                                 scale=2.0),
    )
    assert 'belong to reduce="update"' in told(
        TypeError,
        lambda: tamis.torch.DistributedOptimizer(inner("AdamW", model.parameters()), model,
                                                 match=2.0),
    )
    assert "match" in told(tamis.Error, lambda: alone(model, match=1000.0))
    assert "whole gradients are not updates" in told(ValueError, lambda: alone(model, warmup=2))
    assert "scheme dense" in told(tamis.Error, lambda: alone(model, scheme="dense"))


def test_a_schedule_that_changes_momentum_is_told_in_the_step_that_it_concerns():
    model = network()
    optimizer = alone(model, "SGD")
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=10, max_momentum=0.8, base_momentum=0.6
    )
    train_alone(model, optimizer)
    schedule.step()
    optimizer.zero_grad()
    before = flat(model.parameters())
    assert "cycle_momentum=False" in told(RuntimeError, lambda: train_alone(model, optimizer))
    assert torch.equal(before, flat(model.parameters()))


def test_a_state_of_another_rule_is_refused():
    model = network()
    optimizer = alone(model)
    train_alone(model, optimizer)
    saved = optimizer.state_dict()
    third = network()
    usual = alone(third, optimizer=torch.optim.AdamW(third.parameters()))
    for other, words in (
        (alone(network(), "SGD"), "momentum"),
        (usual, "0.999"),
        (alone(network(), scale=3.0), "update is"),
    ):
        with pytest.raises((ValueError, KeyError)) as caught:
            other.load_state_dict(saved)
        assert words in str(caught.value)
        assert not held(other).any()
    gradients = tamis.torch.SparseState(network(), comm=tamis.Comm.local(1)[0])
    words = told(ValueError, lambda: gradients.load_state_dict(saved["tamis"], strict=False))
    assert "cannot serve updates" in words
    less = dict(saved["tamis"])
    del less["second"]
    assert "the second of '0.weight' is missing" in told(
        ValueError, lambda: alone(network()).tamis.load_state_dict(less)
    )


def test_states_of_other_ranks_that_do_not_fit_change_nothing():
    model = network()
    optimizer = alone(model, density_max=0.05)
    train_alone(model, optimizer)
    before = copy.deepcopy(optimizer.tamis.state_dict())
    states = [dict(copy.deepcopy(before), rank=rank, nranks=2, density=0.1) for rank in range(2)]
    assert "density" in told(tamis.Error, lambda: optimizer.tamis.load_state_dict(states))
    after = optimizer.tamis.state_dict()
    assert (after["density"], after["steps"], after["passes"]) == (0.03, 1, {"float32": 1})
    for kind in ("residual", "first", "second", "control"):
        assert all(torch.equal(before[kind][name], after[kind][name]) for name in before[kind])
    for one in states:
        one["density"] = 0.05
    optimizer.tamis.load_state_dict(states)
    half = optimizer.tamis.state_dict()
    assert half["density"] == 0.05 and optimizer.tamis.groups[0].reducer.stats()["steps"] == 1
    assert torch.equal(half["residual"]["0.weight"], before["residual"]["0.weight"])


def test_a_state_that_the_second_dtype_refuses_changes_neither():
    model = Weighted(dtypes=(torch.float32, torch.bfloat16))
    optimizer = wrap(model, comm=[tamis.Comm.local(1)[0] for _ in range(2)])
    state = optimizer.tamis
    for step in range(2):
        before = copy.deepcopy(state.state_dict())
        optimizer.zero_grad()
        model(normal(model, step, 0)).backward()
        optimizer.step()
    now = copy.deepcopy(state.state_dict())
    before["second"]["values.1"] -= 1.0  # of bfloat16
    assert "element 0 of second is -" in told(tamis.Error, lambda: state.load_state_dict(before))
    after = state.state_dict()
    assert after["passes"] == dict(float32=2, bfloat16=2)
    for kind in ("residual", "first", "second", "control"):
        assert all(torch.equal(now[kind][name], after[kind][name]) for name in now[kind])


def saved_states(nranks, op="mean"):
    rows = []
    for rank in range(nranks):
        part = {"w": torch.arange(4.0) + 10 * rank}
        rows.append(dict(rank=rank, nranks=nranks, op=op, residual=part, first=part))
    return rows


@pytest.mark.parametrize("op", ["mean", "sum"])
@pytest.mark.parametrize("old, new", [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_what_is_pending_stays_with_another_number_of_ranks(old, new, op):
    states = saved_states(old, op)
    parts = [_checkpoint._regroup(states, rank, new) for rank in range(new)]
    before = sum(one["residual"]["w"] for one in states)
    after = sum(one["residual"]["w"] for one in parts)
    if op == "mean":
        before, after = before / old, after / new
    assert torch.equal(before, after)
    for one in parts:
        assert torch.equal(one["first"]["w"], torch.arange(4.0) + 5 * (old - 1))
        assert one["control"] is None
    assert _checkpoint._regroup(states, 0, old) is states[0]
    assert "in their order" in told(
        ValueError, lambda: _checkpoint._regroup(states[::-1] + states, 0, new)
    )


def test_attach_says_that_it_needs_the_optimizer():
    class Net(torch.nn.parallel.DistributedDataParallel):
        def __init__(self):
            pass

    words = told(TypeError, lambda: tamis.torch.attach(Net(), reduce="update"))
    assert "need the optimizer" in words and "attach(ddp, optimizer=optimizer)" in words
