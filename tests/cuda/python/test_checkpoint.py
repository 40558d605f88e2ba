# SPDX-License-Identifier: MIT
"""Checkpoints of tamis.torch on CUDA tensors: lists of the states of all ranks, other densities,
and loads that fail."""

import copy

import pytest
import stand_in
from saved import own
import tamis
import tamis.torch
import torch
from rig import Model, RANKS, cuda, gradients, host, run, same, weights
from stand_in import empty, parameter, put


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(stand_in, "LATE_S", 0.002)


def steps(model, numbers):
    for step in numbers:
        model.backward(step)
        model.opt.step()


def saved_by(ranks, **options):
    """States of ranks that have made two steps, and their parameters."""

    def body(rank):
        model = Model(rank, **options)
        steps(model, range(2))
        found = model.opt.state_dict(), model.values()
        model.opt.close()
        return found

    return run(body, ranks)


def resumed(rank, every, **options):
    model = Model(rank, **options)
    model.opt.load_state_dict([state for state, _ in every])
    runs = every[0][1].split([p.numel() for p in model.parameters])
    for p, values in zip(model.parameters, runs):
        put(p.detach(), values.view(p.shape))
    return model


def test_of_a_list_of_as_many_ranks_each_takes_its_own():
    every = saved_by(RANKS)

    def body(rank):
        model = resumed(rank, every)
        steps(model, [2])
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(3))


def test_more_ranks_take_the_density_that_was_saved():
    """Whatever they were made with, they then have the bits of ranks that were made with it."""
    every = saved_by(RANKS, density=0.3, density_max=0.5)

    def body(rank, density):
        model = resumed(rank, every, density=density, density_max=0.5)
        state = model.opt.tamis
        steps(model, [2])
        assert state.density == state.stats()["density_asked"] == 0.3
        assert 0.29 < state.stats()["groups"][0]["density"] < 0.31
        found = model.values()
        model.opt.close()
        return found

    same(*[run(lambda rank: body(rank, density), 3) for density in (0.1, 0.3)])


KINDS = [torch.float32, torch.bfloat16, torch.float32]


class Two:
    """Parameters of two dtypes, each with a communicator of its own."""

    def __init__(self, rank, **options):
        self.rank = rank
        self.rows = [(n, parameter(v.to(k), rank)) for (n, v), k in zip(weights(), KINDS)]
        inner = torch.optim.SGD([p for _, p in self.rows], lr=0.1)
        options = dict(dict(transport="nccl", timeout_s=20, density_max=0.5), **options)
        self.opt = tamis.torch.DistributedOptimizer(inner, self.rows, reduce="gradient", **options)

    def steps(self, numbers):
        for step in numbers:
            for (_, p), g in zip(self.rows, gradients(self.rank, step)):
                p.grad = empty(p.shape, p.dtype, self.rank) if p.grad is None else p.grad
                put(p.grad, g)
            self.opt.step()

    def values(self):
        return torch.cat([p.cpu().float().view(-1) for _, p in self.rows])


def damaged(every):
    """Without the residual of the second dtype, which is loaded last."""
    every = copy.deepcopy(every)
    for one in every:
        del own(one)["residual"]["b"]
    return every


def saved_two(rank, density):
    two = Two(rank, density=density)
    two.steps([0])
    found = two.opt.tamis.state_dict()
    two.opt.close()
    return found


def fail_to_load(state, given):
    before = state.state_dict()
    with pytest.raises(ValueError, match="the residual of 'b' is missing"):
        state.load_state_dict(given)
    after = state.state_dict()
    assert all(map(torch.equal, own(before)["control"], own(after)["control"]))
    for name, one in own(before)["residual"].items():
        assert torch.equal(one, own(after)["residual"][name]), name
    assert state.density == 0.1 and state.steps == 1


@pytest.mark.parametrize("alone", [True, False])
def test_a_load_that_fails_changes_no_dtype(alone):
    """alone: the state of this rank; else those of three, with another density."""
    number, density = (RANKS, 0.1) if alone else (3, 0.3)
    every = damaged(run(lambda rank: saved_two(rank, density), number))

    def body(rank, fails):
        two = Two(rank, density=0.1)
        two.steps([5])
        state = two.opt.tamis
        if fails:
            fail_to_load(state, every[rank] if alone else every)
        two.steps([6])
        found = [two.values(), torch.tensor([g["density"] for g in state.stats()["groups"]])]
        two.opt.close()
        return torch.cat(found)

    same(*[run(lambda rank: body(rank, fails)) for fails in (True, False)])
