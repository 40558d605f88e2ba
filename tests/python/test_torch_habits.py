# SPDX-License-Identifier: MIT
"""What scripts do besides a plain loop: as in dense training, or refused in a sentence."""

import copy
import io
import logging
import warnings

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import told
from torch_models import batch, ddp, network, train

import tamis
import tamis.torch

# ------------------------------------------------------------------------------ run by the ranks


def sgd(model, lr=0.1, **options):
    net = ddp(model)
    optimizer = torch.optim.SGD(net.parameters(), lr)
    return net, optimizer, tamis.torch.attach(net, 0.1, optimizer=optimizer, **options)


def data(step, size=8):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(size, 8, generator=generator)


def case_gan():
    """D gets gradients from the generator's passes, which are thrown away; its own loss is 0."""
    torch.manual_seed(0)
    makes, to_makes, state = sgd(torch.nn.Linear(8, 8))
    judges, to_judges, other = sgd(torch.nn.Linear(8, 1))
    before = judges.module.weight.detach().clone()
    first = makes.module.weight.detach().clone()
    for step in range(5):
        to_makes.zero_grad()
        judges(makes(data(step))).mean().backward()
        to_makes.step()
        to_judges.zero_grad()
        (judges(data(step)) * 0).sum().backward()
        to_judges.step()
    moved = (judges.module.weight - before).abs().max().item()
    return moved, (makes.module.weight - first).abs().max().item(), other.residual_norm()


def case_left_out():
    """A step with an absurd gradient is left out, and is forgotten."""
    net, optimizer, state = sgd(torch.nn.Linear(8, 4))
    left = 0
    for step in range(10):
        optimizer.zero_grad(set_to_none=True)
        (net(torch.ones(2, 8)) * (1e6 if step == 1 else 1e-3)).sum().backward()
        if torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) > 100:
            left += 1
            continue
        optimizer.step()
    return left, state.steps, tamis.torch.replicas_identical(net.module)


def case_copies():
    """Copies have no hook; a state itself cannot be copied."""
    net, optimizer, state = sgd(network())
    train(net, optimizer, [0])
    kept = io.BytesIO()
    torch.save(net.module, kept)
    twin = copy.deepcopy(net)
    refused = told(lambda: copy.deepcopy(state))
    other = copy.deepcopy(optimizer)
    train(net, optimizer, [1])
    again = tamis.torch.attach(twin, 0.1)
    same = tamis.torch.replicas_identical(net.module)
    again._unused.detach()
    return refused, same, type(other).__name__, state.steps


def case_second_attach():
    net, optimizer, state = sgd(network())
    refused = told(lambda: tamis.torch.attach(net, 0.1, optimizer=optimizer))
    fresh = torch.optim.SGD(net.parameters(), 0.1)
    hook = told(lambda: tamis.torch.attach(net, 0.1, optimizer=fresh))
    inner = "step" in vars(fresh) and fresh._tamis_stepper._open
    train(net, optimizer, range(2))
    return refused, hook, inner, tamis.torch.replicas_identical(net.module)


def case_rates():
    """A scheduler that follows what a rank alone sees: told in the step in which it is so, whatever
    is exchanged, or before it where parameters are compared."""
    said = []
    for make, options in RATES:
        net = ddp(network())
        optimizer = make(net.parameters())
        state = tamis.torch.attach(net, 0.1, optimizer=optimizer, **options)
        train(net, optimizer, range(2))
        optimizer.param_groups[0]["lr"] = 0.1 * (1 + dist.get_rank())
        said.append(told(lambda: train(net, optimizer, range(2, 3))))
        state.close()
    return said


def _sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def _adamw(parameters):
    return torch.optim.AdamW(parameters, 0.1)


RATES = [
    (_sgd, dict(check_every=2)),
    (_sgd, {}),
    (_adamw, dict(check_every=0)),
    (_adamw, dict(scheme="quantized")),
    (_sgd, dict(reduce="gradient", check_every=0)),
]


class Twice(torch.optim.SGD):
    """Evaluates its closure in a place of its own, as SAM does."""

    def step(self, closure=None):
        self.zero_grad()
        with torch.enable_grad():
            loss = closure()
        super().step()
        return loss


def case_closure():
    net = ddp(network())
    optimizer = Twice(net.parameters(), 0.1)
    state = tamis.torch.attach(net, 0.1, optimizer=optimizer)
    x, y = batch(0, dist.get_rank())

    def closure():
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    said = told(lambda: optimizer.step(closure))
    state._unused.detach()
    state.close()
    return said


def case_none_alone():
    """A gradient that one rank has dropped: its parameter would decay on the others."""
    net = ddp(network())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1)
    state = tamis.torch.attach(net, 0.1, optimizer=optimizer)
    train(net, optimizer, [0])
    optimizer.zero_grad()
    x, y = batch(1, dist.get_rank())
    torch.nn.functional.cross_entropy(net(x), y).backward()
    if dist.get_rank() == 1:
        net.module[0].weight.grad = None
    said = told(optimizer.step)
    state.close()
    return said


def case_dense_after():
    """Moments of an optimizer that has stepped by each rank's own gradient."""
    net = ddp(network())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    state = tamis.torch.attach(net, 0.1, optimizer=optimizer)
    train(net, optimizer, range(3))
    state.close()
    again = ddp(net.module)
    state = tamis.torch.attach(again, density=1.0, optimizer=optimizer)
    said = told(lambda: train(again, optimizer, [3]))
    state.close()
    return said


def case_dense_ddp_after():
    """A run without tamis: the first step warns, unless all ranks were given one's state."""
    found = []
    for equal in (False, True):
        net = ddp(network())
        optimizer = torch.optim.AdamW(net.parameters(), 0.01)
        state = tamis.torch.attach(net, 0.1, optimizer=optimizer)
        train(net, optimizer, range(3))
        state.close()
        again = ddp(net.module)
        if equal:
            every = [optimizer.state_dict()]
            dist.broadcast_object_list(every)
            optimizer.load_state_dict(every[0])
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            train(again, optimizer, range(3, 5))
        found.append(len([one for one in heard if "differ from rank to rank" in str(one.message)]))
    return found


def case_hook_before():
    """A hook of the script from before attach sees parameters that all ranks have."""
    if not hasattr(torch.optim.Optimizer, "register_step_post_hook"):
        return True
    net = ddp(network())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    seen = []
    optimizer.register_step_post_hook(
        lambda *_: seen.append(tamis.torch.replicas_identical(net.module))
    )
    tamis.torch.attach(net, 0.1, optimizer=optimizer)
    train(net, optimizer, range(3))
    return seen == [True] * 3


def case_split_groups():
    """param_groups that are divided after a step, at another rate."""
    net = ddp(network())
    optimizer = torch.optim.AdamW(net.parameters(), 0.01)
    tamis.torch.attach(net, 0.1, optimizer=optimizer)
    train(net, optimizer, [0])
    group = optimizer.param_groups[0]
    rest = dict(group, params=group["params"][2:], lr=0.003)
    group["params"] = group["params"][:2]
    optimizer.param_groups.append(rest)
    train(net, optimizer, [1, 2])
    return tamis.torch.replicas_identical(net.module)


def case_small_rate():
    net = ddp(network())
    optimizer = torch.optim.AdamW(net.parameters(), 1e-40)
    state = tamis.torch.attach(net, 0.1, optimizer=optimizer)
    said = told(lambda: train(net, optimizer, [0]))
    state._unused.detach()
    state.close()
    return said


def case_parameters():
    net, optimizer, state = sgd(network(), check_every=3)
    train(net, optimizer, range(2))
    if dist.get_rank() == 1:
        net.module[2].bias.data[1] += 1
    train(net, optimizer, [2])
    return told(lambda: train(net, optimizer, [3]))


def case_thawed():
    """Under local steps, too."""
    model = network()
    model[0].weight.requires_grad_(False)
    optimizer = tamis.torch.LocalSGD(torch.optim.SGD(model.parameters(), 0.1), model, steps=2)
    train(model, optimizer, range(2))
    model[0].weight.requires_grad_(True)
    said = told(lambda: train(model, optimizer, [2]))
    optimizer.close()
    return said


def case_glance():
    """One line at the first step, on rank 0."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("tamis")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    net, optimizer, state = sgd(network())
    begun = len(lines)
    train(net, optimizer, range(3))
    logger.removeHandler(handler)
    scalars = state.scalars()
    return lines[begun:], sorted(scalars), scalars["tamis/lost_steps"]


def case_dropped_means():
    """With means a pass that no step follows stays: the log says so, once."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("tamis").addHandler(handler)
    net, optimizer, state = sgd(network(), reduce="gradient")
    for step in range(4):
        x, y = batch(step, dist.get_rank())
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.zero_grad()
    logging.getLogger("tamis").removeHandler(handler)
    return [line for line in lines if "no step followed" in line]


def case_closed():
    """A closed state does not let ranks train apart."""
    net, optimizer, state = sgd(network())
    train(net, optimizer, range(2))
    state.close()
    said = told(lambda: train(net, optimizer, [2]))
    model = network()
    plain = tamis.torch.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model)
    train(model, plain, [0])
    plain.close()
    return said, told(lambda: train(model, plain, [1]))


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.used, self.other = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.used(x)


def case_unused():
    """A parameter that no rank uses does not decay."""
    net = torch.nn.parallel.DistributedDataParallel(Half(), find_unused_parameters=True)
    before = net.module.other.weight.detach().clone()
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.1)
    tamis.torch.attach(net, 0.3, optimizer=optimizer)
    first = net.module.used.weight.detach().clone()
    for step in range(4):
        optimizer.zero_grad()
        net(data(step)).square().mean().backward()
        optimizer.step()
    stays = torch.equal(net.module.other.weight, before)
    return stays, not torch.equal(net.module.used.weight, first)


CASES = [name for name in list(globals()) if name.startswith("case_")]


@pytest.fixture(scope="module")
def results():
    return ranks.run(__file__, CASES, nranks=2)


def test_passes_of_another_optimizer_leave_nothing_behind(results):
    for moved, learned, residual in ranks.values(results, "case_gan"):
        assert moved == 0 and residual == 0 and learned > 1e-4


def test_a_step_that_is_left_out_is_forgotten(results):
    assert ranks.values(results, "case_left_out") == [(1, 9, True)] * 2


def test_copies_have_no_hook(results):
    for refused, same, kind, steps in ranks.values(results, "case_copies"):
        assert refused[0] == "TypeError" and "state_dict()" in refused[1]
        assert same and kind == "SGD" and steps == 2


def test_a_second_attach_is_refused_and_changes_nothing(results):
    for refused, hook, inner, same in ranks.values(results, "case_second_attach"):
        assert refused[0] == hook[0] == "RuntimeError" and not inner and same, (refused, hook)


def test_rates_that_differ_are_named(results):
    for rank, rows in enumerate(ranks.values(results, "case_rates")):
        assert len(rows) == len(RATES)
        for kind, sentence in rows:
            assert kind == "Error" and f"of rank {rank} are" in sentence and "rates" in sentence
            assert f"{0.1 * (1 + rank):.9g}" in sentence, sentence


@pytest.mark.parametrize(
    "case, kind, words",
    [
        ("closure", "RuntimeError", "give attach the optimizer that is inside"),
        ("none_alone", "Error", "a gradient was None on one rank alone"),
        ("dense_after", "Error", "the optimizer's state is not the same on all ranks"),
        ("small_rate", "ValueError", "the learning rate is 1e-40"),
    ],
)
def test_what_would_part_ranks_is_named(results, case, kind, words):
    for found in ranks.values(results, "case_" + case):
        assert found[0] == kind and words in found[1], found


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="no hook tells of what is loaded")
def test_moments_that_differ_are_told_after_close(results):
    assert ranks.values(results, "case_dense_ddp_after") == [[1, 0]] * 2


def test_hooks_and_groups_of_the_script(results):
    assert all(ranks.values(results, "case_hook_before"))
    assert all(ranks.values(results, "case_split_groups"))


def test_the_parameter_that_differs_is_named(results):
    for kind, sentence in ranks.values(results, "case_parameters"):
        assert kind == "Error" and "Before step 3 parameter '2.bias'" in sentence, sentence


def test_what_is_thawed_under_local_steps_is_refused(results):
    for kind, sentence in ranks.values(results, "case_thawed"):
        assert kind == "ValueError" and "ranks would drift apart" in sentence


def test_one_line_says_what_is_exchanged(results):
    first, second = ranks.values(results, "case_glance")
    assert len(first[0]) == 1 and not second[0]
    for words in ("2 ranks over", "driven by the host", "steps of SGD: tamis", "whole gradients are"):
        assert words in first[0][0], first
    assert "tamis/residual_norm" in first[1] and first[2] == 0


def test_a_dropped_pass_of_means_is_told_once(results):
    assert [len(lines) for lines in ranks.values(results, "case_dropped_means")] == [1, 1]


def test_a_closed_state_is_refused(results):
    for first, second in ranks.values(results, "case_closed"):
        assert first[0] == second[0] == "RuntimeError", (first, second)
        assert "was closed" in first[1] and "was closed" in second[1]


def test_what_no_rank_uses_does_not_decay(results):
    assert ranks.values(results, "case_unused") == [(True, True)] * 2


def test_what_would_be_silent_is_refused():
    model = torch.nn.Conv2d(2, 3, 3)
    sgd_of = lambda: torch.optim.SGD(model.parameters(), 0.1)  # noqa: E731
    with pytest.raises(ValueError, match="nonfinite=.drop."):
        tamis.torch.DistributedOptimizer(sgd_of(), model, density=0.1, nonfinite="drop")
    for name in ("AdamWScheduleFree", "ASGD"):
        kind = type(name, (torch.optim.SGD,), {})
        with pytest.raises(TypeError, match="cannot be exchanged"):
            tamis.torch.DistributedOptimizer(kind(model.parameters(), 0.1), model, density=0.1)
    made = tamis.torch.DistributedOptimizer(sgd_of(), model, density=0.1, transport="local")
    model(torch.ones(1, 2, 4, 4)).sum().backward()
    made.step()
    model.to(memory_format=torch.channels_last)
    with pytest.raises(ValueError, match="strides"):
        made.step()
    made.close()


def test_nesterov_is_made_up_for_as_it_is():
    """What a gradient of 1 gives in T steps, between two clearings, is what it gives in the end."""
    from tamis.torch._kinds import kind_of

    for nesterov in (False, True):
        p = torch.nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([p], 1.0, momentum=0.9, nesterov=nesterov)
        for _ in range(10):
            p.grad = torch.ones(1)
            optimizer.step()
        factor = kind_of(optimizer).scale_at(0.1, optimizer.param_groups[0])
        assert abs(-p.item() / 10 * factor - 10) < 1e-3


def test_one_percent_is_not_1():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(RuntimeWarning, match="0.01"):
        made = tamis.torch.DistributedOptimizer(optimizer, model, density=1, transport="local")
    made.tamis._unused.detach()
    made.close()
    for density in (0, 3, float("nan"), -0.1):
        with pytest.raises(ValueError, match="a share in"):
            tamis.torch.DistributedOptimizer(optimizer, model, density=density)
    with pytest.raises(TypeError, match="'densty', but 'density'"):
        tamis.torch.DistributedOptimizer(optimizer, model, densty=0.1)


def test_a_digest_is_of_the_bytes():
    a = torch.arange(1000, dtype=torch.float32)
    b = a.clone()
    assert tamis._core.digest(a) == tamis._core.digest(b)
    b[999] = -b[999]
    assert tamis._core.digest(a) != tamis._core.digest(b)
    assert tamis._core.digest(b"") == 0x2D06800538D394C2  # of XXH3, 64 bits, seed 0
