# SPDX-License-Identifier: MIT
"""NumPy alone: arrays as gradients, over MPI and in one process."""

import pytest

np = pytest.importorskip("numpy")

import tamis

import jobs
from jobs import needs_mpi

MEANS = """
import sys, numpy as np, tamis
comm = tamis.comm("mpi")
reducer = tamis.Reducer(comm, tamis.Layout([("w", 512), ("b", 88)]), scheme="{scheme}", density=0.1)
random = np.random.default_rng(comm.rank)
others = [np.random.default_rng(rank) for rank in range(comm.nranks)]
given = np.zeros((comm.nranks, 600), dtype=np.float64)
got = np.zeros(600)
for step in range(20):
    gradients = [r.standard_normal(600).astype(np.float32) for r in others]
    given += gradients
    mine = gradients[comm.rank].copy()
    if step % 2:
        reducer.start(mine)
    else:
        reducer.start([mine[:512], mine[512:]])
    reducer.wait()
    got += mine
    count = np.count_nonzero(mine)
    assert count == ({count}), (step, count)
# Nothing is lost: what was given is in the results, or in the residual of a rank.
left = np.zeros(600, dtype=np.float32)
if "{scheme}" != "dense":
    reducer.residual(left)
total = np.concatenate([got * comm.nranks, left])
print(" ".join(x.hex() for x in (got * comm.nranks).tolist()))
np.save(sys.argv[1] + f"/left{{comm.rank}}.npy", left)
np.save(sys.argv[1] + f"/got{{comm.rank}}.npy", got)
np.save(sys.argv[1] + "/given.npy", given) if comm.rank == 0 else None
"""


@needs_mpi
@pytest.mark.parametrize("scheme,count", [("tamis", 60), ("dense", 600)])
def test_means_are_right_under_mpirun(tmp_path, scheme, count):
    job = jobs.mpirun(2, MEANS.format(scheme=scheme, count=count), tmp_path)
    assert job.status == 0, job
    got = [np.load(tmp_path / f"got{rank}.npy") for rank in range(2)]
    left = [np.load(tmp_path / f"left{rank}.npy") for rank in range(2)]
    given = np.load(tmp_path / "given.npy")
    assert got[0].tobytes() == got[1].tobytes()
    np.testing.assert_allclose(got[0] * 2 + left[0] + left[1], given.sum(axis=0), atol=1e-4)
    assert np.any(left[0]) == (scheme == "tamis")


def test_a_process_alone_gets_its_own_largest_entries():
    gradient = np.arange(1000, dtype=np.float32)
    reducer = tamis.Reducer(tamis.comm("local"), tamis.Layout([("w", 1000)]), density=0.01)
    reducer.start(gradient)
    reducer.wait()
    assert np.flatnonzero(gradient).tolist() == list(range(990, 1000))
    assert gradient[990:].tolist() == list(range(990, 1000))
    reducer.close()


def test_the_package_needs_neither_numpy_nor_torch():
    job = jobs.alone(
        """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # importing them fails
import tamis
print(tamis.comm().nranks, tamis.__version__ == ".".join(map(str, tamis.version())))
"""
    )
    assert (job.status, job.lines) == (0, ["1 True"]), job
