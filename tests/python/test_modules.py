# SPDX-License-Identifier: MIT
"""What `import tamis` loads; _mpi.so and the library in _core: one instance, of one version."""

import os
import pathlib
import subprocess

import pytest

import jobs
import tamis
from jobs import needs_mpi

pytest.importorskip("numpy")

LIBRARY = os.environ.get("LIBTAMIS")  # libtamis.so, when ctest runs this

# A step over _mpi.so; then a sentence that _mpi.so writes and _core reads: they share memory.
STEP = """
import numpy
import tamis
core = tamis._core
comm = core.Comm.mpi(tamis.mpi_module())
reducer = core.Reducer(comm, core.Layout([("w", 100)]), density=0.1)
gradient = numpy.arange(100, dtype=numpy.float32) + comm.rank
reducer.start(gradient)
reducer.wait()
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "_core.abi3.so" in line}
reducer.close()
comm.close()
core.mpi_finalize()
try:
    core.Comm.mpi(tamis.mpi_module())
except core.Error as error:
    assert "already finalised" in str(error), error
else:
    raise AssertionError("a communicator over an MPI that is finalised")
print(numpy.count_nonzero(gradient), len(loaded))
"""


# Half of the time of an import; sets and recoveries of elastic runs alone need them.
IMPORT = """
import sys
before = set(sys.modules)
import tamis
heavy = {"torch", "numpy", "ctypes", "json", "hashlib", "socket", "tamis.elastic", "tamis.group"}
print(sorted(heavy & (set(sys.modules) - before)))
names = {}
exec("from tamis import *", names)
missing = [name for name in tamis.__all__ if name not in names or name not in dir(tamis)]
import tamis.elastic
same = tamis.run_elastic is tamis.elastic.run_elastic
print(missing, same, hasattr(tamis, "elastics"), tamis.group.__name__)
"""


def test_import_leaves_what_is_heavy_for_later():
    job = jobs.alone(IMPORT)
    assert (job.status, job.lines) == (0, ["[]", "[] True False tamis.group"]), job


def test_a_feature_is_there_where_its_module_is():
    there = {feature["name"]: feature["available"] for feature in tamis.features()}
    assert there["mpi"] == (tamis.mpi_module() is not None)
    assert there["nccl"] == (tamis.nccl_module() is not None)


@needs_mpi
def test_the_module_uses_the_core_that_python_loaded():
    job = jobs.mpirun(2, STEP)
    assert (job.status, job.lines) == (0, ["10 1", "10 1"]), job


@needs_mpi
@pytest.mark.skipif(not LIBRARY or ".so" not in LIBRARY, reason="no shared libtamis is named")
def test_a_libtamis_loaded_besides_is_not_mixed_up_with_it():
    load = "import ctypes, sys\nctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
    job = jobs.mpirun(2, load + STEP, LIBRARY)
    assert (job.status, job.lines) == (0, ["10 1", "10 1"]), job


@needs_mpi
def test_a_module_of_another_version_is_refused(tmp_path):
    node = "TAMIS_PYTHON_" + ".".join(map(str, tamis.version()))
    content = pathlib.Path(tamis.mpi_module()).read_bytes()
    assert node.encode() in content
    other = tmp_path / "_mpi.so"
    other.write_bytes(content.replace(node.encode(), node.encode()[:-1] + b"z"))
    job = jobs.alone(
        "import sys, tamis\n"
        "try: tamis._core.Comm.mpi(sys.argv[1])\n"
        "except tamis.Error as error: print(error.status, error)",
        other,
    )
    assert job.status == 0, job
    assert job.out.startswith("TAMIS_E_UNSUPPORTED") and node[:-1] + "z" in job.out, job


@needs_mpi
def test_an_mpi_that_the_program_initialised_is_left_to_it():
    needed = subprocess.run(
        ["readelf", "-d", tamis.mpi_module()], stdout=subprocess.PIPE, check=True, text=True
    )
    library = [w.strip("[]") for w in needed.stdout.split() if w.startswith("[libmpi")]
    job = jobs.mpirun(
        2,
        """
import ctypes, sys, tamis
mpi = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
core = tamis._core
states = [core.mpi_state()]
assert mpi.MPI_Init(None, None) == 0
comm = core.Comm.mpi(tamis.mpi_module())
states += [core.mpi_state(), str(comm.nranks)]
comm.close()
core.mpi_finalize()
states.append(core.mpi_state())
assert mpi.MPI_Finalize() == 0
states.append(core.mpi_state())
print(*states)
""",
        library[0],
    )
    assert (job.status, job.lines) == (0, ["absent foreign 2 foreign finalized"] * 2), job
