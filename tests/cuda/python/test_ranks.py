# SPDX-License-Identifier: MIT
"""tamis.torch on CUDA devices when the ranks change: lost ones, checkpoints of another number of
them, nodes of several."""

import contextlib

import pytest
import stand_in
from saved import own
import tamis
import tamis.torch
import torch
from rig import MEANS, Model, NAN, RANKS, cuda, gradients, here, host, run, same, weights
from tamis import launch

BETAS = (0.0, 0.99)
ADAM = dict(reduce="step", inner=lambda p, lr: torch.optim.AdamW(p, lr, (0.9, 0.99)))


dead = []  # what is left of lost ranks, which make no call until the others have ended


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(stand_in, "LATE_S", 0.004)
    yield
    while dead:
        model = dead.pop()
        model.opt.tamis.comm.abort()
        with contextlib.suppress(tamis.Error):
            model.opt.close()


@pytest.fixture
def launched(monkeypatch):
    """NCCL can make a smaller communicator only of one whose steps are not captured."""
    monkeypatch.setenv("TAMIS_GRAPHS", "off")


class OnHost(Model):
    """A Model with its parameters on the CPU, over what run() gave it."""

    def __init__(self, rank, dtype=torch.float32, **options):
        self.rank, self.dtype = rank, dtype
        self.rows = [(name, torch.nn.Parameter(values)) for name, values in weights(dtype)]
        self.parameters = [p for _, p in self.rows]
        self.inner = options.pop("inner", torch.optim.SGD)(self.parameters, lr=0.1)
        options = dict(dict(MEANS, comm=here.carriers.pop()), **options)
        self.opt = tamis.torch.DistributedOptimizer(self.inner, self.rows, **options)

    def backward(self, step, factor=1.0):
        for index, (p, given) in enumerate(zip(self.parameters, gradients(self.rank, step))):
            p.grad = given * factor
            if self.opt._targets:
                self.opt._arrived(index)


def steps(model, numbers):
    for step in numbers:
        model.backward(step)
        model.opt.step()


def nccl(carrier, rank):
    with torch.cuda.device(rank):
        return launch.nccl_over(carrier, 1)


def both(body, nranks=RANKS):
    return run(lambda rank: body(Model, rank), nranks), run(lambda rank: body(OnHost, rank), nranks)


# -- ranks that are lost ---------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, ADAM, dict(warmup=6), dict(overlap=False)])
def test_two_of_three_go_on(launched, options):
    """After migrate() the others have the bits that the host gives them, and the step's number."""

    def body(kind, rank):
        model = kind(rank, **dict(options))
        steps(model, range(3))
        model.opt.tamis.stats()  # what has not ended is not made
        if rank == 1:
            dead.append(model)
            return torch.zeros(1)
        smaller = model.opt.tamis.comm.shrink([0, 2])
        report = model.opt.migrate(smaller)
        assert report["step"] == 3 and report["gone"] == 1
        assert model.opt.tamis.comm is smaller and stand_in.current_device() == 0
        steps(model, range(3, 8))
        found = torch.cat([model.values(), torch.tensor([model.opt.tamis.residual_norm()])])
        model.opt.close()
        return found

    found, wanted = both(body, 3)
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[2][:-1])


@pytest.mark.parametrize("options", [{}, dict(warmup=5)])
@pytest.mark.parametrize("saves", [True, False])
def test_a_lost_rank_ends_the_state_until_it_migrates(saves, options):
    """Steps raise the first cause again, those that no device has ended do not count, and after
    migrate() steps work."""

    def body(rank):
        carrier = here.carriers.pop()
        options_here = dict(options, check_every=0)  # parameters are ahead of the step that counts
        model = Model(rank, timeout_s=1, comm=nccl(carrier, rank), **options_here)
        steps(model, range(3))
        state = model.opt.tamis
        if rank == 1:
            model.values()
            return dead.append(model)
        with pytest.raises(tamis.Error) as caught:
            steps(model, range(3, 9))
        assert caught.value.lost == "comm" and caught.value is state.error
        with pytest.raises(tamis.Error) as again:
            model.backward(9)
        assert again.value is state.error and "ended by" in repr(state)
        if saves:
            assert own(state.state_dict())["steps"] == state.steps == 3
        report = model.opt.migrate(nccl(carrier.shrink([0, 2]), rank))
        assert report["gone"] == 1 and state.error is None
        assert report["step"] == state.steps == 3
        made = 3
        kept = [p.cpu() for p in model.parameters]
        steps(model, range(10, 13))
        assert state.steps == made + 3
        moved = torch.cat([(a - b.cpu()).view(-1) for a, b in zip(kept, model.parameters)])
        model.opt.close()
        return moved

    first, _, third = run(body, 3)
    assert torch.allclose(first, third, atol=1e-6) and first.count_nonzero()


def test_ranks_a_step_apart_are_resynced():
    def body(rank):
        model = Model(rank)
        steps(model, range(3))
        assert model.opt.tamis.resync() == 3
        steps(model, [3])
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(4))


# -- checkpoints of another number of ranks --------------------------------------------------------


@pytest.mark.parametrize("options", [{}, ADAM, dict(op="sum")])
def test_three_resume_what_two_have_saved(options):
    def save(kind, rank):
        model = kind(rank, **dict(options))
        steps(model, range(3))
        saved = model.opt.state_dict(), model.values()
        model.opt.close()
        return saved

    def resume(kind, rank, every):
        model = kind(rank, **dict(options, density=0.1))
        model.opt.load_state_dict([one for one, _ in every])
        runs = every[0][1].split([p.numel() for p in model.parameters])
        for p, values in zip(model.parameters, runs):
            p.detach().copy_(values.view(p.shape))
        assert model.opt.tamis.steps == 3
        pending = model.opt.tamis.groups[0].residual()
        steps(model, range(3, 6))
        found = model.values()
        model.opt.close()
        return found, pending

    found = [run(lambda rank: save(kind, rank)) for kind in (Model, OnHost)]
    for kept, other in zip(found[0], found[1]):
        for name, one in own(kept[0]["tamis"])["residual"].items():
            assert torch.equal(one, own(other[0]["tamis"])["residual"][name]), name
        for one, same_ in zip(*[own(row[0]["tamis"])["optimizers"] for row in (kept, other)]):
            rows = zip(one["state"].values(), same_["state"].values())
            assert all(torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in rows)
            assert all(type(row["exp_avg"]) is torch.Tensor for row in one["state"].values())
    ended = [run(lambda rank: resume(kind, rank, found[0]), 3) for kind in (Model, OnHost)]
    same(*[[values for values, _ in one] for one in ended])
    assert torch.equal(ended[0][0][0], ended[0][2][0])
    rows = [own(one["tamis"])["residual"].values() for one, _ in found[0]]
    before = [torch.cat([run.view(-1) for run in row]) for row in rows]
    mean = [sum(before), sum(pending for _, pending in ended[0])]
    if options.get("op") != "sum":
        mean = [mean[0] / 2, mean[1] / 3]
    assert torch.allclose(*mean, rtol=1e-5, atol=1e-6)  # nothing that is pending is lost


def test_own_steps_resume_bit_for_bit():
    def body(rank):
        model = Model(rank, **dict(ADAM))
        steps(model, range(3))
        saved, kept = model.opt.state_dict(), [p.cpu() for p in model.parameters]
        model.opt.close()
        model = Model(rank, **dict(ADAM))
        model.opt.load_state_dict(saved)
        for p, values in zip(model.parameters, kept):
            p.detach().copy_(values)
        steps(model, range(3, 6))
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(6, **dict(ADAM)))


def test_a_density_that_differs_from_the_saved_one():
    def body(kind, rank):
        model = kind(rank, density_max=0.5)
        steps(model, range(2))
        saved = model.opt.tamis.state_dict()
        model.opt.close()
        model = kind(rank, density=0.3, density_max=0.5)
        with pytest.raises(tamis.Error, match="density is 0.1 in the file, 0.3 here"):
            model.opt.tamis.load_state_dict(saved)
        assert model.opt.tamis.residual_norm() == 0.0
        taken = model.opt.tamis.load_state_dict(saved, strict=False)
        assert taken == ["a", "b", "c"] and model.opt.tamis.density == 0.3
        steps(model, range(2, 4))
        found = model.values()
        model.opt.close()
        return found

    same(*both(body))


# -- nodes -----------------------------------------------------------------------------------------


def test_ranks_of_a_node_hold_shards_of_the_residual():
    def body(kind, rank):
        model = kind(rank, ranks_per_node=2)
        steps(model, range(3))
        saved = model.opt.state_dict()
        model.opt.load_state_dict(saved)
        steps(model, range(3, 5))
        held = model.opt.tamis.groups[0].held
        shard_ = torch.zeros(model.opt.tamis.groups[0].layout.length)
        shard_[held] = 1.0
        residual = model.opt.tamis.groups[0].residual()
        assert not residual[shard_ == 0].count_nonzero() and residual.count_nonzero()
        found = torch.stack([model.values(), residual, shard_])
        model.opt.close()
        return found

    found, wanted = both(body, 4)
    same(found, wanted)
    for node in (found[:2], found[2:]):  # whose ranks hold all of it between them
        assert torch.equal(node[0][2] + node[1][2], torch.ones(len(node[0][2])))
    assert all(torch.equal(found[0][0], one[0]) for one in found)


def test_a_shard_goes_to_the_rank_that_saved_it():
    def body(rank):
        model = Model(rank, ranks_per_node=2)
        steps(model, range(2))
        state = model.opt.tamis
        saved = state.state_dict()
        for values in own(saved)["residual"].values():
            values.fill_(1.0)
        with pytest.raises(ValueError, match="this residual is of another shard of the node"):
            state.load_state_dict(saved)
        steps(model, [2])
        model.opt.close()

    run(body, 4)


# -- two dtypes ------------------------------------------------------------------------------------


def test_dtypes_migrate_with_a_communicator_each(launched):
    kinds = [torch.float32, torch.bfloat16, torch.float32]

    def body(rank):
        rows = [(n, stand_in.parameter(v.to(d), rank)) for (n, v), d in zip(weights(), kinds)]
        state = tamis.torch.SparseState(rows, density=0.1, transport="nccl", timeout_s=20)
        own = [group.comm for group in state.groups]
        smaller = [comm.shrink([0, 1]) for comm in own]
        report = state.migrate(smaller)
        assert [group.comm for group in state.groups] == smaller and report["gone"] == 0
        assert [comm.transport for comm in smaller] == 2 * ["nccl"]
        state._unused.detach()
        state.close()

    run(body)
