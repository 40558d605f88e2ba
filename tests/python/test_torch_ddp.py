# SPDX-License-Identifier: MIT
#
# test: waits
"""DistributedDataParallel in tamis.run_elastic: the others go on when ranks are killed, in place,
as if these had left; what DDP cannot do then is refused."""

import signal
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist

import ddp_support
import ranks
from jobs import needs_ucx

import tamis
import tamis.torch

ENV = {"PYTHONPATH": f"{ranks.HERE.parent}:{':'.join(sys.path)}"}


def start(folder, kind, deaths, last, nranks):
    command = [sys.executable, ddp_support.__file__, str(folder), kind, deaths, last]
    return ranks.start(command, nranks, "env", 200, ENV)


@needs_ucx
@pytest.mark.parametrize(
    "nranks, kind, deaths, where",
    ranks.drawn(
        (3, "means", "7:1", "before"),
        (3, "AdamW", "1:0", "before"),  # when DDP would choose its buckets anew
        (3, "means", "4:0", "within"),
        (4, "AdamW", "5:2,8:0", "within"),
        (3, "means", "4:2", "hook"),
    ),
)
def test_the_others_go_on_when_ranks_are_killed(nranks, kind, deaths, where, tmp_path):
    alone = start(tmp_path, kind, deaths, str(nranks), 1)
    ended = ranks.finish(start(tmp_path, kind, deaths, where, nranks), 200)
    [(status, text)] = ranks.finish(alone, 200)
    assert status == 0, text
    dead = [int(one.split(":")[1]) for one in deaths.split(",")]
    for rank, (status, _) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank in dead else 0), ended
    expected = np.load(tmp_path / "reference.npy")
    for rank in set(range(nranks)) - set(dead):
        found = np.load(tmp_path / f"rank{rank}.npz")
        assert int(found["nranks"]) == nranks - len(dead)
        assert int(found["steps"]) == ddp_support.STEPS
        assert np.array_equal(found["w"], expected), ended


GROWS = """
import os, sys, time
import numpy as np, torch, tamis, tamis.torch
import ddp_support
folder, name, address = sys.argv[1:4]
torch.distributed.init_process_group("gloo")
name += str(torch.distributed.get_rank())
model = ddp_support.network(False)
if name == "new0":
    torch.nn.init.ones_(model[0].weight)
optimizer = ddp_support.inner("SGD", model)
ddp = torch.nn.parallel.DistributedDataParallel(model)
sparse = tamis.torch.attach(ddp, 0.1, optimizer, "gradient", timeout_s=60)
state = ddp_support.elastic_state("means", sparse.comm, sparse, model, optimizer)
def train(state):
    last = state.step + 10
    while state.comm.nranks < 3 or state.step < last:
        optimizer.zero_grad()
        ddp_support.loss(ddp, state).backward()
        optimizer.step()
        state.step += 1
        time.sleep(0.01 * (state.comm.nranks < 3))
        state.commit()
tamis.run_elastic(train, state, grow=address, join=name == "new0")
np.savez(f"{folder}/{name}.npz", w=ddp_support.flat(model), step=state.step)
print("well", flush=True)
os._exit(0)
"""


@needs_ucx
def test_a_newcomer_with_a_model_of_its_own_goes_on_with_the_others(tmp_path):
    address = f"127.0.0.1:{ranks.launch().free_port()}"
    processes = []
    for name, nranks in (("job", 2), ("new", 1)):
        command = [sys.executable, "-c", GROWS, str(tmp_path), name, address]
        processes += ranks.start(command, nranks, "env", 200, ENV)
    ended = ranks.finish(processes, 200)
    assert [status for status, _ in ended] == [0, 0, 0], ended
    found = [np.load(tmp_path / f"{name}.npz") for name in ("job0", "job1", "new0")]
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)
    assert len({int(one["step"]) for one in found}) == 1


@pytest.fixture
def alone():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield tamis.Comm.local(1)[0]
    dist.destroy_process_group()


def attached(comm, norm=False, **options):
    ddp = torch.nn.parallel.DistributedDataParallel(ddp_support.network(norm), **options)
    return ddp, tamis.torch.attach(ddp, 0.1, comm=comm)


def run(state, ddp, **options):
    """One step; a hook that was called twice for a gradient would fail."""

    def train(elastic):
        if elastic.step == 0:
            ddp_support.loss(ddp, elastic).backward()
            elastic.step += 1

    model = {"model": ddp.module}
    tamis.run_elastic(train, tamis.ElasticState(state.comm, model, reducers=[state]), **options)


@pytest.mark.parametrize(
    "words, options",
    [
        ("'?1.running_mean.* pass it (broadcast|forward_sync)_buffers=False", {"norm": True}),
        ("pass it find_unused_parameters=False", {"find_unused_parameters": True}),
        ("pass it static_graph=False", {"static_graph": True}),
    ],
)
def test_what_asks_ranks_that_may_be_gone_is_refused(words, options, alone):
    ddp, state = attached(alone, **options)
    with pytest.raises(ValueError, match=f"rank 0: .*{words}, or give run_elastic max_recov"):
        run(state, ddp)
    ddp_support.loss(ddp, tamis.ElasticState(alone, {})).backward()  # it is as it was
    with pytest.raises(ValueError, match=words):
        state.migrate(alone.shrink())
    state.close()


def test_sums_of_other_modules_and_hooks_by_hand_are_refused(alone):
    ddp, state = attached(alone, norm=True, broadcast_buffers=False)
    ddp.module = torch.nn.SyncBatchNorm.convert_sync_batchnorm(ddp.module)  # DDP wants a GPU for it
    with pytest.raises(ValueError, match="SyncBatchNorm sums over all ranks by itself"):
        run(state, ddp)
    state.close()
    ddp = torch.nn.parallel.DistributedDataParallel(ddp_support.network(False))
    state = tamis.torch.SparseState(ddp, 0.1, comm=tamis.Comm.local(1)[0])
    ddp.register_comm_hook(state, tamis.torch.sparse_hook)
    with pytest.raises(ValueError, match="only where tamis.torch.attach has made it"):
        run(state, ddp)
    run(state, ddp, max_recoveries=0)
    assert ddp.process_group.size() == 1 and ddp.process_group is dist.group.WORLD
    state.close()


@pytest.mark.parametrize("view", [False, True])
def test_ddp_begins_anew_as_the_object_it_was(view, alone):
    ddp, state = attached(alone, gradient_as_bucket_view=view, bucket_cap_mb=1)
    calls = []
    ddp.register_forward_hook(lambda *_: calls.append(1))
    ddp.eval()
    run(state, ddp)
    assert calls == [1] and not ddp.training and ddp.bucket_bytes_cap == 1 << 20
    assert any(p.grad is not None and p.grad.any() for p in ddp.parameters())
    smaller = alone.shrink()
    state.migrate(smaller)
    assert [p.grad for p in ddp.parameters()] == [None] * 6 and state.steps == 1
    for _ in range(3):
        ddp_support.loss(ddp, tamis.ElasticState(smaller, {})).backward()
    assert state.steps == 4 and state.comm is smaller
    state.close()
