# SPDX-License-Identifier: MIT
#
# test: slow
"""Launchers and torch: env://, torch's transport under mpirun, and process groups."""

import sys
import time

import pytest

pytest.importorskip("torch")

from tamis import launch, launcher

import jobs
import ranks
from jobs import needs_mpi, say, say_error


def test_env_init_takes_ucx_and_meets_over_torch(tmp_path):
    job = jobs.env_init(2, say(), folder=tmp_path)
    assert (job.status, job.lines) == (0, [f"{jobs.CARRIED} 0 2", f"{jobs.CARRIED} 1 2"]), job


@jobs.needs_ucx
def test_without_the_library_of_ucx_gloo_carries_and_says_so(tmp_path):
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "libucp.so.0").write_bytes(b"")
    job = jobs.env_init(2, say(), folder=tmp_path, LD_LIBRARY_PATH=folder)
    assert (job.status, job.lines) == (0, ["callback 0 2", "callback 1 2"]), job
    assert "all-gathers of gloo" in job.err and "UCX cannot be loaded" in job.err, job
    job = jobs.env_init(2, say(), folder=tmp_path, LD_LIBRARY_PATH=folder, TAMIS_TRANSPORT="ucx")
    assert job.status != 0 and "UCX cannot be loaded" in job.err, job


@needs_mpi
def test_a_world_of_torch_that_differs_from_mpi_is_refused():
    torch_alone = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
    job = jobs.mpirun(2, torch_alone + say_error())
    assert len(job.lines) == 2, job
    for line in job.lines:
        assert "torch.distributed=1, but the communicator over mpi has 2 ranks" in line


@needs_mpi
@pytest.mark.parametrize("how", ["setting", "argument"])
def test_torch_under_mpirun_needs_no_variables(how):
    if how == "setting":
        job = jobs.mpirun(2, say(), TAMIS_TRANSPORT="torch")
    else:
        job = jobs.mpirun(2, say('"torch"'), TAMIS_TRANSPORT="mpi")
    assert (job.status, job.lines) == (0, ["callback 0 2", "callback 1 2"]), job


@needs_mpi
def test_a_process_group_under_mpirun_finds_itself():
    job = jobs.mpirun(
        2,
        """
import tamis, torch, torch.distributed as dist
tamis.init_process_group()
tamis.init_process_group()  # nothing the second time
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print(dist.get_world_size(), total.item(), tamis.local_rank() == dist.get_rank(), flush=True)
""",
    )
    assert (job.status, job.lines) == (0, ["2 3.0 True"] * 2), job


def test_torchrun_inside_mpirun_takes_torch(monkeypatch):
    outer = {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}
    inner = {"RANK": "0", "WORLD_SIZE": "8", "MASTER_ADDR": "host", "MASTER_PORT": "1"}
    monkeypatch.delenv("TAMIS_TRANSPORT", raising=False)
    for name, value in {**outer, **inner}.items():
        monkeypatch.setenv(name, value)
    assert launch.choose().transport == jobs.CHOSEN
    assert launcher.announced() == {"WORLD_SIZE": 8}


FAIL = """
import torch, tamis, tamis.torch
tamis.init_process_group()
torch.manual_seed(1)
model = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for layer in range(4)])
ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.5)
state = tamis.torch.attach(ddp, bucket_length=90000)
def fail(gradient):
    raise ValueError("the first layer fails")
for step in range(4):
    if step == 3 and torch.distributed.get_rank() == 1:
        model[0].weight.register_hook(fail)  # the exchange of the last layers is under way
    ddp(torch.ones(2, 300)).sum().backward()
    print("step", step, flush=True)
"""


def ends_soon(job, begin):
    assert job.status not in (0, 124, 137), job
    assert "the first layer fails" in job.err, job
    assert job.lines.count("step 2") == 2 and "step 3" not in job.lines, job
    assert time.monotonic() - begin < 40, job


def test_a_backward_that_fails_on_one_rank_ends_the_job_under_env_init(tmp_path):
    begin = time.monotonic()
    ends_soon(jobs.env_init(2, FAIL, folder=tmp_path), begin)


@needs_mpi
def test_a_backward_that_fails_on_one_rank_ends_the_job_under_mpirun():
    begin = time.monotonic()
    ends_soon(jobs.mpirun(2, FAIL), begin)


LOST = """
import os, signal, sys, time
import torch, torch.distributed as dist
import tamis, tamis.torch
dist.init_process_group("gloo")
rank = dist.get_rank()
reducer = tamis.Reducer(
    tamis.torch.carrier(timeout_s=2), tamis.Layout([("w", 1000)]), density=0.1)
for step in range(100):
    if step == 3 and rank == 1:
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)
        os._exit(0)
    try:
        reducer.start(torch.ones(1000))
        reducer.wait()
    except tamis.Error as error:
        print(error.status, error, flush=True)
        os._exit(0)
"""


@pytest.mark.parametrize(
    "how, status, words",
    [("kill", "TAMIS_E_TRANSPORT", "127.0.0.1"), ("hang", "TAMIS_E_TIMEOUT", "Timed out")],
)
def test_the_words_of_gloo_are_in_the_sentence(how, status, words):
    command = [sys.executable, "-c", LOST, how]
    ended = ranks.finish(ranks.start(command, 3, "env", 100), 100)
    for rank in (0, 2):
        said = ended[rank][1].splitlines()[-1]
        start = f"{status} rank {rank}: the all-gather callback returned"
        assert said.startswith(start) and "torch's group of 3 ranks: " in said, ended
        assert words in said and ".cc:" not in said, ended
