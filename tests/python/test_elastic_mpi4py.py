# SPDX-License-Identifier: MIT
"""tamis.run_elastic over a caller's all-gather, that of mpi4py, in processes: one stops calling."""

import pathlib

import numpy as np
import pytest

pytest.importorskip("mpi4py")

import elastic_support
import jobs

JOB = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from mpi4py import MPI
import numpy as np
import elastic_support, tamis

folder, world = sys.argv[2], MPI.COMM_WORLD
stopped = os.path.join(folder, "stopped")
abandoned = []

def network(comm):
    def allgather(send, recv):
        mine, all_of = bytearray(send), bytearray(len(recv))
        request, polls = comm.Iallgather(mine, all_of), 0
        while not request.Test():
            # A rank that is merely slow is waited for, and so is what is still on its way.
            polls += comm.size == 3 and os.path.exists(stopped)
            if polls > 1000:
                abandoned.append((request, mine, all_of))  # MPI may still write there
                raise TimeoutError("not all ranks came to the all-gather")
            time.sleep(0.001)
        recv[:] = all_of
    return allgather

def regroup(comm):
    left = [0, 2]
    return left, network(world.Create_group(world.group.Incl(left)))

def before(state):
    if state.step == 4 and world.rank == 1:
        open(stopped, "w").close()
        world.Barrier()  # stops calling, until all is over
        os._exit(0)

run = elastic_support.Run(tamis.Comm.callback(world.rank, 3, network(world.Dup())))
w = tamis.run_elastic(run.train(8, before), run.state, regroup=regroup)
np.savez(os.path.join(folder, f"rank{world.rank}.npz"), w=w, gone=np.array(run.state.gone))
world.Barrier()
os._exit(0)  # MPI_Finalize would wait for what was abandoned
"""


@jobs.needs_mpi
def test_ranks_that_are_left_go_on_in_a_network_of_their_own(tmp_path):
    here = pathlib.Path(__file__).parent
    job = jobs.mpirun(3, JOB, here, tmp_path, seconds=120)
    found = [np.load(tmp_path / f"rank{rank}.npz") for rank in (0, 2)]
    expected = elastic_support.reference(3, [([0, 1, 2], 4), ([0, 2], 8)])
    for one in found:
        assert np.array_equal(one["w"], expected) and one["gone"].tolist() == [[1]], job
