# SPDX-License-Identifier: MIT
"""torch's DistributedDataParallel with its model on CUDA devices: the bits of the same steps on the
host, whatever DDP does with its buckets, and errors that backward() raises."""

import pytest
import stand_in
import tamis
import tamis.torch
import torch
import torch.distributed as dist
from ddp import both, on, train, world
from rig import NAN, RANKS, cuda, here, run, same
from tamis.torch import _comm
from torch.distributed.algorithms.join import Join


@pytest.mark.parametrize("wrap", [
    {}, dict(bucket_cap_mb=25), dict(static_graph=True), dict(gradient_as_bucket_view=True),
])
def test_ddp_has_the_bits_of_the_host(wrap):
    found, wanted = both(train, wrap=wrap)
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[1][:-1])


def test_buckets_are_located_anew_when_ddp_rebuilds_them():
    def body(one):
        rows = []
        for step in range(3):
            one.backward(step)
            rows.append((len(one.state._cache), one.state.stats()["driver"]))
        one.end()
        return rows

    first, second = on(body, True)
    assert first == second == [(1, "device"), (4, "device"), (4, "device")]


@pytest.mark.parametrize("options", [dict(clip_norm=0.05), dict(overlap=False), dict(warmup=2)])
def test_what_leaves_in_the_last_hook(options):
    same(*both(train, **options))


def test_two_dtypes_under_ddp():
    found, wanted = both(train, second=torch.float16)
    same([one[:-1] for one in found], [one[:-1] for one in wanted])


def test_micro_batches_leave_once():
    def body(one):
        for step in range(3):
            one.clear()
            with one.ddp.no_sync():
                one.backward(10 * step)
            one.backward(10 * step + 1)
            one.opt.step()
        assert one.state.steps == 3
        return one.end()

    same(*both(body))


def test_a_rank_that_has_run_out_of_inputs():
    """Rank 1 gives zeros of its own in the last steps, and nothing that it held is lost."""

    def body(one):
        with Join([one.ddp]):
            for step in range(4 if one.rank == 0 else 2):
                one.clear()
                one.backward(step)
                one.opt.step()
                one.quiesce()  # at the end Join sends the parameters of one rank
        assert one.state.steps == 4
        return one.end()

    found, wanted = both(body)
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[1][:-1])


# -- errors --------------------------------------------------------------------------------------


def test_backward_raises_a_step_late_on_all_ranks_and_training_goes_on():
    def body(one):
        one.backward(0)
        one.opt.step()
        before = one.values()
        one.clear()
        one.backward(1, NAN if one.rank == 1 else 1.0)  # which cannot know it yet
        one.opt.step()
        assert torch.equal(before, one.values())
        one.clear()
        with pytest.raises(tamis.Error, match=r"step 1: .*first on rank 1") as caught:
            one.backward(2)
        assert caught.value.lost == "step" and one.state.error is None
        one.opt.step()  # of the step that told it
        one.clear()
        one.backward(3)
        one.opt.step()
        assert one.state.stats()["total"]["lost_steps"] == 1
        return one.end()[:-1]

    first, second = on(body, True)
    assert torch.equal(first, second) and first.isfinite().all()


def test_join_raises_a_step_late_where_there_is_no_backward_pass():
    def body(one):
        with pytest.raises(tamis.Error, match="NaN or Inf"):
            with Join([one.ddp]):
                for step in range(3 if one.rank == 0 else 1):
                    one.backward(step, NAN if step == 1 else 1.0)
        one.state.close()
        return one.state.error

    assert on(body, True) == [None, None]


def test_a_backward_pass_that_ended_early_ends_the_state():
    def body(one):
        one.backward(0)
        one.state.mark(next(iter(one.state._cache.values()))[1][0])  # as if one gradient had come alone
        with pytest.raises(RuntimeError, match="the ranks are out of step: begin again"):
            one.backward(1)
        with pytest.raises(RuntimeError, match="the ranks are out of step"):
            one.backward(2)
        one.state.close()

    on(body, True)


def test_a_group_of_some_ranks_connects_in_itself(monkeypatch):
    """Two of four ranks have a DDP of their own: its communicator is over NCCL, of these two."""
    size = lambda group=None: 2 * RANKS if group is None else group.size()
    monkeypatch.setattr(dist, "get_world_size", size)
    monkeypatch.setattr(_comm, "_carrier_among", lambda group, limit_s: here.carriers.pop())
    gone = []
    monkeypatch.setattr(_comm, "leave", lambda comm: gone.append(comm.transport))

    def body(one):
        assert (one.state.comm.transport, one.state.comm.nranks) == ("nccl", RANKS)
        assert stand_in.current_device() == 0
        return train(one)

    found = on(body, True)
    assert gone.count("local") == RANKS  # each rank has left the local communicator
    assert torch.equal(found[0][:-1], found[1][:-1])
