# SPDX-License-Identifier: MIT
#
# test: slow
"""The examples, under each launcher, on a part of the data."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

import jobs
from jobs import needs_mpi

EXAMPLES = jobs.TREE / "examples"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
FEW = ["--limit", "4000", "--epochs", "2", "--seed", "3"]

needs_data = pytest.mark.skipif(not DATA.exists(), reason="dataset-fashion-mnist is missing")


def train(launch, folder, *arguments):
    """Results of the one run that was made."""
    pytest.importorskip("torch")
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    script = EXAMPLES / "ddp_fashion_mnist.py"
    job = launch(2, script, *FEW, "--json", path, *arguments)
    assert job.status == 0, job
    return json.loads(path.read_text())


@needs_data
@needs_mpi
def test_ddp_under_mpirun_learns_and_keeps_replicas_identical(tmp_path):
    told = train(jobs.mpirun, tmp_path)
    assert told["identical"] and told["transport"] == "mpi"
    assert told["accuracy"] > 60  # 10 is chance
    assert told["density"] == 0.3  # nothing was set: what suits SGD
    assert told["bytes_per_step"] < 0.05 * told["dense_bytes_per_step"]


@needs_data
@needs_mpi
def test_ddp_gives_the_same_bits_under_either_launcher(tmp_path):
    under_mpi = train(jobs.mpirun, tmp_path)
    under_env = train(jobs.env_init, tmp_path)
    assert under_env["transport"] == jobs.CARRIED
    assert under_env["hash"] == under_mpi["hash"]


@needs_data
def test_a_run_that_was_stopped_goes_on_with_the_same_bits(tmp_path):
    more = ["--momentum", "0.9", "--lr", "0.02"]
    whole = train(jobs.env_init, tmp_path, *more)
    saved = tmp_path / "saved"
    half = train(jobs.env_init, tmp_path, *more, "--stop-after", "1", "--save", saved)
    assert half["hash"] != whole["hash"]
    resumed = train(jobs.env_init, tmp_path, *more, "--resume", saved)
    assert resumed["hash"] == whole["hash"]
    assert resumed["epochs"] == 2


@needs_data
def test_ddp_trains_densely_and_a_cnn_by_steps_of_adam(tmp_path):
    dense = train(jobs.env_init, tmp_path, "--dense")
    assert dense["identical"] and dense["accuracy"] > 60
    more = ["--limit", "1000", "--batch", "16", "--optimizer", "adamw"]
    cnn = train(jobs.env_init, tmp_path, "--model", "cnn", *more)
    assert cnn["identical"] and cnn["accuracy"] > 60


@needs_mpi
def test_numpy_regression_finds_the_line():
    pytest.importorskip("numpy")
    job = jobs.mpirun(2, EXAMPLES / "numpy_regression.py")
    assert job.status == 0 and "2 ranks over mpi" in job.out, job


def test_a_controller_of_openg2g_governs_or_is_asked_for():
    """Without the package the example says how to get it."""
    done = subprocess.run([sys.executable, EXAMPLES / "openg2g_training.py"], text=True,
                          env=jobs.environment(), timeout=300, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if importlib.util.find_spec("openg2g"):
        assert done.returncode == 0 and "below 0.95 for 0 s" in done.stdout, done.stdout
    else:
        assert done.returncode == 1 and "pip install openg2g==" in done.stdout, done.stdout
