# SPDX-License-Identifier: MIT
"""Update mode from torch over ranks: the formulas of docs/fidelity.md, resume, identical bits."""

import copy

import pytest
import torch
import torch.distributed as dist

import ranks
from torch_models import Ledger, Weighted, bits, ddp, network, train, whole_numbers
from torch_updates import DENSITY, flat, held, inner, normal, wrap

import tamis
import tamis.torch


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
    scale, decay = (tamis.update_advise(DENSITY, 0.8)[0], 0.5) if kind != "SGD" else (1.0, 1.0)
    optimizer = wrap(model, kind, residual_decay=decay)
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
