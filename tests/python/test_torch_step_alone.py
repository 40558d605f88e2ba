# SPDX-License-Identifier: MIT
#
# test: slow
"""Exchanged steps of one rank: the optimizer's own where nothing is left out, what a lost step
leaves, loss scaling."""

import math
import warnings

import pytest
import torch

from torch_models import Weighted, batch, network
from torch_steps import alone, backward, flat, held, inner, kept, normal, train_alone

import tamis
import tamis.torch
from tamis.torch import _kinds


def learn(optimizer, model, steps=8, clip=False, schedule=None):
    """A rate that changes at each step, by a scheduler of the inner optimizer."""
    own = getattr(optimizer, "optimizer", optimizer)
    made = schedule or (
        lambda one: torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0 / (step + 1))
    )
    schedule = made(own)
    for step in range(steps):
        backward(model, optimizer, step)
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()


# ---------------------------------------------------------------------- the optimizer itself


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD", "RMSprop", "NAdam", "Adamax"])
def test_alone_and_with_all_entries_it_is_the_optimizer_itself(kind, clip):
    """Schedules, groups with rates and weight decays of their own, clipping."""
    found, moments = [], []
    for exchanged in (False, True):
        model = network()
        groups = [
            dict(params=model[0].parameters(), lr=0.03, weight_decay=0.0),
            dict(params=[*model[2].parameters(), *model[4].parameters()]),
        ]
        own = inner(kind, groups, nesterov=True) if kind == "SGD" else inner(kind, groups)
        settings = [{k: v for k, v in g.items() if k != "params"} for g in own.param_groups]
        optimizer = alone(model, optimizer=own, density=1.0) if exchanged else own
        assert settings == [
            {k: v for k, v in g.items() if k != "params"} for g in own.param_groups
        ]  # betas among them
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a scheduler warns if its optimizer does not step
            learn(optimizer, model, clip=clip)
        found.append(flat(model.parameters()))
        moments.append([v for one in own.state.values() for v in one.values()])
        assert len(own.state) == 6
    assert (found[0] - found[1]).abs().max() < 1e-5
    assert (found[0] - flat(network().parameters())).abs().max() > 1e-3
    assert len(moments[0]) == len(moments[1])


def test_a_schedule_may_change_momentum():
    def cycle(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=10, max_momentum=0.9, base_momentum=0.6
        )

    found = []
    for exchanged in (False, True):
        model = network()
        own = inner("SGD", model.parameters())
        learn(alone(model, optimizer=own, density=1.0) if exchanged else own, model, schedule=cycle)
        found.append(flat(model.parameters()))
    assert (found[0] - found[1]).abs().max() < 1e-5


def three_steps(rates, **options):
    model = Weighted()
    groups = [dict(params=[value], lr=rates[i % 3]) for i, value in enumerate(model.values)]
    own = inner("SGD", groups, weight_decay=0.0)
    optimizer = alone(model, optimizer=own, density=0.1, **options)
    for step in range(3):
        optimizer.zero_grad()
        model(normal(model, step, 0)).backward()
        optimizer.step()
    return model.values


def test_the_residual_is_in_units_of_the_step_whatever_the_rates_of_groups():
    same, apart = three_steps((0.01, 0.01, 0.01)), three_steps((0.01, 0.02, 0.03))
    for number, (one, other) in enumerate(zip(same, apart)):
        assert torch.equal(one != 0, other != 0) and one.any()
        assert torch.allclose(other, (number % 3 + 1) * one, rtol=1e-4)


def test_a_group_whose_rate_is_0_stays():
    for rates in ((0.0, 0.02, 0.03), (0.01, 0.0, 0.0), (0.0, 0.0, 0.0)):
        values = three_steps(rates)
        assert [bool(v.any()) for v in values[:3]] == [rate > 0 for rate in rates]


def test_it_learns_where_adam_on_sparse_means_is_slow():
    losses = {}
    for reduce in ("step", "gradient"):
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
    assert losses["step"] < 0.7 and losses["gradient"] > 0.9


# ------------------------------------------------------------------------------ how large a step is


def moved(model, optimizer, step):
    before = flat(model.values)
    optimizer.zero_grad()
    model(normal(model, step, 0)).backward()
    optimizer.step()
    return flat(model.values) - before


# Linear in the logarithm from 1.25 at 30 % to 2 at 8 % (tamis_update).
NORMS_AT_10_PERCENT = 1.25 + 0.75 * math.log(0.1 / 0.3) / math.log(0.08 / 0.3)


@pytest.mark.parametrize("norm_matching", [None, 1.0, 2.0])
def test_a_step_has_the_norm_that_norm_matching_says(norm_matching):
    model = Weighted()
    own = inner("AdamW", model.parameters(), weight_decay=0.0)
    optimizer = alone(model, optimizer=own, density=0.1, norm_matching=norm_matching)
    found = moved(model, optimizer, 0)
    want = NORMS_AT_10_PERCENT if norm_matching is None else norm_matching
    # Every entry of a first Adam step is 1, so the rank's own whole one has the norm sqrt(n).
    assert found.norm().item() == pytest.approx(0.01 * want * found.numel() ** 0.5, rel=1e-3)
    assert (found != 0).sum() <= 0.1 * found.numel()


def test_factors_follow_the_density_and_the_momentum():
    """Compared with optimizers that are made for what the others come to."""
    for kind in ("SGD", "AdamW"):
        model, other = Weighted(), Weighted()
        options = dict(weight_decay=0.0)
        first = inner(kind, model.parameters(), **options)
        optimizer = alone(model, optimizer=first, density=0.1)
        optimizer.tamis.set_density(0.02)
        second = inner(kind, other.parameters(), **options)
        if kind == "SGD":
            first.param_groups[0]["momentum"] = second.param_groups[0]["momentum"] = 0.9
        made = alone(other, optimizer=second, density=0.02)
        found, want = moved(model, optimizer, 0), moved(other, made, 0)
        assert found.any() and torch.allclose(found, want, rtol=1e-4)


def test_the_scale_of_momentum_makes_up_for_what_is_cleared():
    sgd = _kinds.kind_of(inner("SGD", network().parameters()))
    assert sgd.scale_at(0.4, dict(momentum=0.9)) == 1.0 == sgd.scale_at(0.1, dict(momentum=0.0))
    for density, scale in ((0.3, 5.0), (0.1, 2.4), (0.01, 1.1)):  # as for rule momentum
        assert sgd.scale_at(density, dict(momentum=0.9)) == pytest.approx(scale, abs=0.05)


@pytest.mark.parametrize("density, clears", [(0.1, True), (0.5, False)])
def test_momentum_is_cleared_where_it_was_applied_unless_most_is(density, clears):
    model = Weighted()
    optimizer = alone(model, "SGD", density=density)
    applied = moved(model, optimizer, 0) != 0
    momentum = kept(optimizer, "momentum_buffer")
    assert applied.any() and (momentum[~applied] != 0).all()
    assert bool((momentum[applied] == 0).all()) == clears


# ---------------------------------------------------------------------- steps that are not made


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_a_step_with_nan_leaves_parameters_and_the_next_one_works(kind):
    model = Weighted()
    optimizer = alone(model, kind)
    moved(model, optimizer, 0)
    before = flat(model.values)
    factors = normal(model, 1, 0)
    factors[2][0, 0] = float("nan")
    optimizer.zero_grad()
    model(factors).backward()
    with pytest.raises(tamis.Error) as caught:
        optimizer.step()
    assert caught.value.lost == "step" and torch.equal(before, flat(model.values))
    assert optimizer.tamis.stats()["total"]["lost_steps"] == 1
    # What the bad gradient has made of moments is forgotten, and nothing else is.
    assert [value in optimizer.state for value in model.values] == [i != 2 for i in range(6)]
    found = moved(model, optimizer, 2)
    assert found.any() and found.isfinite().all() and held(optimizer).isfinite().all()
    assert optimizer.tamis.steps == 3


class Breaks(torch.optim.Optimizer):
    """Raises, if it is due, when it has changed parameters."""

    due = False

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])
        if self.due:
            raise KeyError("from within step()")


def test_a_step_that_raises_leaves_parameters():
    model = network()
    own = Breaks(model.parameters(), dict(lr=0.1))
    optimizer = alone(model, optimizer=own)
    train_alone(model, optimizer)
    before = flat(model.parameters())
    own.due = True
    with pytest.raises(KeyError):
        train_alone(model, optimizer, 1)
    assert torch.equal(before, flat(model.parameters())) and optimizer.tamis.error is None
    own.due = False
    train_alone(model, optimizer, 2)
    assert optimizer.tamis.steps == 2 and not torch.equal(before, flat(model.parameters()))


class More(torch.optim.AdamW):
    """Changes parameters after the step of its base class."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.01)


def test_a_step_within_a_step_is_one():
    inner("AdamW", Weighted().parameters())  # from the first one on hooks see the base class, too
    model = Weighted()
    own = More(model.parameters(), 0.01, weight_decay=0.0)
    optimizer = alone(model, optimizer=own, density=0.1)
    for step in range(2):
        found = moved(model, optimizer, step)
        assert 0 < (found != 0).sum() <= 0.1 * found.numel()
        # 0.01 for AdamW's own, and as much of the gradient, which is normal
        assert optimizer.tamis.steps == step + 1 and found.abs().max() > 0.03


def test_frozen_parameters_stay():
    model = network()
    optimizer = alone(model, density=0.5)
    train_alone(model, optimizer)
    model[2].weight.requires_grad_(False)
    before = model[2].weight.detach().clone(), model[0].weight.detach().clone()
    for step in range(1, 4):
        train_alone(model, optimizer, step)
    assert torch.equal(before[0], model[2].weight)
    assert not torch.equal(before[1], model[0].weight)


def test_parameters_may_be_given_other_memory():
    found = []
    for moves in (False, True):
        model = network()
        optimizer = alone(model)
        for step in range(4):
            if moves:
                for parameter in model.parameters():
                    parameter.data = parameter.data.clone()
            train_alone(model, optimizer, step)
        found.append(flat(model.parameters()))
    assert torch.equal(*found)


# ------------------------------------------------------------------------------- loss scaling


class Scaler:
    """Steps an optimizer as a GradScaler does one that supports scaling."""

    def __init__(self, scale):
        self.scale = scale

    def step(self, optimizer):
        assert optimizer._step_supports_amp_scaling
        rows = [p.grad for group in optimizer.param_groups for p in group["params"]]
        found = any(not bool(grad.isfinite().all()) for grad in rows)
        optimizer.grad_scale = torch.tensor(self.scale)
        optimizer.found_inf = torch.tensor(float(found))
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf
        self.scale *= 0.5 if found else 1.0


def scaled_run(kind, scale, inside):
    """Weights after three steps, whose second one has Inf; residual, moments."""
    model = Weighted()
    optimizer = alone(model, kind)
    scaler = Scaler(scale)
    for step in range(3):
        before = flat(model.values)
        optimizer.zero_grad()
        factors = normal(model, step, 0)
        factors[0][3, 4] = float("inf") if step == 1 else 1.0
        (scaler.scale * model(factors)).backward()
        scaler.step(optimizer.optimizer if inside else optimizer)
        assert torch.equal(before, flat(model.values)) == (step == 1)
    assert optimizer.tamis.stats()["total"]["lost_steps"] == 1 and scaler.scale == scale / 2
    keys = ["momentum_buffer"] if kind == "SGD" else ["exp_avg", "exp_avg_sq"]
    return [flat(model.values), held(optimizer), *(kept(optimizer, key) for key in keys)]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("kind", ["AdamW", "Adam", "SGD"])
def test_a_scaler_unscales_and_skips_as_alone(kind, inside):
    for a, b in zip(scaled_run(kind, 1.0, inside), scaled_run(kind, 1024.0, inside)):
        assert torch.equal(a, b) and a.any() and a.isfinite().all()


# ------------------------------------------------------------------------- densities that are open


def pair(**options):
    """AdamW, 30 % where nothing is set, and RMSprop, 8 %."""
    model = network()
    weights, rest = list(model.parameters())[:2], list(model.parameters())[2:]
    both = [inner("AdamW", weights), inner("RMSprop", rest)]
    comms = [tamis.Comm.local(1)[0] for _ in both]
    return tamis.torch.SparseState(model, optimizer=both, comm=comms, **options)


def test_each_optimizer_has_the_density_that_suits_it():
    state = pair()
    assert state.density is None and [group.density for group in state.groups] == [0.3, 0.08]
    with pytest.raises(tamis.Error, match="density_max"):
        state.set_density(0.2)  # more than RMSprop has room for
    assert state.density is None and [group.density for group in state.groups] == [0.3, 0.08]
    assert state.groups[0].sparse.update["norm_matching"] == pytest.approx(1.25, abs=0.01)
    state.set_density(0.05)
    assert state.density == 0.05 and [group.density for group in state.groups] == [0.05, 0.05]
    assert state.groups[0].sparse.update["norm_matching"] > 2.0
    state.load_state_dict(pair().state_dict())
    assert state.density is None and [group.density for group in state.groups] == [0.3, 0.08]
    state.close()


def test_an_update_that_is_given_back_makes_the_same_steps():
    state = pair()
    update = state.groups[0].sparse.update
    assert update["scale"] == 0.0  # a scale would be a bound
    state.close()
