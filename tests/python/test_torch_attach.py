# SPDX-License-Identifier: MIT
#
# test: slow
"""attach(ddp, optimizer=...): the script as it is written makes the right steps, or is refused."""

import datetime
import pathlib
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import StepLR

import jobs
import ranks
from jobs import needs_mpi
from ranks import told
from torch_models import bits, ddp, network, train
from torch_steps import attached, flat, inner, loss, wrap

import tamis
import tamis.torch

DENSITY = 0.05

# ------------------------------------------------------------------------------ run by the ranks


def made(kind="AdamW", **options):
    return attached(DENSITY, kind, **options)


def as_the_wrapper(kind):
    """What DistributedOptimizer does with the same steps, and schedulers made before and after."""
    model = network()
    wrapper = wrap(model, kind, density=DENSITY, bucket_length=3000)
    schedule = StepLR(wrapper, 1, gamma=0.9)
    for step in range(4):
        train(model, wrapper, [step])
        schedule.step()
    wrapper.close()
    net = ddp(network())
    optimizer = inner(kind, net.parameters())
    early = StepLR(optimizer, 1, gamma=0.9)
    state = tamis.torch.attach(net, DENSITY, optimizer=optimizer, bucket_length=3000)
    StepLR(optimizer, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a scheduler that misses the optimizer's steps
        for step in range(4):
            train(net, optimizer, [step])
            early.step()
    state.close()
    far = (flat(model.parameters()) - flat(net.parameters())).abs().max().item()
    return far, bits(net), len(optimizer.state)


def case_adamw():
    return as_the_wrapper("AdamW")


def case_adam():
    return as_the_wrapper("Adam")


def case_momentum():
    return as_the_wrapper("SGD")


def case_raised():
    """step() raises after it has hidden the gradients: they come back, and training goes on."""
    net = ddp(network())
    optimizer = inner("AdamW", net.parameters())
    due = [True]

    def fail(*_):
        if due and due.pop():
            raise KeyError("from within step()")

    if hasattr(optimizer, "register_step_post_hook"):
        optimizer.register_step_post_hook(fail)
    else:
        own = optimizer.step
        optimizer.step = lambda: (own(), fail())
    tamis.torch.attach(net, DENSITY, optimizer=optimizer)
    loss(net, 0).backward()
    said = told(optimizer.step)
    left = [p.grad is not None for p in net.parameters()]
    train(net, optimizer, range(1, 3))
    return said[0], all(left), bits(net)


def case_any_optimizer():
    """What has no row of its own is exchanged all the same: RMSprop, Adagrad, Adadelta."""
    found = []
    for kind in ("RMSprop", "Adagrad", "Adadelta"):
        net = ddp(network())
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)
        before = flat(net.parameters()).clone()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tamis.torch.attach(net, DENSITY, optimizer=optimizer)
        train(net, optimizer, range(3))
        moved = (flat(net.parameters()) != before).float().mean().item()
        words = [str(row.message) for row in caught if "not measured" in str(row.message)]
        found.append((kind, moved, len(words), bits(net)))
    return found


def case_several():
    """Two optimizers, each of a part; and gradients of the rest, whose optimizer is not given."""
    net = ddp(network())
    layers = net.module
    each = [
        torch.optim.AdamW(layers[0].parameters(), 0.01),
        torch.optim.SGD(layers[2].parameters(), 0.1, momentum=0.5),
    ]
    rest = torch.optim.SGD(layers[4].parameters(), 0.1)
    state = tamis.torch.attach(net, 0.1, optimizer=each)
    before = [flat(layers[i].parameters()).clone() for i in (0, 2, 4)]
    for step in range(4):
        for optimizer in (*each, rest):
            optimizer.zero_grad()
        loss(net, step).backward()
        for optimizer in (*each, rest):
            optimizer.step()
    now = [flat(layers[i].parameters()) for i in (0, 2, 4)]
    changed = [not torch.equal(one, other) for one, other in zip(before, now)]
    return changed, [exchange.steps for exchange in state.exchanges], bits(net)


def case_warned():
    """Each optimizer that the gradients end in, and what is said after the first step."""
    said = []
    for kind, options in (("AdamW", {}), ("AdamW", dict(reduce="gradient")), ("SGD", {})):
        net = ddp(network())
        optimizer = inner(kind, net.parameters())
        tamis.torch.attach(net, DENSITY, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            train(net, optimizer, range(2))
        said.append([str(row.message) for row in caught if row.category is RuntimeWarning])
    return said


def case_subgroup():
    """A group of one rank of two attaches, the other does not; later the ranks make a group."""
    groups = [dist.new_group([rank], backend="gloo") for rank in range(2)]
    own = groups[dist.get_rank()]
    found = []
    for comm in (None, tamis.torch.carrier(own)):
        net = ddp(network(), process_group=own)
        if dist.get_rank() == 0:
            state = tamis.torch.attach(net, DENSITY, comm=comm, timeout_s=60)
            train(net, torch.optim.SGD(net.parameters(), 0.1), range(2))
            found.append((state.comm.nranks, state.steps))
            state.close()
    limit = datetime.timedelta(seconds=20)
    every = dist.new_group(backend="gloo", timeout=limit)
    net = ddp(network(), process_group=every)
    state = tamis.torch.attach(net, DENSITY, timeout_s=20)
    train(net, torch.optim.SGD(net.parameters(), 0.1), range(2))
    found.append((state.comm.nranks, state.steps))
    return found


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]


@pytest.fixture(scope="module")
def results():
    return ranks.run(__file__, CASES, nranks=2)


@pytest.mark.parametrize("name", ["case_adamw", "case_adam", "case_momentum"])
def test_the_optimizer_steps_as_the_wrapper_does(results, name):
    found = ranks.values(results, name)
    assert all(far < 1e-6 and kept == 6 for far, _, kept in found), found
    assert found[0][1] == found[1][1]


def test_optimizers_without_a_row_are_exchanged_with_a_warning(results):
    found = ranks.values(results, "case_any_optimizer")
    assert found[0] == found[1]
    for kind, moved, warned, _ in found[0]:
        assert 0.01 < moved < 2.0 and warned == (kind != "RMSprop"), found


def test_several_optimizers_and_a_rest(results):
    found = ranks.values(results, "case_several")
    assert found[0] == found[1] and found[0][:2] == ([True] * 3, [4, 4, 4])


def test_gradients_are_back_when_step_raises(results):
    found = ranks.values(results, "case_raised")
    assert all(row[:2] == ("KeyError", True) for row in found), found
    assert found[0][2] == found[1][2]


def test_adaptive_optimizers_are_warned_of(results):
    for plain, meant, momentum in ranks.values(results, "case_warned"):
        assert len(plain) == 1 and "39 %" in plain[0] and "optimizer=optimizer" in plain[0]
        assert not meant and not momentum


def test_a_subgroup_works_and_others_need_not_know(results):
    first, second = ranks.values(results, "case_subgroup")
    assert first == [(1, 2), (1, 2), (2, 2)] and second == [(2, 2)]


@needs_mpi
def test_each_combination_works_or_is_refused():
    job = jobs.mpirun(2, pathlib.Path(__file__).with_name("cases.py"))
    # Not the status: where an exchange was given up, ranks do not wait for each other in MPI's end.
    assert "38 passed, 0 failed" in job.out, job
    assert job.out.count("; warns: ") == 1 and job.out.count("| refused: ") == 5, job
