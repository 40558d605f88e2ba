# SPDX-License-Identifier: MIT
"""Runs functions of a test file on several ranks, in processes of their own, within a time limit.

    results = ranks.run(__file__, ["case_sum", "case_mean"], nranks=2, launcher="env")
    ranks.values(results, "case_sum")        # what each rank returned; fails if one of them raised

launcher  "env": RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, as torchrun sets them
          (torchrun of torch 1.13 does not run on Python 3.11)
          "mpi": tests/support/mpirun.sh, or the one that TAMIS_MPIRUN names

Cases of one call share their processes, and torch.distributed over gloo, which is initialised. A
case begins when all ranks have ended the one before.
"""

import contextlib
import datetime
import importlib.util
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve()


def drawn(*cases):
    """Similar cases for parametrize: all, or one of them where TEST_FEW is set (tests/run.sh)."""
    if not os.environ.get("TEST_FEW"):
        return list(cases)
    return [cases[int(os.environ.get("TEST_DRAW") or 0) % len(cases)]]


class Raised:
    """What a case raised on a rank."""

    def __init__(self, text):
        self.text = text


def mpirun():
    return os.environ.get("TAMIS_MPIRUN") or str(HERE.parents[1] / "support" / "mpirun.sh")


def environment(extra):
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    for name in list(env):
        if name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_")) or name in ("RANK", "WORLD_SIZE"):
            del env[name]
    port = str(launch().free_port())
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCH_CPP_LOG_LEVEL="ERROR")
    env.update(extra or {})
    return env


def start(command, nranks, launcher, seconds, env=None):
    """Processes that run `command` as ranks, each process a session of its own."""
    env = environment(env)
    options = dict(
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", start_new_session=True,
    )
    if launcher == "mpi":
        wrapped = ["sh", mpirun(), str(nranks), str(seconds), *command]
        return [subprocess.Popen(wrapped, env=env, **options)]
    return [
        subprocess.Popen(
            command,
            env=dict(env, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nranks)),
            **options,
        )
        for rank in range(nranks)
    ]


def finish(processes, seconds):
    """Exit status and output of each process; those that are late are killed (status -9)."""
    ended = []
    for process in processes:
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            for late in processes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(late.pid, signal.SIGKILL)
            text, _ = process.communicate()
        ended.append((process.returncode, text))
    return ended


def run(file, names, nranks=2, launcher="env", seconds=300, env=None, **arguments):
    """Results by name of the case, each a list by rank."""
    with tempfile.TemporaryDirectory(prefix="tamis-ranks-") as folder:
        task = pathlib.Path(folder, "task")
        task.write_bytes(pickle.dumps((str(file), names, arguments)))
        command = [sys.executable, str(HERE), folder]
        own = dict(env or {}, TMPDIR=folder)  # why: tests/support/mpirun.sh
        ended = finish(start(command, nranks, launcher, seconds, own), 3 * seconds + 10)
        told = "\n".join(f"[exit {status}]\n{text}" for status, text in ended)
        results = {name: [] for name in names}
        for rank in range(nranks):
            for name in names:
                path = pathlib.Path(folder, f"{name}.{rank}")
                lost = Raised(f"rank {rank} did not finish {name}:\n{told}")
                found = pickle.loads(path.read_bytes()) if path.exists() else lost
                results[name].append(found)
        results["output"] = told
        results["statuses"] = [status for status, _ in ended]
        return results


def values(results, name):
    """What the ranks returned from a case. Fails if it raised anywhere."""
    texts = [item.text for item in results[name] if isinstance(item, Raised)]
    assert not texts, "\n".join(texts)
    return results[name]


def told(call):
    """What `call` raises: type and sentence."""
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None, ""


def told_after(call):
    """What told() returns, and the seconds until then."""
    begin = time.perf_counter()
    return *told(call), time.perf_counter() - begin


def launch():
    return load(HERE.parents[2] / "examples" / "launch.py")


def load(file):
    spec = importlib.util.spec_from_file_location(pathlib.Path(file).stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(folder):
    """A rank: run the cases of the task."""
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        for name in ("RANK", "SIZE", "LOCAL_RANK"):
            ours = "WORLD_SIZE" if name == "SIZE" else name
            os.environ[ours] = os.environ["OMPI_COMM_WORLD_" + name]
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    file, names, arguments = pickle.loads(pathlib.Path(folder, "task").read_bytes())
    module = load(file)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=300))
    rank = dist.get_rank()
    for name in names:
        torch.manual_seed(1)
        try:
            value = getattr(module, name)(**arguments)
        except Exception:
            value = Raised(f"rank {rank}, {name}:\n{traceback.format_exc()}")
        part = pathlib.Path(folder, f"{name}.{rank}.part")
        part.write_bytes(pickle.dumps(value))
        part.rename(part.with_suffix(""))
        dist.barrier()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent))
    import ranks  # what is pickled here must have the name that the reader knows

    ranks.main(sys.argv[1])
