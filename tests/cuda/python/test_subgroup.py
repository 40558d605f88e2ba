# SPDX-License-Identifier: MIT
"""A process group that is not all ranks gets NCCL, and what is made for it disturbs nobody else. The
fake NCCL joins threads of one process, so each group has one rank."""

import ranks
import tamis.torch
import torch
import torch.distributed as dist
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
    later = dist.new_group(backend="gloo")  # of all, who count alike
    sum_ = torch.ones(1)
    dist.all_reduce(sum_, group=later)
    return found, sum_.item()


def test_a_group_of_some_ranks_gets_nccl_and_later_groups_are_made():
    first, second = ranks.values(ranks.run(__file__, ["case_one_group_of_two"], 2), "case_one_group_of_two")
    assert first[0][:3] == [2 * [("nccl", 1)], 2 * [("nccl", 1)], 2 * [("callback", 1)]]
    assert first[0][3:] == ["ValueError", ("nccl", 1)]
    assert first[1] == second[1] == 2.0
