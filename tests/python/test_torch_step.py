# SPDX-License-Identifier: MIT
#
# test: slow
"""Steps of each rank's own optimizer that are exchanged: the formulas of _local_stepper.py, resume,
identical bits."""

import copy
import math

import pytest
import torch
import torch.distributed as dist

import ranks
from torch_models import Balance, Weighted, bits, ddp, network, train, whole_numbers
from torch_steps import DENSITY, flat, held, inner, kept, normal, wrap
from saved import own

import tamis
import tamis.torch

MOMENTUM = 0.8

# Linear in the logarithm from 2.5 at 3.3 % to 3 at 1 % (tamis_update).
NORMS_AT_3_PERCENT = 2.5 + 0.5 * math.log(DENSITY / 0.033) / math.log(0.01 / 0.033)


class Plain:
    """One rank's side, slowly: its own optimizer, what is left of its steps, what is applied."""

    def __init__(self, kind, weights, norm_matching):
        self.kind, self.norm_matching, self.t = kind, norm_matching, 0
        self.decay = {"SGD": 1.0, "RMSprop": 0.9}.get(kind, 0.0)
        self.w = weights.clone()
        self.m, self.v, self.acc = (torch.zeros_like(weights) for _ in range(3))
        self.own = self.applied = self.weight = 0.0

    def add(self, g, lr, weight_decay):
        """The rank's own step, in units of its rate, comes to what is left."""
        self.t += 1
        self.held = self.w * (1 - lr * weight_decay) if self.kind == "AdamW" else self.w
        g = g + weight_decay * self.w if self.kind != "AdamW" else g
        if self.kind == "SGD":
            u = self.m = MOMENTUM * self.m + g
        elif self.kind == "RMSprop":
            self.v = 0.99 * self.v + 0.01 * g * g
            u = g / (self.v.sqrt() + 1e-6)
        else:
            self.m = 0.8 * self.m + 0.2 * g
            self.v = 0.95 * self.v + 0.05 * g * g
            root = (self.v / (1 - 0.95**self.t)).sqrt() + 1e-6
            u = self.m / (1 - 0.8**self.t) / root
        self.acc = self.decay * self.acc + u

    def factor(self, mean, nranks):
        """By how much the mean of what was chosen is too short."""
        if self.kind == "SGD":
            interval = 1 / DENSITY
            whole = (1 - MOMENTUM**interval) / (1 - MOMENTUM)
            return 1 / (1 - MOMENTUM * whole / interval)
        square = self.acc.double().square().sum()
        dist.all_reduce(square)
        self.own = 0.95 * self.own + 0.05 * square.item() / nranks
        last = mean.double().square().sum().item()
        self.applied = 0.95 * self.applied + 0.05 * last
        self.weight = 0.95 * self.weight + 0.05
        mine, theirs = self.own / self.weight, max(self.applied / self.weight, last)
        return self.norm_matching * (mine / theirs) ** 0.5

    def apply(self, chosen, mean, scale, lr):
        self.acc[chosen] = 0
        if self.kind == "SGD":  # a direction that was applied does not push on
            self.m[chosen] = 0
        self.w = self.held - lr * scale * mean


# ------------------------------------------------------------------------------ run by the ranks


def far_from(found, want):
    return ((found - want).abs() / (1 + want.abs())).max().item()


def chosen_of(optimizer, like):
    indices, _ = optimizer.tamis.groups[0].reducer.result()
    chosen = torch.zeros_like(like, dtype=torch.bool)
    chosen[torch.frombuffer(bytearray(indices), dtype=torch.int32).long()] = True
    assert chosen.sum() == int(DENSITY * chosen.numel())
    return chosen


def wanted_of(plain):
    """What the optimizer and the state must hold."""
    rows = {"SGD": ["momentum_buffer"], "RMSprop": ["square_avg"]}
    names = rows.get(plain.kind, ["exp_avg", "exp_avg_sq"])
    return {name: plain.v if "sq" in name else plain.m for name in names}


def against_plain(kind, norm_matching):
    """Rates and weight decay change as a scheduler would change them."""
    rank, nranks = dist.get_rank(), dist.get_world_size()
    model = Weighted()
    for value in model.values:
        value.data.normal_(generator=torch.Generator().manual_seed(value.numel()))
    optimizer = wrap(model, kind, value_codec="float32")
    plain = Plain(kind, flat(model.values), norm_matching)
    far = dict(w=0.0, residual=0.0)
    for step in range(5):
        lr, weight_decay = 0.01 * (step + 1), 0.1 / (step + 1)
        optimizer.param_groups[0].update(lr=lr, weight_decay=weight_decay)
        optimizer.zero_grad()
        factors = normal(model, step, rank)
        plain.add(flat(factors), lr, weight_decay)
        model(factors).backward()
        optimizer.step()
        chosen = chosen_of(optimizer, plain.acc)
        mean = torch.where(chosen, plain.acc, torch.zeros(()))
        dist.all_reduce(mean)
        mean /= nranks
        plain.apply(chosen, mean, plain.factor(mean, nranks), lr)
        far["w"] = max(far["w"], far_from(flat(model.values), plain.w))
        far["residual"] = max(far["residual"], far_from(held(optimizer), plain.acc))
        for name, want in wanted_of(plain).items():
            far[name] = max(far.get(name, 0.0), far_from(kept(optimizer, name), want))
    optimizer.close()
    return far, bits(model)


def case_adamw(**_):
    return against_plain("AdamW", NORMS_AT_3_PERCENT)


def case_adam(**_):
    return against_plain("Adam", NORMS_AT_3_PERCENT)


def case_rmsprop(**_):
    return against_plain("RMSprop", 1.0)


def case_sgd(**_):
    return against_plain("SGD", None)


def run_in_two(kind, resume):
    """Saved and taken back after four steps, with a schedule, by other objects."""

    def made():
        model = network()
        optimizer = wrap(model, kind)
        return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)

    model, optimizer, schedule = parts = made()
    for step in range(8):
        if resume and step == 4:
            saved = copy.deepcopy([part.state_dict() for part in parts])
            optimizer.close()
            model, optimizer, schedule = parts = made()
            train(model, optimizer, [0])
            for part, state in zip(parts, saved):
                part.load_state_dict(state)
        train(model, optimizer, [step])
        schedule.step()
    optimizer.close()
    return bits(model)


def case_resume(**_):
    kinds = ("AdamW", "SGD", "RMSprop")
    return [[run_in_two(kind, resume) for resume in (False, True)] for kind in kinds]


def resumed_of_state(kind, own):
    """A script with DDP that keeps SparseState.state_dict(), and of the optimizer that of rank 0,
    as Trainers do. `own`: the state then takes back what is each rank's own."""
    net = ddp(network())
    optimizer = inner(kind, net.parameters())
    state = tamis.torch.attach(net, DENSITY, optimizer=optimizer)
    train(net, optimizer, range(4))
    saved = copy.deepcopy((net.module.state_dict(), state.state_dict()))
    rows = [copy.deepcopy(optimizer.state_dict())]
    dist.broadcast_object_list(rows)
    train(net, optimizer, range(4, 6))
    ended = bits(net)
    state.close()
    net = ddp(network())
    optimizer = inner(kind, net.parameters())
    state = tamis.torch.attach(net, DENSITY, optimizer=optimizer)
    net.module.load_state_dict(saved[0])
    state.load_state_dict(saved[1])
    if not own:
        optimizer.load_state_dict(rows[0])
    train(net, optimizer, range(4, 6))
    state.close()
    return ended, bits(net)


def case_resume_state(**_):
    return [resumed_of_state("AdamW", own) for own in (True, False)]


def case_hook(**_):
    """DDP does what the wrapper does."""
    found = []
    for kind in ("AdamW", "SGD"):
        model, net = network(), ddp(network())
        optimizer = wrap(model, kind, bucket_length=3000)
        train(model, optimizer, range(5))
        optimizer.close()
        own = inner(kind, net.parameters())
        state = tamis.torch.attach(net, DENSITY, optimizer=own, bucket_length=3000)
        train(net, own, range(5))
        found.append((bits(model), bits(net), state.steps))
        state.close()
    return found


def case_nodes(**_):
    """The exchange of nodes, whose residuals are shards: what a state holds, and takes back."""
    model = Weighted()
    options = dict(density=DENSITY, ranks_per_node=2, reduce="gradient")
    rows = []
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        rows.append(tamis.torch.DistributedOptimizer(optimizer, model, **options))
        rows[-1]._syncing = False
    first, second = rows
    first._syncing = True
    balance = Balance(model)
    for step in range(4):
        first.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        balance.give(factors)
        model(factors).backward()
        first.step()
        balance.take()
    balance = balance.balance(first.tamis)
    saved = first.state_dict()
    second.load_state_dict(saved)
    same = torch.equal(held(first), held(second))
    everywhere = {name: part + 1 for name, part in own(saved["tamis"])["residual"].items()}
    strange = {key: dict(row, residual=everywhere) for key, row in saved["tamis"].items()}
    try:
        second.tamis.load_state_dict(strange, strict=False)
    except ValueError as error:
        words = str(error)
    same = same and torch.equal(held(first), held(second))
    first.close()
    second.close()
    return balance, same, words


# Nothing of AdamW's steps stays in a residual: what it keeps is in its moments.
KEPT = {"AdamW": ["exp_avg", "exp_avg_sq"], "SGD": ["momentum_buffer"]}


def pending(optimizer, kind):
    """Residual, and what the optimizer keeps: a row for each."""
    return torch.stack([held(optimizer), *(kept(optimizer, key) for key in KEPT[kind])])


def case_save(folder):
    found = []
    for kind in KEPT:
        model = network()
        optimizer = wrap(model, kind, density_max=0.1)
        train(model, optimizer, range(3))
        optimizer.tamis.set_density(0.05)
        train(model, optimizer, range(3, 6))
        saved = dict(model=model.state_dict(), optimizer=optimizer.state_dict())
        torch.save(saved, f"{folder}/{kind}{dist.get_rank()}.pt")
        sums = pending(optimizer, kind)
        optimizer.close()
        dist.all_reduce(sums)
        found.append((sums / dist.get_world_size()).numpy())
    return found


def case_fewer(folder):
    """Two ranks go on from what three have saved."""
    found = []
    for kind in KEPT:
        saved = [torch.load(f"{folder}/{kind}{rank}.pt") for rank in range(3)]
        model = network()
        model.load_state_dict(saved[0]["model"])
        optimizer = wrap(model, kind, density_max=0.1)
        optimizer.load_state_dict([one["optimizer"] for one in saved])
        rows = pending(optimizer, kind)
        mean = rows[:1].clone()
        dist.all_reduce(mean)
        rows[:1] = mean / dist.get_world_size()  # what is pending in the result; the rest is equal
        state = own(optimizer.tamis.state_dict())
        train(model, optimizer, range(6, 9))
        optimizer.close()
        found.append((rows.numpy(), state["made"], state["density"], bits(model)))
    return found


# ------------------------------------------------------------------------------- several ranks

SAME = ["case_adamw", "case_adam", "case_rmsprop", "case_sgd", "case_hook"]


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("three"))
    return dict(ranks.run(__file__, ["case_save", *SAME], nranks=3, folder=folder), folder=folder)


@pytest.fixture(scope="module")
def two(three):
    ranks.values(three, "case_save")
    more = ["case_fewer", "case_resume", "case_resume_state", "case_nodes"]
    return ranks.run(__file__, SAME + more, folder=three["folder"])


@pytest.fixture(params=[2, 3])
def several(request):
    return request.getfixturevalue("two" if request.param == 2 else "three")


@pytest.mark.parametrize("case", ["case_adamw", "case_adam", "case_rmsprop", "case_sgd"])
def test_ranks_do_what_the_formulas_say_and_stay_identical(several, case):
    rows = ranks.values(several, case)
    assert len({found for _, found in rows}) == 1
    for far, _ in rows:
        assert len(far) > 2 and max(far.values()) < 1e-4, far


def test_ddp_does_what_the_wrapper_does(several):
    rows = ranks.values(several, "case_hook")
    assert all(row == rows[0] for row in rows), rows
    assert all(one == other and steps == 5 for one, other, steps in rows[0]), rows


def test_a_run_that_was_stopped_ends_with_the_same_bits(two):
    rows = ranks.values(two, "case_resume")
    assert rows[0] == rows[1]
    ends = {whole for whole, _ in rows[0]}
    assert len(ends) == 3 and all(whole == resumed for whole, resumed in rows[0]), rows


def test_a_state_gives_each_rank_the_moments_of_its_own(two):
    rows = ranks.values(two, "case_resume_state")
    assert rows[0] == rows[1]
    (ended, own), (again, of_rank_0) = rows[0]
    assert own == ended == again != of_rank_0


def test_with_nodes_nothing_is_lost_and_a_shard_goes_back_to_its_rank(two):
    for (difference, given, applied, kept_), same, words in ranks.values(two, "case_nodes"):
        assert difference == 0 and min(given, applied, kept_) > 0
        assert same and "another shard" in words


def test_fewer_ranks_keep_what_is_pending_and_get_the_mean_of_the_moments(two, three):
    before = ranks.values(three, "case_save")[0]
    rows = ranks.values(two, "case_fewer")
    for row in rows:
        for want, (found, made, density, ended), other in zip(before, row, rows[0]):
            assert abs(found - want).max() < 1e-5
            assert abs(want[1:]).max(axis=1).min() > 0  # there was something to keep
            assert (made, density, ended) == ([6], 0.05, other[3])
    assert abs(before[1][0]).max() > 0  # of SGD also a residual
