# SPDX-License-Identifier: MIT
"""tamis.torch on CUDA tensors: errors a step late, who drives the steps, torch's process group."""

import pytest
from saved import own
import tamis
import tamis.torch
import torch
import torch.distributed as dist
from rig import Bucket, Model, NAN, RANKS, cuda, gradients, host, run, same, weights
from stand_in import empty, parameter, put
from tamis.torch._hook import sparse_hook


# -- errors a step late, and who drives --------------------------------------------------------

def broken(rank, step):
    """A backward pass with NaN on rank 1, and step(), which does not know it yet."""
    model = Model(rank)
    model.backward(0)
    model.opt.step()
    model.backward(step, factor=NAN if rank == 1 else 1.0)
    model.opt.step()
    return model


def test_the_next_step_raises_on_all_ranks_and_then_training_goes_on():
    def body(rank):
        model = broken(rank, 1)
        before = model.values()
        model.backward(2)
        with pytest.raises(tamis.Error, match=r"NaN or Inf: \d+ \(first on rank 1\)") as caught:
            model.opt.step()
        assert caught.value.lost == "step"
        assert torch.equal(before, model.values()) and before.isfinite().all()
        model.inner.step()  # the result of step 2 is in the gradients
        model.backward(3)
        model.opt.step()
        assert model.opt.tamis.stats()["total"]["lost_steps"] == 1
        found = model.values()
        model.opt.close()
        return found

    first, second = run(body)
    assert torch.equal(first, second) and first.isfinite().all()


def test_the_hook_of_the_next_step_raises_and_completes_its_futures():
    def body(rank):
        rows = [(name, parameter(values, rank)) for name, values in weights()]
        state = tamis.torch.SparseState(rows, density=0.1, transport="nccl", timeout_s=20)
        every = [p for _, p in rows]
        buffer = empty((sum(p.numel() for p in every),), index=rank)
        bucket = Bucket(0, True, every, buffer)
        for step in range(4):
            bad = NAN if (step, rank) == (1, 1) else 1.0
            put(buffer, torch.cat([g.view(-1) for g in gradients(rank, step)]) * bad)
            if step == 2:
                with pytest.raises(tamis.Error, match=r"step 1: .*NaN or Inf"):
                    sparse_hook(state, bucket)
                assert not state._futures and state.error is None
            else:
                assert sparse_hook(state, bucket).result is buffer
        assert state.stats()["total"]["lost_steps"] == 1 and buffer.cpu().isfinite().all()
        state.close()

    run(body)


@pytest.mark.parametrize("how", ["close", "stats", "state_dict"])
def test_nothing_of_the_last_step_is_lost(how):
    def body(rank):
        model = broken(rank, 1)
        with pytest.raises(tamis.Error, match="NaN or Inf"):
            getattr(model.opt.tamis, how)()
        if how == "state_dict":
            assert own(model.opt.tamis.state_dict())["steps"] == 2  # said once; it can be saved
        assert "nccl" in repr(model.opt.tamis) or how == "close"
        model.opt.tamis.close()

    run(body)


def test_told_by_stats_on_one_rank_it_is_still_raised_on_all():
    def body(rank):
        model = broken(rank, 1)
        if rank == 0:
            with pytest.raises(tamis.Error, match="NaN or Inf"):
                model.opt.tamis.stats()
        model.backward(2)
        with pytest.raises(tamis.Error, match="NaN or Inf"):
            model.opt.step()
        model.opt.close()

    run(body)


def test_skipped_steps_are_counted():
    def body(rank):
        model = Model(rank, nonfinite="skip")
        for step in range(4):
            model.backward(step, factor=NAN if step == 1 else 1.0)
            model.opt.step()
        found = model.opt.tamis.stats()["total"]
        model.opt.close()
        return found["steps"], found["lost_steps"]

    assert run(body) == [(4, 1)] * RANKS


def test_who_drives_and_why():
    def body(rank):
        model = Model(rank)
        found = [model.opt.tamis.stats()["driver"], repr(model.opt.tamis)]
        model.opt.close()
        model = Model(rank, scheme="deft")
        row = model.opt.tamis.stats()
        found += [row["driver"], row["driver_reason"], repr(model.opt.tamis)]
        for step in range(2):
            model.backward(step)
            model.opt.step()
        found.append(model.values())
        model.opt.close()
        return found

    rows = run(body)
    for row in rows:
        assert row[0] == "device" and "driven by the device" in row[1]
        assert row[2] == "host" and "known only within a step" in row[3] and row[3] in row[4]
    same([row[5] for row in rows], host(2, scheme="deft"))


# -- torch's process group ---------------------------------------------------------------------


@pytest.mark.parametrize("device, several, wanted", [
    (True, True, "cpu:gloo,cuda:nccl"), (False, True, "gloo"), (True, False, "gloo"),
])
def test_a_process_group_for_tensors_of_both_kinds(monkeypatch, device, several, wanted):
    made = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True, raising=False)
    monkeypatch.delattr(dist.Backend, "backend_capability", raising=False)
    if several:
        monkeypatch.setattr(dist.Backend, "backend_capability", {}, raising=False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: made.append(backend))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    tamis.init_process_group()
    tamis.init_process_group("mpi")
    assert made == [wanted, "mpi"]
