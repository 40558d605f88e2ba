# SPDX-License-Identifier: MIT
"""torch's process groups and CUDA: one that is not all ranks gets NCCL, and what is made for it
disturbs nobody else; parameters on devices are broadcast and compared over the default one. The
fake NCCL joins threads of one process, so each group has one rank."""

import datetime

import pytest
import ranks
import stand_in
import tamis
import tamis.torch
import torch
import torch.distributed as dist
from tamis import launch
from tamis.torch import _comm, _ranks

CUDA = torch.device("cuda", 0)


def made(group, transport="auto", number=1):
    return _ranks._of_subgroup(group, number, transport, 20.0, CUDA)


def case_one_group_of_two():
    groups = [dist.new_group([rank], backend="gloo") for rank in range(2)]
    found = []
    if dist.get_rank() == 0:
        for transport in ("auto", "nccl", "torch"):
            comms = made(groups[0], transport, 2)
            found.append([(comm.transport, comm.nranks) for comm in comms])
            for comm in comms:
                comm.close()
                _comm.leave(comm)
        found.append(ranks.told(lambda: made(groups[0], "mpi"))[0])
        comm = tamis.torch.carrier(groups[0], 20.0, device="cuda")
        found.append((comm.transport, comm.nranks))
        comm.close()
        with pytest.MonkeyPatch.context() as patch:  # under mpirun, which launched all ranks
            patch.setattr(launch, "choose", lambda *_: launch.Choice("mpi", "it launched"))
            (comm,) = made(groups[0])
        found.append((comm.transport, comm.nranks))
        comm.close()
    later = dist.new_group(backend="gloo")  # of all, who count the same
    sum_ = torch.ones(1)
    dist.all_reduce(sum_, group=later)
    return found, sum_.item()


def case_carriers_with_and_without_a_group():
    """The group that carrier() makes is destroyed when all have connected, that of the caller is
    not."""
    mine = [dist.new_group([rank], backend="gloo") for rank in range(2)][dist.get_rank()]
    asked, left = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "new_group", lambda **options: asked.append(options) or mine)
        patch.setattr(dist, "destroy_process_group", left.append)
        given = tamis.torch.carrier(mine, 20.0, device="cuda")
        kept = list(left)
        own = tamis.torch.carrier(None, 20.0, device="cuda")
    for comm in (given, own):
        assert (comm.transport, comm.nranks) == ("nccl", 1)
        comm.close()
    wanted = dict(backend="gloo", timeout=datetime.timedelta(seconds=20))
    return kept == [], left == [mine], asked == [wanted], len(_comm._gathers)


LATE = "[../gloo/tcp/buffer.cc:81] Timed out waiting 1ms for recv. This is typically another rank"
GONE = "[../gloo/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:80"


def case_a_rendezvous_that_fails():
    """gloo's own words are the cause, and the ranks have left that group."""
    found = []
    for words in (LATE, GONE):
        with pytest.MonkeyPatch.context() as patch:

            def lost(*_, **__):
                raise RuntimeError(words)

            patch.setattr(dist, "all_gather_into_tensor", lost, raising=False)
            with pytest.raises(tamis.Error) as caught:
                tamis.torch.carrier(dist.group.WORLD, 20.0, device="cuda")
        cause = caught.value.__cause__
        found.append((caught.value.status, type(cause).__name__, str(cause)))
    return found, len(_comm._gathers)


def case_a_torch_whose_gloo_gathers_into_one_tensor():
    """It is called once for each gather, and nothing else is."""
    calls, gather = [], dist.all_gather

    def into_one(whole, part, group):
        calls.append(part.numel())
        gather(list(whole.view(2, -1)), part, group=group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_gather_into_tensor", into_one, raising=False)
        patch.setattr(dist, "all_gather", None)
        comm = tamis.torch.carrier(dist.group.WORLD, 20.0)
        one = torch.full((3,), 5.0 + dist.get_rank())
        tamis.torch.broadcast_parameters([one], comm)
        comm.close()
        _comm.leave(comm)
    return len(calls) > 0, one.tolist()


class Model(torch.nn.Module):
    def __init__(self, value, index):
        super().__init__()
        self.w = stand_in.parameter(torch.full((7,), value), index)
        self.register_buffer("count", stand_in.parameter(torch.full((2,), value), index).detach())


def case_parameters_on_devices():
    """Rank 1's model on a device that is not current becomes rank 0's, buffers included."""
    rank = dist.get_rank()
    with pytest.MonkeyPatch.context() as patch:
        stand_in.install(patch)
        model = Model(float(rank), rank)
        before = tamis.torch.replicas_identical(model)
        tamis.torch.broadcast_parameters(model)
        found = [before, tamis.torch.replicas_identical(model)]
        found += [model.w.cpu().tolist(), model.count.cpu().tolist()]
        one = stand_in.parameter(torch.full((3,), 5.0 + rank), rank)
        tamis.torch.broadcast_parameters(one)
        return found + [one.cpu().tolist()]


def placed(data, device):
    return stand_in.empty(data.shape, data.dtype, device.index).copy_(data)


def case_a_default_group_over_nccl_alone():
    """It takes tensors of devices only: those of the parameter's own, whichever is current."""
    places = []
    with pytest.MonkeyPatch.context() as patch:
        stand_in.install(patch)
        patch.setattr(torch.Tensor, "to", placed)
        patch.setattr(dist, "get_backend", lambda: "nccl")
        patch.setattr(dist, "broadcast", lambda data, _: places.append(str(data.device)))
        one = stand_in.parameter(torch.full((3,), 5.0), 1)
        data = _comm._broadcast(_comm._bytes_of(one), one.device)
        return places, data.device.type, bytes(data.tolist()) == b"\0\0\xa0\x40" * 3


CASES = ["case_one_group_of_two", "case_parameters_on_devices",
         "case_a_default_group_over_nccl_alone", "case_carriers_with_and_without_a_group",
         "case_a_rendezvous_that_fails", "case_a_torch_whose_gloo_gathers_into_one_tensor"]


@pytest.fixture(scope="module")
def results():
    return ranks.run(__file__, CASES, 2)


def test_parameters_on_devices_are_broadcast_and_compared(results):
    wanted = [False, True, [0.0] * 7, [0.0] * 2, [5.0] * 3]
    assert ranks.values(results, "case_parameters_on_devices") == [wanted, wanted]


def test_a_default_group_over_nccl_alone(results):
    found = ranks.values(results, "case_a_default_group_over_nccl_alone")
    assert found == 2 * [(["cuda:1"], "cpu", True)]


def test_a_group_of_some_ranks_gets_nccl_and_later_groups_are_made(results):
    first, second = ranks.values(results, "case_one_group_of_two")
    assert first[0][:3] == [2 * [("nccl", 1)], 2 * [("nccl", 1)], 2 * [("callback", 1)]]
    assert first[0][3:] == ["ValueError", ("nccl", 1), ("nccl", 1)]
    assert first[1] == second[1] == 2.0


def test_a_group_of_its_own_is_destroyed_when_all_have_connected(results):
    found = ranks.values(results, "case_carriers_with_and_without_a_group")
    assert found == 2 * [(True, True, True, 0)]


def test_a_rendezvous_that_fails_has_the_words_of_gloo(results):
    late = ("TAMIS_E_TIMEOUT", "TimeoutError",
            "torch's group of 2 ranks: Timed out waiting 1ms for recv")
    gone = ("TAMIS_E_TRANSPORT", "RuntimeError",
            "torch's group of 2 ranks: Connection closed by peer [127.0.0.1]:80")
    assert ranks.values(results, "case_a_rendezvous_that_fails") == 2 * [([late, gone], 0)]


def test_a_gather_into_one_tensor(results):
    found = ranks.values(results, "case_a_torch_whose_gloo_gathers_into_one_tensor")
    assert found == 2 * [(True, [5.0] * 3)]
