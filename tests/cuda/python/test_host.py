# SPDX-License-Identifier: MIT
"""CUDA tensors that travel through the host, because NCCL is missing or was not asked for: the same
bits, one warning, and errors where the host waits."""

import threading

import pytest
import stand_in
from saved import own
import tamis
import tamis.torch
import torch
from rig import Model, NAN, RANKS, cuda, here, host, run, same
from tamis import launch
from tamis.torch._group import Waiter


pytestmark = pytest.mark.filterwarnings("ignore:The gradients are on CUDA devices")


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(stand_in, "LATE_S", 0.004)
    monkeypatch.setattr(launch, "_told", False)


def made(rank, **options):
    return Model(rank, **dict(dict(transport="auto", comm=here.carriers.pop()), **options))


def steps(model, numbers=range(3)):
    for step in numbers:
        model.backward(step)
        model.opt.step()


@pytest.mark.parametrize("options", [{}, dict(overlap=False), dict(warmup=2)])
def test_the_bits_are_the_same_and_the_host_drives(options):
    def body(rank):
        model = made(rank, **options)
        threads = [group.waiter is not None for group in model.opt.tamis.groups]
        assert threads == [options.get("overlap", True)]  # "local" has no thread of its own
        steps(model, range(4))
        row = model.opt.tamis.stats()
        assert row["driver"] == "host" and row["driver_reason"]
        found = model.values()
        model.opt.close()
        return found

    with pytest.warns(RuntimeWarning, match="travel over local by way of the host"):
        found = run(body)
    same(found, host(4, **options))


def test_a_missing_nccl_is_told_once(monkeypatch):
    """auto then takes what the launcher offers; to ask for NCCL is an error with the remedy."""
    monkeypatch.setattr(launch, "nccl_missing", lambda: "NCCL cannot be loaded: no such file.")
    assert launch.choose("auto", "cuda").transport == "local"
    assert launch.over_torch("cuda") == launch.over_torch("cpu")
    with pytest.raises(tamis.Error, match="NCCL was requested, but NCCL cannot be loaded"):
        run(lambda rank: Model(rank), 1)

    def body(rank):
        for _ in range(2):
            model = made(rank)
            steps(model, [0])
            model.opt.close()

    with pytest.warns(RuntimeWarning, match="NCCL cannot be loaded: no such file") as told:
        run(body)
    assert len([one for one in told if "by way of the host" in str(one.message)]) == 1


@pytest.mark.parametrize("overlap", [True, False])
def test_the_step_itself_raises(overlap):
    def body(rank):
        model = made(rank, overlap=overlap)
        steps(model, [0])
        before = model.values()
        model.backward(1, factor=NAN if rank == 1 else 1.0)
        with pytest.raises(tamis.Error, match="NaN or Inf") as caught:
            model.opt.step()
        assert caught.value.lost == "step" and torch.equal(before, model.values())
        steps(model, [2])
        assert model.opt.tamis.stats()["total"]["lost_steps"] == 1
        found = model.values()
        model.opt.close()
        return found

    first, second = run(body)
    assert torch.equal(first, second) and first.isfinite().all()


def test_a_lost_rank_is_told_by_the_step():
    def body(rank):
        comm = here.carriers.pop()
        model = made(rank, comm=comm)
        steps(model, [0])
        if rank == 1:
            return comm.abort()
        model.backward(1)
        with pytest.raises(tamis.Error) as caught:
            model.opt.step()
        assert caught.value.lost == "comm"
        state = model.opt.tamis
        assert own(state.state_dict())["steps"] == state.steps == 1
        report = model.opt.migrate(comm.shrink([0, 2]))
        assert report["step"] == 1 and report["gone"] == 1
        steps(model, [2, 3])
        found = model.values()
        model.opt.close()
        return found

    first, _, third = run(body, 3)
    assert torch.equal(first, third) and first.isfinite().all()


# -- the thread that waits -------------------------------------------------------------------------


def test_a_step_that_broke_off_ends_before_the_state_is_read():
    """The thread is inside the step, which will not complete, when the state is ended."""
    inside = threading.Barrier(RANKS, timeout=60)  # a rank that leaves ends the step of the other

    def body(rank):
        comm = here.carriers.pop()
        model = made(rank, comm=comm)
        steps(model, [0])
        state = model.opt.tamis
        model.opt._arrived(0)
        inside.wait()
        with pytest.raises(RuntimeError, match="came twice before step"):
            model.opt._arrived(0)
        assert state.groups[0].waiter.waiting
        assert own(state.state_dict())["steps"] == 1 and not state.groups[0].waiter.waiting
        assert model.opt.migrate(comm.shrink([0, 1]))["step"] == 1
        steps(model, [1, 2])
        found = model.values()
        model.opt.close()
        return found

    first, second = run(body)
    assert torch.equal(first, second) and first.isfinite().all()


class Blocked:
    """A reducer whose step ends when it is told to."""

    def __init__(self):
        self.end = threading.Event()

    def wait(self):
        assert self.end.wait(60)
        raise ValueError("what a step that was abandoned raises")


def test_a_wait_that_does_not_end_is_left_to_its_thread():
    waiter, reducer = Waiter(), Blocked()
    waiter.begin(reducer)
    waiter.quiesce(0.01)
    assert waiter.waiting  # the state says then that the reducer is in use
    reducer.end.set()
    waiter.quiesce(60)
    assert not waiter.waiting
    waiter.begin(reducer)  # its next step is waited for
    with pytest.raises(ValueError, match="abandoned"):
        waiter.join()
    waiter.stop()
