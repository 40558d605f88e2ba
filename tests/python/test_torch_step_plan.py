# SPDX-License-Identifier: MIT
"""Which optimizers' steps are exchanged and how, what is refused, and what a state of them saves."""

import copy
import warnings

import pytest
import torch

from torch_models import network
from torch_steps import DENSITY, alone, backward, inner, train_alone
from saved import own

import tamis
import tamis.torch
from tamis.torch import _checkpoint, _kinds, _plan


def told(kind, call):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# ------------------------------------------------------------------------------- what is refused


class Lookahead(torch.optim.SGD):
    pass


class ZeroRedundancyOptimizer(torch.optim.SGD):
    pass


class Own(torch.optim.Adam):
    pass


class Faster(torch.optim.SGD):
    pass


Unknown = type("Unknown", (torch.optim.Optimizer,), {})


def test_optimizers_whose_steps_cannot_be_exchanged_are_named():
    model = network()
    rows = list(model.parameters())
    refused = [
        (torch.optim.LBFGS(rows), "LBFGS .* several times a step"),
        (Lookahead(rows, lr=0.1), "Lookahead .* slow weights"),
        (ZeroRedundancyOptimizer(rows, lr=0.1), "divides its state among the ranks"),
    ]
    for optimizer, words in refused:
        for reduce in ("step", None):
            with pytest.raises(TypeError, match=words):
                tamis.torch.SparseState(model, optimizer=optimizer, reduce=reduce)
        _plan.kinds_of([optimizer], "gradient", 0.01, None, None)  # goes


def test_kinds_go_by_the_names_of_classes_and_their_bases():
    rows = list(network().parameters())
    wanted = {
        "AdamW": (0.0, None, True), "Adam": (0.0, None, False), "NAdam": (0.9, 1.0, False),
        "RMSprop": (0.9, 1.0, False), "SGD": (1.0, 0.0, False), "Adamax": (0.0, None, False),
    }  # fmt: skip
    for name, (decay, norm_matching, decouples) in wanted.items():
        kind = _kinds.kind_of(getattr(torch.optim, name)(rows, lr=0.1))
        found = (kind.mode, kind.residual_decay, kind.norm_matching)
        assert found == ("step", decay, norm_matching), name
        assert kind.decoupled({}) == decouples and not kind.doubt, name
        assert kind.decoupled(dict(decoupled_weight_decay=True))
    assert _kinds.kind_of(Own(rows)) == _kinds.kind_of(torch.optim.Adam(rows))
    assert _kinds.kind_of(Faster(rows, 0.1)) == _kinds.kind_of(torch.optim.SGD(rows, 0.1))
    assert "was not measured" in _kinds.kind_of(Unknown(rows, {})).doubt


def test_an_unknown_optimizer_is_warned_of_unless_steps_were_asked_for():
    unknown = Unknown(list(network().parameters()), {})
    with pytest.warns(RuntimeWarning, match="Unknown: what suits it was not measured"):
        (kind,) = _plan.kinds_of([unknown], None, 0.01, None, None)
    assert kind.mode == "step"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for reduce, density, scheme, mode in (
            ("step", 0.01, None, "step"), ("gradient", 0.01, None, "gradient"),
            (None, 1.0, None, "gradient"), (None, 0.01, "dense", "gradient"),
            ("gradient", 0.01, "quantized", "gradient"),
        ):  # fmt: skip
            assert _plan.kinds_of([unknown], reduce, density, scheme, None)[0].mode == mode


def test_where_all_travels_in_few_bits_what_rounding_takes_is_kept():
    rows = list(network().parameters())
    (kind,) = _plan.kinds_of([torch.optim.AdamW(rows)], None, 0.01, "quantized", None)
    assert (kind.mode, kind.residual_decay, kind.norm_matching) == ("step", 1.0, 1.0)
    assert kind.decouples is True
    (kind,) = _plan.kinds_of([torch.optim.SGD(rows, 0.1)], None, 0.01, "quantized", None)
    assert kind.mode == "gradient"
    found = []
    for options in (dict(scheme="quantized"), dict(density=1.0)):
        model = network()
        optimizer = alone(model, **options)
        for step in range(6):
            train_alone(model, optimizer, step)
        found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        kept = optimizer.tamis.residual_norm()
        assert kept > 0 if len(found) == 1 else kept == 0
    begun = torch.cat([p.detach().reshape(-1) for p in network().parameters()])
    far, moved = (found[0] - found[1]).abs().mean(), (found[1] - begun).abs().mean()
    assert 0 < far < 0.3 * moved


@pytest.mark.parametrize(
    "name, nothing, some, few",
    [("SGD", 0.3, 0.192, 0.034), ("AdamW", 0.3, 0.192, 0.034), ("RMSprop", 0.08, 0.092, 0.0194)],
)
def test_bytes_come_in_place_of_a_density(name, nothing, some, few):
    for options, want in (
        (dict(), nothing),
        (dict(density=0.1), 0.1),
        (dict(byte_share=0.025), some),
        (dict(byte_share=0.006), few),
    ):
        model = torch.nn.Linear(100, 100)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        comm = tamis.Comm.local(1)[0]
        made = tamis.torch.DistributedOptimizer(optimizer, model, comm=comm, **options)
        model(torch.randn(4, 100)).sum().backward()
        made.step()
        assert made.tamis.density == pytest.approx(want, rel=0.03)
        assert made.tamis.stats()["step"]["selected"] == int(made.tamis.density * 10100)
        made.close()
    both = dict(density=0.1, byte_share=0.02)
    assert "give one of them" in told(
        tamis.Error, lambda: tamis.torch.SparseState(model, comm=tamis.Comm.local(1)[0], **both)
    )


def test_what_does_not_go_together_is_told():
    model = network()
    own = inner("AdamW", model.parameters())

    def make(**options):
        comm = tamis.Comm.local(1)[0]
        return lambda: tamis.torch.DistributedOptimizer(own, model, comm=comm, **options)

    assert 'not "gradient" or "step"' in told(ValueError, make(reduce="update"))
    assert "give the optimizer itself" in told(TypeError, make(update="adam"))
    unfit = make(reduce="gradient", norm_matching=2.0)
    assert "norm_matching is of steps" in told(ValueError, unfit)
    assert "norm_matching is of steps" in told(ValueError, make(density=1.0, norm_matching=2.0))
    assert "norm_matching" in told(tamis.Error, make(norm_matching=1000.0))
    assert "whole gradients" in told(ValueError, make(warmup=2))
    assert "scheme dense" in told(tamis.Error, make(reduce="step", scheme="dense"))
    rows = list(model.parameters())
    two = [torch.optim.AdamW(rows[:2]), torch.optim.SGD(rows[2:], lr=0.1)]
    comms = [tamis.Comm.local(1)[0] for _ in range(2)]
    state = lambda **options: lambda: tamis.torch.SparseState(model, comm=comms, **options)
    assert "2 parts of it" in told(ValueError, state(optimizer=two, clip_norm=1.0))
    assert "was given twice" in told(ValueError, state(optimizer=[two[0], two[0]]))
    again = torch.optim.SGD(rows[1:], lr=0.1)
    assert "in two of the optimizers" in told(ValueError, state(optimizer=[two[0], again]))
    assert "needs the optimizer" in told(TypeError, state(reduce="step"))
    wrapped = alone(model, optimizer=own)
    assert "exchanges by itself" in told(TypeError, state(optimizer=wrapped))
    assert "not a torch.optim.Optimizer" in told(TypeError, state(optimizer=3))
    other = inner("AdamW", model.parameters())
    other.param_groups[0]["lr"] = None
    assert "has the rate None" in told(TypeError, state(optimizer=other))


def test_a_parameter_that_comes_from_another_optimizer_is_named():
    model = network()
    rows = list(model.parameters())
    two = [torch.optim.AdamW(rows[:2]), torch.optim.SGD(rows[2:], lr=0.1)]
    comms = [tamis.Comm.local(1)[0] for _ in range(2)]
    state = tamis.torch.SparseState(model, optimizer=two, comm=comms)
    two[0].add_param_group({"params": [rows[3]]})
    model(torch.ones(2, 20)).sum().backward()
    assert f"{list(dict(model.named_parameters()))[3]!r} came to AdamW" in told(ValueError, two[0].step)
    state._unused.detach()
    state.close()


def test_several_optimizers_step_by_themselves_and_a_rest_gets_means():
    """Parameters of AdamW, of SGD, and of an optimizer that is not given."""
    model = network()
    adamw = torch.optim.AdamW(model[0].parameters(), 0.01, weight_decay=0.0)
    sgd = torch.optim.SGD(model[2].parameters(), 0.1)
    comms = [tamis.Comm.local(1)[0] for _ in range(3)]
    state = tamis.torch.SparseState(model, 0.1, optimizer=[adamw, sgd], comm=comms)
    names = [exchange.name for exchange in state.exchanges]
    assert names == ["steps of AdamW", "steps of SGD", "gradients"]
    assert [group.scheme for group in state.groups] == ["tamis-update", "tamis", "tamis"]
    assert state.hooked is state.exchanges[2] and len(state.hooked.groups[0].parameters) == 2
    before = [p.detach().clone() for p in model.parameters()]
    backward(model, adamw)
    adamw.step()
    assert [e.steps for e in state.exchanges] == [1, 0, 0]
    sgd.step()
    assert [e.steps for e in state.exchanges] == [1, 1, 0]
    changed = [(p != b).float().mean().item() for p, b in zip(model.parameters(), before)]
    assert 0 < changed[0] < 0.9 and 0 < changed[2] < 0.2 and changed[4:] == [0.0, 0.0]
    state.close()


# -------------------------------------------------------------------------------- what is saved


def same_states(one, other):
    one, other = own(one), own(other)
    assert (one["density"], one["made"]) == (other["density"], other["made"])
    assert all(map(torch.equal, one["control"], other["control"]))
    assert all(torch.equal(one["residual"][n], other["residual"][n]) for n in one["residual"])
    assert str(one["optimizers"]) == str(other["optimizers"])


def test_a_state_of_another_optimizer_is_refused_and_changes_nothing():
    model = network()
    optimizer = alone(model)
    train_alone(model, optimizer)
    saved = optimizer.tamis.state_dict()
    for other, words in (
        (alone(network(), "SGD"), "scheme is"),
        (alone(network(), "Adam"), "exchanges is"),
    ):
        before = copy.deepcopy(other.tamis.state_dict())
        assert words in told(ValueError, lambda: other.tamis.load_state_dict(saved))
        same_states(before, other.tamis.state_dict())
    gradients = tamis.torch.SparseState(network(), comm=tamis.Comm.local(1)[0])
    words = told(ValueError, lambda: gradients.load_state_dict(saved, strict=False))
    assert "cannot serve steps" in words
    assert alone(network(), "SGD").tamis.load_state_dict(saved, strict=False)  # steps, too
    third = network()
    apart = inner("AdamW", [dict(params=[p]) for p in third.parameters()])
    other = alone(third, optimizer=apart)
    before = copy.deepcopy(other.tamis.state_dict())
    words = told(ValueError, lambda: other.tamis.load_state_dict(saved))
    assert "parameter group" in words
    same_states(before, other.tamis.state_dict())


def test_states_of_other_ranks_that_do_not_fit_change_nothing():
    model = network()
    optimizer = alone(model, density_max=0.05)
    train_alone(model, optimizer)
    before = copy.deepcopy(optimizer.tamis.state_dict())
    rows = [dict(copy.deepcopy(own(before)), rank=rank, nranks=2, density=0.1) for rank in range(2)]
    states = [{f"rank{rank}": row} for rank, row in enumerate(rows)]
    assert "density" in told(tamis.Error, lambda: optimizer.tamis.load_state_dict(states))
    after = optimizer.tamis.state_dict()
    assert own(after)["density"] == DENSITY and own(after)["made"] == [1]
    same_states(before, after)
    for one in rows:
        one["density"] = 0.05
    optimizer.tamis.load_state_dict(states)
    half = own(optimizer.tamis.state_dict())
    assert half["density"] == 0.05 and optimizer.tamis.groups[0].reducer.stats()["steps"] == 1
    assert torch.equal(half["residual"]["0.weight"], own(before)["residual"]["0.weight"])


def test_what_is_saved_are_copies():
    model = network()
    optimizer = alone(model)
    train_alone(model, optimizer)
    saved = optimizer.tamis.state_dict()
    before = str(own(saved)["optimizers"])
    train_alone(model, optimizer, 1)
    assert str(own(saved)["optimizers"]) == before
    assert before != str(own(optimizer.tamis.state_dict())["optimizers"])


def moments_of(rank):
    rows = {0: dict(step=torch.tensor(float(3)), exp_avg=torch.arange(4.0) + 10 * rank)}
    return dict(state=rows, param_groups=[dict(lr=0.1, params=[0])])


def saved_states(nranks, op="mean"):
    rows = []
    for rank in range(nranks):
        part = {"w": torch.arange(4.0) + 10 * rank}
        moments = [moments_of(rank)]
        rows.append(dict(rank=rank, nranks=nranks, op=op, residual=part, optimizers=moments))
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
        (mean,) = one["optimizers"]
        assert torch.equal(mean["state"][0]["exp_avg"], torch.arange(4.0) + 5 * (old - 1))
        assert mean["state"][0]["step"] == 3 and mean["param_groups"] == [dict(lr=0.1, params=[0])]
        assert one["control"] is None
    assert torch.equal(states[0]["optimizers"][0]["state"][0]["exp_avg"], torch.arange(4.0))
    by_rank = dict(enumerate(states))
    assert _checkpoint._chosen(by_rank, 0, old) is states[0]
    del by_rank[old - 1]
    if by_rank:
        words = told(ValueError, lambda: _checkpoint._chosen(by_rank, new - 1, new))
        assert f"give the states of all {old}" in words
