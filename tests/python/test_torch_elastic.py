# SPDX-License-Identifier: MIT
#
# test: slow
"""tamis.torch and ranks that are lost: SparseState.migrate, DistributedOptimizer in run_elastic."""

import threading

import pytest
import torch

from elastic_support import Death, Dies, elastic, on_ranks
from tamis import Comm, Error, _pack
from saved import own

import tamis
import tamis.torch

torch.set_num_threads(1)
lock = threading.Lock()  # torch's generator is one for all threads


class Trainer:
    """A rank that is a thread."""

    def __init__(self, comm, kind, **options):
        with lock:
            torch.manual_seed(3)
            self.model = torch.nn.Sequential(
                torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)
            )
        parameters = self.model.parameters()
        if kind == "adamw":
            inner = torch.optim.AdamW(parameters, 0.01, betas=(0.5, 0.99))
        else:
            inner = torch.optim.SGD(parameters, 0.1, momentum=0.5)
        if kind == "gradient":
            options["reduce"] = kind
        self.optimizer = tamis.torch.DistributedOptimizer(
            inner, self.model, comm=comm, density=0.2, check_every=1, **options
        )
        self.schedule = torch.optim.lr_scheduler.StepLR(inner, 2, 0.9)
        shared = {"model": self.model, "optimizer": inner, "schedule": self.schedule}
        self.state = tamis.ElasticState(comm, shared, reducers=[self.optimizer])

    def step(self, state, within=lambda state: None):
        number = (state.step * 8 + state.comm.rank) * 8 + state.comm.nranks
        generator = torch.Generator().manual_seed(number)
        x = torch.randn(5, 6, generator=generator)
        self.optimizer.zero_grad()
        (self.model(x) - x[:, :2]).square().mean().backward()
        within(state)
        self.optimizer.step()
        self.schedule.step()
        state.step += 1

    def train(self, steps, before=lambda state: None, within=lambda state: None):
        def train(state):
            while state.step < steps:
                before(state)
                self.step(state, within)
                state.commit()
            return flat(self.model)

        return train


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).clone()


def reference(kind, last, **options):
    """Three ranks make 4 steps, two of them go on: by migrate() alone."""
    comms = Comm.local(3, 60000)

    def work(rank):
        one = Trainer(comms[rank], kind, **options)
        while one.state.step < 4:
            one.step(one.state)
        if rank == 1:
            return None
        smaller = comms[rank].shrink([0, 2])
        report = one.optimizer.migrate(smaller)
        assert (report["step"], report["gone"]) == (4, 1) and report["kept_square"] > 0
        assert one.optimizer.tamis.comm is smaller
        one.state.comm = smaller
        while one.state.step < last:
            one.step(one.state)
        return flat(one.model)

    out = on_ranks(3, work)
    assert torch.equal(out[0], out[2]), out
    return out[0]


def test_rates_are_shared_and_moments_go_back_with_the_rank():
    """A rank that is one commit ahead goes back with its own moments; rates must be equal."""
    comms, seen = Comm.local(2, 60000), [{}, {}]

    def work(rank):
        one = Trainer(comms[rank], "adamw")
        moments = lambda: str(one.optimizer.optimizer.state_dict()["state"])

        def train(state):
            while state.step < 3:
                one.step(state)
                seen[rank][state.step] = moments()
                state.commit()

        elastic(train, one.state)
        one.step(one.state)
        assert moments() != seen[rank][3]
        one.state._put_values(one.state._commits[-1])
        assert moments() != seen[rank][3]  # shared has none of them
        for part, data in zip(one.state.parts, one.state._commits[-1].reducers):
            part.load(_pack.decode(data))
        assert moments() == seen[rank][3]
        one.optimizer.param_groups[0]["lr"] *= 1 + rank
        with pytest.raises(Error, match="'optimizer' is not the same"):
            one.state._check_equal("Then", "Mend it.")

    assert on_ranks(2, work) == [None, None]
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    "where, overlap",
    [("before", True), ("before", False), ("within", True), ("within", False), ("check", False)],
)
@pytest.mark.parametrize("kind", ["gradient", "adamw", "sgd"])
def test_an_optimizer_goes_on_with_the_ranks_that_are_left(kind, where, overlap):
    """The victim dies before a step, or between backward() and step(); "check": the others notice
    there, too."""
    comms, trainers = Comm.local(3, 60000), [None] * 3
    death = Death(3, victim=1, step=4)

    def work(rank):
        one = trainers[rank] = Trainer(comms[rank], kind, overlap=overlap)
        check = lambda state: death(state) or tamis.check_equal(state.comm, b"here")
        when = {"check": {"within": check}}.get(where) or {where: death}
        return elastic(one.train(8, **when), one.state)

    out = on_ranks(3, work)
    assert isinstance(out[1], Dies), out
    assert torch.equal(out[0], out[2]), out
    assert torch.equal(out[0], reference(kind, 8, overlap=overlap))
    state = trainers[0].optimizer.tamis
    assert (state.comm.nranks, state.steps, state.error) == (2, 8, None)
    assert trainers[0].schedule.last_epoch == 8


def test_steps_that_were_warm_up_go_on():
    comms, death = Comm.local(3, 60000), Death(3, victim=0, step=2)

    def work(rank):
        one = Trainer(comms[rank], "gradient", warmup=4)
        w = elastic(one.train(7, death), one.state)
        return w, one.optimizer.tamis.residual_norm(), one.optimizer.tamis.steps

    out = on_ranks(3, work)
    assert isinstance(out[0], Dies), out
    assert torch.equal(out[1][0], out[2][0]) and out[1][1] > 0 and out[1][2] == 7


@pytest.mark.parametrize("kind", ["gradient", "adamw", "sgd"])
@pytest.mark.parametrize("later", [2, 3, 1])
def test_a_set_of_two_ranks_serves_others(tmp_path, kind, later):
    def run(nranks, steps):
        comms = Comm.local(nranks, 60000)

        def work(rank):
            one = Trainer(comms[rank], kind)
            return elastic(one.train(steps), one.state, folder=tmp_path), one

        out = on_ranks(nranks, work)
        assert not any(isinstance(one, BaseException) for one in out), out
        return out

    before = run(2, 4)
    after = run(later, 4)
    assert all(torch.equal(w, before[0][0]) for w, _ in after)
    held = [own(one.optimizer.tamis.state_dict()) for _, one in before]
    now = [own(one.optimizer.tamis.state_dict()) for _, one in after]
    for name in held[0]["residual"]:
        pending = sum(one["residual"][name].double() for one in held) / 2
        found = sum(one["residual"][name].double() for one in now) / later
        assert torch.allclose(pending, found, atol=1e-7), name
    inner = [[one.optimizer.optimizer.state_dict() for _, one in row] for row in (before, after)]
    if kind == "gradient" or later == 2:
        assert str(inner[0][0]) == str(inner[1][0]) and str(inner[0][1]) == str(inner[1][-1])
    else:  # all get the mean
        key = "exp_avg" if kind == "adamw" else "momentum_buffer"
        for number in range(4):
            mean = sum(one["state"][number][key] for one in inner[0]) / 2
            assert all(torch.allclose(one["state"][number][key], mean) for one in inner[1])
    differ = str(inner[0][0]["state"]) != str(inner[0][1]["state"])
    assert differ == (kind != "gradient") and after[0][1].schedule.last_epoch == 4
    again = run(later, 6)
    assert all(torch.equal(w, again[0][0]) for w, _ in again)
    assert not torch.equal(again[0][0], before[0][0])


def test_dtypes_migrate_with_a_communicator_each():
    comms = [Comm.local(2, 60000) for _ in range(2)]

    def work(rank):
        with lock:
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2).bfloat16())
        own = [pair[rank] for pair in comms]
        state = tamis.torch.SparseState(model, comm=own)
        elastic_state = tamis.ElasticState(own[0], {"model": model}, reducers=[state])
        with pytest.raises(ValueError, match=r"reducers\[0\] is over another communicator"):
            tamis.run_elastic(print, elastic_state)
        smaller = [comm.shrink([0, 1]) for comm in own]
        with pytest.raises(ValueError, match="2 reducers need a communicator each, but 1 came"):
            state.migrate(smaller[0])
        report = state.migrate(smaller)
        assert [group.comm for group in state.groups] == smaller and report["gone"] == 0
        state.close()
        with pytest.raises(RuntimeError, match="was closed"):
            state.migrate(smaller)

    assert on_ranks(2, work) == [None, None]


def test_tensors_survive():
    value = {
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "whole": torch.arange(6).reshape(2, 3).t(),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 2),
    }
    found = _pack.decode(_pack.encode(value, "value"))
    for name, tensor in value.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
    found["half"] += 1  # a copy of its own
    with pytest.raises(TypeError, match=r"x\['a'\] is a Tensor"):
        _pack.encode({"a": torch.zeros(3).to_sparse()}, "x")


def test_parameters_that_another_rank_changed_end_the_run():
    """The check of the state itself, not of the elastic run: nothing is lost, nobody goes on."""
    comms = Comm.local(2, 60000)

    def work(rank):
        one = Trainer(comms[rank], "gradient")

        def spoil(state):
            if state.step == 2 and rank == 1:
                with torch.no_grad():
                    one.model[0].weight[0, 0] += 1

        return elastic(one.train(4, spoil), one.state, min_ranks=2)

    for error in on_ranks(2, work):
        assert isinstance(error, Error) and error.status in ("TAMIS_E_MISMATCH", "TAMIS_E_ABORTED")
