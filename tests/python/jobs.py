# SPDX-License-Identifier: MIT
"""Jobs of several processes for tests: under mpirun, and env:// as torchrun starts them."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

import tamis

TREE = pathlib.Path(__file__).resolve().parents[2]

needs_mpi = pytest.mark.skipif(
    tamis.mpi_module() is None or shutil.which("mpirun") is None,
    reason="built without MPI, or mpirun is missing",
)

# What carries gradients where torch.distributed brings the ranks together.
HAS_UCX = any(row["name"] == "ucx" and row["available"] for row in tamis.features())
CARRIED = "ucx" if HAS_UCX else "callback"
CHOSEN = "ucx"  # where a rank has none, that is found out together
needs_ucx = pytest.mark.skipif(not HAS_UCX, reason="built without UCX")

# What launchers and earlier tests may have left; a job's environment begins without it.
_LAUNCHERS = ("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_", "MASTER_", "TAMIS_")
_EXACT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MPI_LOCALRANKID")
# Unbuffered, print writes a line and its end apart, and those of two ranks may be mixed.
_EXACT += ("PYTHONUNBUFFERED",)


class Job:
    def __init__(self, done):
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def lines(self):
        return sorted(self.out.splitlines())

    def __repr__(self):
        return f"status {self.status}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


def environment(**more):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_LAUNCHERS) and name not in _EXACT
    }
    package = str(pathlib.Path(tamis.__file__).absolute().parents[1])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [package, kept.get("PYTHONPATH")]))
    kept.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    kept.update({name: str(value) for name, value in more.items()})
    return kept


def _run(command, seconds, env):
    """Ends after `seconds` whatever happens: a job that hangs fails its test.

    Jobs of Open MPI that share a TMPDIR may fail: tests/support/mpirun.sh.
    """
    with tempfile.TemporaryDirectory(prefix="tamis-job-") as folder:
        return Job(
            subprocess.run(
                ["timeout", "-k", "5", str(seconds), *map(str, command)],
                env=dict(environment(**env), TMPDIR=folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )


def _python(script, arguments):
    """A file, or lines of Python."""
    if isinstance(script, pathlib.Path):
        return [sys.executable, script, *arguments]
    return [sys.executable, "-c", script, *arguments]


def alone(script, *arguments, seconds=300, **env):
    return _run(_python(script, arguments), seconds, env)


def mpirun(nranks, script, *arguments, seconds=300, **env):
    wrapper = TREE / "tests" / "support" / "mpirun.sh"
    return _run(["sh", wrapper, nranks, seconds, *_python(script, arguments)], 3 * seconds + 10, env)


def env_init(nranks, script, *arguments, seconds=300, folder=None, **env):
    """With RANK, WORLD_SIZE, ... set. Lines of Python are written into `folder` first."""
    if not isinstance(script, pathlib.Path):
        path = pathlib.Path(folder) / "job.py"
        path.write_text(script)
        script = path
    launcher = [sys.executable, TREE / "examples" / "launch.py", "-n", nranks]
    limit = ["--timeout", seconds]
    return _run([*launcher, *limit, script, *arguments], seconds + 10, env)


# --- scripts of many tests


def say(arguments=""):
    """Each rank prints its communicator."""
    return f"""
import tamis
comm = tamis.comm({arguments})
print(comm.transport, comm.rank, comm.nranks, flush=True)
"""


def say_error(arguments=""):
    """Each rank prints the Error that it gets. Uncaught, one would end the others before theirs."""
    return f"""
import tamis
try:
    tamis.comm({arguments})
except tamis.Error as error:
    print(error, flush=True)
"""
