# SPDX-License-Identifier: MIT
#
# test: waits
"""Over UCX ranks that no MPI started live on when others are killed: tamis.run_elastic, in place."""

import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import elastic_support
import ranks
from jobs import needs_ucx

pytestmark = needs_ucx

DIES = """
import os, signal, sys, time
import numpy as np, torch, tamis
import elastic_support
folder, dying = sys.argv[1], [int(rank) for rank in sys.argv[2].split(",")]
torch.distributed.init_process_group("gloo")
me = torch.distributed.get_rank()
def before(state):
    if me in dying and state.step == 7 + 4 * dying.index(me):
        time.sleep(1)  # the others have made the step before
        os.kill(os.getpid(), signal.SIGKILL)
run = elastic_support.Run(tamis.comm(timeout_s=60))
assert run.state.comm.transport == "ucx"
w = tamis.run_elastic(run.train(20, before), run.state)
np.savez(f"{folder}/rank{me}.npz", w=w, recoveries=run.state.recoveries,
         nranks=run.state.comm.nranks)
print("well", flush=True)
os._exit(0)  # torch's store may have died with rank 0
"""


@pytest.mark.parametrize("nranks, dying", [(2, "1"), (3, "0"), (4, "2,0"), (4, "3,1")])
def test_the_others_go_on_when_ranks_are_killed(nranks, dying, tmp_path):
    command = [sys.executable, "-c", DIES, str(tmp_path), dying]
    env = {"PYTHONPATH": f"{ranks.HERE.parent}:{':'.join(sys.path)}"}
    ended = ranks.finish(ranks.start(command, nranks, "env", 200, env), 200)
    dead = [int(rank) for rank in dying.split(",")]
    for rank, (status, text) in enumerate(ended):
        assert status == (-signal.SIGKILL if rank in dead else 0), ended
    living = [rank for rank in range(nranks) if rank not in dead]
    found = [np.load(tmp_path / f"rank{rank}.npz") for rank in living]
    for one in found:
        assert int(one["nranks"]) == len(living) and int(one["recoveries"]) >= len(dead)
        assert np.array_equal(one["w"], found[0]["w"])
    left = [[rank for rank in range(nranks) if rank not in dead[: n + 1]] for n in range(len(dead))]
    ends = [7 + 4 * n for n in range(len(dead))] + [20]
    stages, before = [(list(range(nranks)), ends[0])], list(range(nranks))
    for numbers, end in zip(left, ends[1:]):
        stages.append(([before.index(rank) for rank in numbers], end))
        before = numbers
    assert np.array_equal(found[0]["w"], elastic_support.reference(nranks, stages))


LOADS = """
import faulthandler, sys
sys.path.insert(0, sys.argv[1])
def caught():
    with open("/proc/self/status") as status:
        return next(line for line in status if line.startswith("SigCgt"))
faulthandler.enable()
before = caught()
from tamis import _vendor
_vendor.load_ucx()
print(caught() == before, _vendor._is_loaded("libucp.so.0"))
"""


def test_ucx_of_the_package_index_is_loaded_and_takes_no_signals(tmp_path):
    """A package of links to the system's stands for it."""
    found = [p for p in pathlib.Path("/usr/lib").glob("*/libuc[ps].so.0")]
    if len(found) != 2:
        pytest.skip("no UCX of the system in /usr/lib")
    library = tmp_path / "libucx" / "lib"
    library.mkdir(parents=True)
    (tmp_path / "libucx" / "__init__.py").touch()
    for path in found:
        (library / path.name).symlink_to(path)
    out = subprocess.run([sys.executable, "-c", LOADS, tmp_path], capture_output=True, text=True)
    assert out.stdout.split() == ["True", "True"], out


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # it cannot be imported
import numpy as np, tamis
comm = tamis.comm(timeout_s=60)
assert (comm.transport, comm.nranks) == ("ucx", 3), comm
grad = np.full(64, 1 + comm.rank, np.float32)
reducer = tamis.Reducer(comm, tamis.Layout([("w", 64)]), scheme="dense", density=1.0)
reducer.start(grad)
reducer.wait()
assert (grad == 2).all() and comm.allgather(bytes([comm.rank])) == [b"\\0", b"\\1", b"\\2"]
assert comm.broadcast(b"root" if comm.rank == 1 else b"", 1) == b"root"
print("well")
"""


def test_ranks_without_torch_find_each_other_at_an_address():
    env = {"TAMIS_RENDEZVOUS": f"127.0.0.1:{ranks.launch().free_port()}"}
    command = [sys.executable, "-c", WITHOUT_TORCH]
    started = ranks.start(command, 3, "env", 100, env)
    assert [status for status, _ in ranks.finish(started, 100)] == [0, 0, 0]
