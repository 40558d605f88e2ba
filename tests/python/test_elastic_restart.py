# SPDX-License-Identifier: MIT
#
# test: slow
"""tamis.run_elastic under torchrun: a worker is killed, all start again, and go on from a set."""

import signal
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import elastic_support
import jobs
import ranks


def torchrun(nranks, folder, *arguments):
    """torchrun of this Python on this machine; files of ranks and its own lie in `folder`.

    That of torch 1.13 fails under Python 3.11 unless it is told what to do with the output of some
    rank: it does not find the enum of "nothing".
    """
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    command += ["--nproc_per_node", nranks, "--master_addr", "127.0.0.1"]
    command += ["--master_port", ranks.launch().free_port(), "--log_dir", folder / "log"]
    command += ["-r", "0:1", "-t", "0:1", elastic_support.__file__, folder]
    return subprocess.run(
        ["timeout", "-k", "5", "300", *map(str, command)],
        env=jobs.environment(TMPDIR=folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_killed_worker_is_started_again_and_goes_on(tmp_path):
    job, reference = tmp_path / "job", tmp_path / "reference"
    job.mkdir()
    done = torchrun(2, job, "--max_restarts", "1")
    assert done.returncode == 0, done.stdout
    assert (job / "killed").exists()
    found = [np.load(job / f"rank{rank}.npz") for rank in range(2)]
    # Sets are of commits 2, 4, 6, and the second life began with the last of them.
    assert [one["calls"].tolist() for one in found] == [[[6, 2]]] * 2
    # A run that was stopped there, and went on.
    elastic_support.run_local(2, 6, reference)
    expected, _ = elastic_support.run_local(2, 10, reference)
    assert np.array_equal(found[0]["w"], expected[0])
    assert np.array_equal(found[1]["w"], expected[0])


def test_without_a_launcher_that_restarts_the_rank_that_is_left_says_from_where_to_go_on(tmp_path):
    command = [sys.executable, elastic_support.__file__, str(tmp_path)]
    (survivor, text), (victim, _) = ranks.finish(ranks.start(command, 2, "env", 200), 200)
    assert victim == -signal.SIGKILL and survivor == 1, text
    said = text.splitlines()[-1]
    assert "Rank 0 of 2, at step 7: run_elastic gives up: over callback" in said, text
    assert "the all-gather callback returned" in said, text
    assert f"from the set of step 6 in {tmp_path}/sets" in said, text
    again = ranks.finish(ranks.start(command, 2, "env", 200), 200)
    assert [status for status, _ in again] == [0, 0], again
    assert np.load(tmp_path / "rank0.npz")["calls"].tolist() == [[6, 2]]


def case_ddp(folder):
    """attach and DistributedDataParallel: the steps of whole runs, and of one in two lives."""
    import torch
    import torch.distributed as dist

    import tamis.torch

    def run(steps, folder):
        torch.manual_seed(1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
        sparse = tamis.torch.attach(model, density=0.2)
        state = tamis.ElasticState(
            tamis.torch.carrier(), {"model": model, "optimizer": optimizer}, reducers=[sparse]
        )

        def train(state):
            begin = state.step
            while state.step < steps:
                generator = torch.Generator().manual_seed(10 * state.step + dist.get_rank())
                optimizer.zero_grad()
                model(torch.randn(3, 8, generator=generator)).square().sum().backward()
                optimizer.step()
                state.step += 1
                state.commit()
            return begin, torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()

        out = tamis.run_elastic(train, state, folder=folder, max_recoveries=0)
        state.close()
        return out

    return run(6, None), run(3, folder), run(6, folder)


def test_ddp_is_started_again(tmp_path):
    found = ranks.values(ranks.run(__file__, ["case_ddp"], folder=str(tmp_path)), "case_ddp")
    for whole, first, second in found:
        assert (whole[0], first[0], second[0]) == (0, 0, 3)
        assert second[1] == whole[1] == found[0][0][1] and first[1] != whole[1]
