# SPDX-License-Identifier: MIT
#
# test: slow
"""How a process leaves: MPI is finalised after good work; after an exception nobody waits."""

import time

import pytest

import jobs
from jobs import needs_mpi

WORK = """
import atexit, sys, numpy, tamis
comm = tamis.comm("mpi")
reducer = tamis.Reducer(comm, tamis.Layout([("w", 1000)]))
gradient = numpy.ones(1000, dtype=numpy.float32)
def step():
    reducer.start(gradient)
    reducer.wait()
step()
"""
SAY_STATE = "atexit.register(lambda: print(tamis._core.mpi_state(), flush=True))\n"
# Registered before tamis, so called after it has left.
SAY_STATE_LAST = """
import atexit
def last():
    import tamis
    print(tamis._core.mpi_state(), flush=True)
atexit.register(last)
"""

pytest.importorskip("numpy")


@needs_mpi
@pytest.mark.parametrize(
    "end",
    ["", "reducer.close(); comm.close()\n", "reducer.start(gradient)\n", "del reducer, comm\n"],
    ids=["open", "closed", "in a step", "forgotten"],
)
def test_mpi_is_finalised_after_good_work(end):
    job = jobs.mpirun(2, SAY_STATE_LAST + WORK + end)
    assert (job.status, job.lines) == (0, ["finalized"] * 2), job
    heard = "destroyed between start and wait" in job.err
    assert heard == ("start" in end) and (heard or not job.err), job


@needs_mpi
def test_mpi_of_somebody_else_is_left_to_him():
    pytest.importorskip("mpi4py")
    job = jobs.mpirun(2, "from mpi4py import MPI\n" + WORK + SAY_STATE)
    assert (job.status, job.lines) == (0, ["foreign"] * 2), job


@needs_mpi
def test_a_forked_child_that_leaves_touches_nothing_of_its_parent():
    fork = """
import os
child = os.fork()
if child == 0:
    try:
        step()
    except tamis.Error as error:
        assert error.status == "TAMIS_E_STATE" and "forked" in str(error), error
        sys.exit(7)
    sys.exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
step()
"""
    job = jobs.mpirun(2, SAY_STATE_LAST + WORK + fork)
    assert job.status == 0, job
    assert sorted(job.lines) == ["finalized"] * 2 + ["own"] * 2, job


@needs_mpi
def test_an_exception_on_one_rank_ends_the_job_soon():
    begin = time.monotonic()
    job = jobs.mpirun(3, WORK + "if comm.rank == 1: raise ValueError('rank 1 fails')\nstep()\n")
    assert job.status not in (0, 124), job
    assert "rank 1 fails" in job.err
    assert time.monotonic() - begin < 30, job


@needs_mpi
def test_a_rank_that_leaves_early_costs_the_others_their_deadline():
    job = jobs.mpirun(
        2, WORK + "if comm.rank == 1: sys.exit(0)\nstep()\n", TAMIS_TIMEOUT_MS=2000
    )
    assert job.status not in (0, 124), job
    assert "TIMEOUT" in job.err or "did not" in job.err, job


def test_an_exception_keeps_its_exit_status(tmp_path):
    job = jobs.alone("import tamis\ncomm = tamis.comm()\nraise ValueError('it fails')\n")
    assert job.status == 1 and "it fails" in job.err, job


def test_the_launcher_ends_all_when_one_fails(tmp_path):
    begin = time.monotonic()
    script = (
        "import os, sys, time\n"
        "sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(60)\n"
    )
    job = jobs.env_init(3, script, folder=tmp_path)
    assert job.status == 7 and "rank 1" in job.err, job
    assert time.monotonic() - begin < 20
