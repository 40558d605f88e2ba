# SPDX-License-Identifier: MIT
"""Update mode from torch: the formulas of docs/fidelity.md, whose moments they are, and resume."""

import copy
import warnings

import pytest
import torch
import torch.distributed as dist

import ranks
from torch_models import Ledger, Weighted, batch, bits, ddp, network, train, whole_numbers

import tamis
import tamis.torch
from tamis.torch import _checkpoint

DENSITY = 0.03
KINDS = ["AdamW", "Adam", "SGD"]


def inner(kind, parameters, lr=0.01, weight_decay=0.1, **more):
    if kind == "SGD":
        return torch.optim.SGD(parameters, lr=lr, weight_decay=weight_decay, momentum=0.8, **more)
    more = dict(dict(betas=(0.8, 0.95), eps=1e-6), **more)
    return getattr(torch.optim, kind)(parameters, lr=lr, weight_decay=weight_decay, **more)


def wrap(model, kind="AdamW", optimizer=None, **options):
    options.setdefault("density", DENSITY)
    optimizer = optimizer or inner(kind, model.parameters())
    return tamis.torch.DistributedOptimizer(optimizer, model, reduce="update", **options)


def alone(model, kind="AdamW", **options):
    return wrap(model, kind, comm=tamis.Comm.local(1)[0], **options)


def normal(model, step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return [torch.randn(value.shape, generator=generator) for value in model.values]


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def held(optimizer, kind="residual"):
    return flat(optimizer.tamis.state_dict()[kind].values())


class Plain:
    """One rank's side of update mode, slowly."""

    def __init__(self, kind, weights, scale, decay):
        self.adam, self.l2 = kind != "SGD", kind != "AdamW"
        self.scale, self.decay, self.t = scale, decay, 0
        self.w = weights.clone()
        self.m, self.v, self.acc = (torch.zeros_like(weights) for _ in range(3))

    def add(self, g, weight_decay):
        self.t += 1
        g = g + weight_decay * self.w if self.l2 else g
        if self.adam:
            self.m = 0.8 * self.m + 0.2 * g
            self.v = 0.95 * self.v + 0.05 * g * g
            root = (self.v / (1 - 0.95**self.t)).sqrt() + 1e-6
            u = self.m / (1 - 0.8**self.t) / root
        else:
            u = self.m = 0.8 * self.m + g
        self.acc = self.decay * self.acc + u

    def apply(self, chosen, mean, lr, weight_decay):
        self.acc[chosen] = 0
        if not self.adam:
            self.m[chosen] = 0
        if not self.l2:
            self.w = self.w - lr * weight_decay * self.w
        self.w = self.w - lr * self.scale * mean


# ------------------------------------------------------------------------------ run by the ranks


def against_plain(kind):
    """Rates and weight decay change as a scheduler would change them."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    model = Weighted()
    for value in model.values:
        value.data.normal_(generator=torch.Generator().manual_seed(value.numel()))
    optimizer = wrap(model, kind)
    scale, decay = tamis.update_advise(DENSITY) if kind != "SGD" else (1.0, 1.0)
    plain = Plain(kind, flat(model.values), scale, decay)
    far = {}
    for step in range(5):
        lr, weight_decay = 0.01 * (step + 1), 0.1 / (step + 1)
        optimizer.param_groups[0].update(lr=lr, weight_decay=weight_decay)
        optimizer.zero_grad()
        factors = normal(model, step, rank)
        plain.add(flat(factors), weight_decay)
        model(factors).backward()
        optimizer.synchronize()
        indices, _ = optimizer.tamis.groups[0].reducer.result()
        chosen = torch.zeros_like(plain.acc, dtype=torch.bool)
        chosen[torch.frombuffer(bytearray(indices), dtype=torch.int32).long()] = True
        sums = torch.where(chosen, plain.acc, torch.zeros(()))
        dist.all_reduce(sums)
        plain.apply(chosen, sums / nranks, lr, weight_decay)
        optimizer.step()
        assert chosen.sum() == int(DENSITY * chosen.numel())
        wanted = dict(w=plain.w, residual=plain.acc, first=plain.m)
        wanted.update(dict(second=plain.v) if plain.adam else {})
        for name, want in wanted.items():
            found = flat(model.values) if name == "w" else held(optimizer, name)
            difference = (found - want).abs() / (1 + want.abs())
            far[name] = max(far.get(name, 0.0), difference.max().item())
    optimizer.close()
    return far, bits(model)


def case_adamw(**_):
    return against_plain("AdamW")


def case_adam(**_):
    return against_plain("Adam")


def case_sgd(**_):
    return against_plain("SGD")


def case_resume(**_):
    """Saved and taken back after four steps, with a schedule, by other objects."""
    found = []
    for resume, kind in ((False, "AdamW"), (True, "AdamW"), (False, "SGD"), (True, "SGD")):
        model = network()
        optimizer = wrap(model, kind)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
        for step in range(8):
            if resume and step == 4:
                parts = (model, optimizer, schedule)
                saved = copy.deepcopy([part.state_dict() for part in parts])
                optimizer.close()
                model = network()
                optimizer = wrap(model, kind)
                schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
                train(model, optimizer, [0])
                for part, state in zip((model, optimizer, schedule), saved):
                    part.load_state_dict(state)
            train(model, optimizer, [step])
            schedule.step()
        found.append(bits(model))
        optimizer.close()
    return found


def hook_and_wrapper(weight_decay, steps):
    """What an optimizer that is wrapped does, and DDP with the rule and plain SGD."""
    model = network()
    own = inner("AdamW", model.parameters(), weight_decay=weight_decay)
    optimizer = wrap(model, optimizer=own, bucket_length=3000)
    train(model, optimizer, range(steps))
    optimizer.close()
    net = ddp(network())
    rule = dict(rule="adam", beta1=0.8, beta2=0.95, epsilon=1e-6)
    state = tamis.torch.attach(net, density=DENSITY, update=rule, bucket_length=3000)
    sgd = torch.optim.SGD(net.parameters(), lr=0.01, weight_decay=weight_decay)
    train(net, sgd, range(steps))
    state.close()
    difference = flat(model.parameters()) - flat(net.parameters())
    return difference.abs().max().item(), bits(net)


def case_hook(**_):
    return hook_and_wrapper(0.0, 4)


def case_hook_weight_decay(**_):
    """One step: after that roundings differ, and with them what is chosen."""
    return hook_and_wrapper(0.1, 1)


def case_nodes(**_):
    """The exchange of nodes, whose residuals are slices: what a state holds, and takes back."""
    model = Weighted()
    options = dict(density=DENSITY, ranks_per_node=2)
    rows = []
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rows.append(tamis.torch.DistributedOptimizer(optimizer, model, **options))
        rows[-1]._syncing = False
    first, second = rows
    first._syncing = True
    ledger = Ledger(model)
    for step in range(4):
        first.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        ledger.give(factors)
        model(factors).backward()
        first.step()
        ledger.take()
    balance = ledger.balance(first.tamis)
    saved = first.state_dict()
    second.load_state_dict(saved)
    same = torch.equal(held(first), held(second))
    everywhere = {name: part + 1 for name, part in saved["tamis"]["residual"].items()}
    strange = dict(saved["tamis"], residual=everywhere)
    try:
        second.tamis.load_state_dict(strange, strict=False)
    except ValueError as error:
        words = str(error)
    same = same and torch.equal(held(first), held(second))
    first.close()
    second.close()
    return balance, same, words


def case_save(folder):
    model = network()
    optimizer = wrap(model, density_max=0.1)
    train(model, optimizer, range(3))
    optimizer.tamis.set_density(0.05)
    train(model, optimizer, range(3, 6))
    saved = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
    torch.save(saved, f"{folder}/{dist.get_rank()}.pt")
    sums = torch.stack([held(optimizer, kind) for kind in ("residual", "first", "second")])
    optimizer.close()
    dist.all_reduce(sums)
    return (sums / dist.get_world_size()).numpy()


def case_fewer(folder):
    """Two ranks go on from what three have saved."""
    saved = [torch.load(f"{folder}/{rank}.pt") for rank in range(3)]
    model = network()
    model.load_state_dict(saved[0]["model"])
    optimizer = wrap(model, density_max=0.1)
    optimizer.load_state_dict([one["optimizer"] for one in saved])
    mean = held(optimizer)
    dist.all_reduce(mean)
    mean = torch.stack(
        [mean / dist.get_world_size(), held(optimizer, "first"), held(optimizer, "second")]
    )
    state = optimizer.tamis.state_dict()
    train(model, optimizer, range(6, 9))
    optimizer.close()
    return mean.numpy(), state["passes"], state["steps"], state["density"], bits(model)


# ------------------------------------------------------------------------------- several ranks

SAME = ["case_adamw", "case_adam", "case_sgd", "case_hook", "case_hook_weight_decay"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("three"))
    return dict(ranks.run(__file__, ["case_save", *SAME], nranks=3, folder=folder), folder=folder)


@pytest.fixture(scope="module")
def two(three):
    ranks.values(three, "case_save")
    more = ["case_fewer", "case_resume", "case_nodes"]
    return ranks.run(__file__, SAME + more, folder=three["folder"])


@pytest.fixture(params=[2, 3])
def several(request):
    return request.getfixturevalue("two" if request.param == 2 else "three")


@pytest.mark.parametrize("case", ["case_adamw", "case_adam", "case_sgd"])
def test_ranks_do_what_the_formulas_say_and_stay_identical(several, case):
    rows = ranks.values(several, case)
    assert len({found for _, found in rows}) == 1
    for far, _ in rows:
        assert set(far) >= {"w", "residual", "first"}
        assert max(far.values()) < 2e-5, far


def test_a_hook_with_an_update_and_plain_sgd_do_the_same(several):
    for case, bound in (("case_hook", 0.0), ("case_hook_weight_decay", 1e-6)):
        rows = ranks.values(several, case)
        assert len({found for _, found in rows}) == 1
        for difference, _ in rows:
            assert difference <= bound


def test_a_run_that_was_stopped_ends_with_the_same_bits(two):
    for whole, resumed, momentum, momentum_resumed in ranks.values(two, "case_resume"):
        assert whole == resumed and momentum == momentum_resumed != whole


def test_with_nodes_nothing_is_lost_and_a_slice_goes_back_to_its_rank(two):
    for (difference, given, applied, kept), same, words in ranks.values(two, "case_nodes"):
        assert difference == 0 and min(given, applied, kept) > 0
        assert same and "another slice" in words


def test_fewer_ranks_keep_what_is_pending_and_get_the_mean_of_the_moments(two, three):
    before = ranks.values(three, "case_save")[0]
    rows = ranks.values(two, "case_fewer")
    for mean, passes, steps, density, found in rows:
        assert abs(mean - before).max() < 1e-5
        assert abs(before).max(axis=1).min() > 0  # there was something to keep
        assert (passes, steps, density) == ({"float32": 6}, 6, 0.05)
        assert found == rows[0][4]


# ------------------------------------------------------------------------------------ one rank


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


@pytest.mark.parametrize("kind", KINDS)
def test_moments_are_of_unscaled_gradients_whatever_the_scale(kind):
    for a, b in zip(scaled_run(kind, 1.0), scaled_run(kind, 1024.0)):
        assert torch.equal(a, b) and a.any() and a.isfinite().all()


def test_the_step_follows_the_density_unless_a_scale_was_given():
    found = []
    for scale in (None, tamis.update_advise(0.1)[0]):
        model = Weighted()
        optimizer = alone(model, density=0.1, scale=scale)
        for step in range(3):
            optimizer.zero_grad()
            model(normal(model, step, 0)).backward()
            optimizer.synchronize()
            found.append(flat(value.grad for value in model.values))
            optimizer.step()
            optimizer.tamis.set_density(0.03)
    assert torch.equal(found[0], found[3])
    for advised, given in ((found[1], found[4]), (found[2], found[5])):
        assert given.any() and torch.equal(advised, 2.0 * given)  # 20 at 3 %, 10 at 10 %


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
    assert "stepped already" in told(ValueError, lambda: alone(model, optimizer=stepped))


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
    assert "whole gradients are no steps" in told(ValueError, lambda: alone(model, warmup=2))
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
    assert "none of updates" in words
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


def saved_states(nranks, average="mean"):
    rows = []
    for rank in range(nranks):
        part = {"w": torch.arange(4.0) + 10 * rank}
        rows.append(dict(rank=rank, nranks=nranks, average=average, residual=part, first=part))
    return rows


@pytest.mark.parametrize("average", ["mean", "sum"])
@pytest.mark.parametrize("old, new", [(4, 2), (2, 4), (1, 4), (4, 1)])
def test_what_is_pending_stays_with_another_number_of_ranks(old, new, average):
    states = saved_states(old, average)
    parts = [_checkpoint._regroup(states, rank, new) for rank in range(new)]
    before = sum(one["residual"]["w"] for one in states)
    after = sum(one["residual"]["w"] for one in parts)
    if average == "mean":
        before, after = before / old, after / new
    assert torch.equal(before, after)
    for one in parts:
        assert torch.equal(one["first"]["w"], torch.arange(4.0) + 5 * (old - 1))
        assert one["control"] is None
    assert _checkpoint._regroup(states, 0, old) is states[0]
    assert "in their order" in told(
        ValueError, lambda: _checkpoint._regroup(states[::-1] + states, 0, new)
    )


def test_attach_says_that_a_hook_sees_no_optimizer():
    class Net(torch.nn.parallel.DistributedDataParallel):
        def __init__(self):
            pass

    words = told(TypeError, lambda: tamis.torch.attach(Net(), reduce="update"))
    assert "does not see the optimizer" in words and 'update="adam"' in words
