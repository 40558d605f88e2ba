# SPDX-License-Identifier: MIT
"""torch's process groups and CUDA: one that is not all ranks gets NCCL, and what is made for it
disturbs nobody else; parameters on devices are broadcast and compared over the default one. The
fake NCCL joins threads of one process, so each group has one rank."""

import pytest
import ranks
import stand_in
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
    later = dist.new_group(backend="gloo")  # of all, who count alike
    sum_ = torch.ones(1)
    dist.all_reduce(sum_, group=later)
    return found, sum_.item()


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
         "case_a_default_group_over_nccl_alone"]


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
