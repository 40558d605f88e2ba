# SPDX-License-Identifier: MIT
#
# test: slow
"""The Trainers of others: those of the time of Debian's torch, which are put into an environment, or
what the Python has that TAMIS_TEST_FRAMEWORKS names."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

import jobs

HERE = pathlib.Path(__file__).resolve().parent
# Without what they depend on: torch and numpy are Debian's. The rest is what they ask for.
PACKAGES = """transformers==4.36.* accelerate==0.25.* filelock huggingface-hub==0.20.* regex
    tokenizers==0.15.* safetensors==0.4.* tqdm fsspec==2023.* typing-extensions<5""".split()
DEBIAN = torch.__version__.startswith("1.13.0a0")


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    named = os.environ.get("TAMIS_TEST_FRAMEWORKS")
    if named:
        return named
    if not DEBIAN:
        pytest.skip("not Debian's torch; TAMIS_TEST_FRAMEWORKS names a Python that has all")
    folder = tmp_path_factory.mktemp("frameworks")
    made = folder / "bin" / "python"
    venv = [sys.executable, "-m", "venv", "--system-site-packages", "--without-pip", folder]
    subprocess.run(venv, check=True)
    pip = [sys.executable, "-m", "pip", "--python", made, "install", "-q", "--no-deps"]
    done = subprocess.run([*pip, "--no-compile", *PACKAGES], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        pytest.skip("no package index: " + done.stderr[-300:])
    return str(made)


def test_the_natural_script_exchanges_and_a_second_ddp_is_refused(python, monkeypatch):
    """No Lightning runs with Debian's torch under Python 3.11: it imports FSDP."""
    trainers = ["transformers", "transformers_resumed", "accelerate", "accelerate_resumed"]
    if "TAMIS_TEST_FRAMEWORKS" in os.environ:
        trainers += ["lightning", "lightning_resumed", "hsdp"]
    monkeypatch.setattr(sys, "executable", python)
    cases = [*trainers, "accelerate:wrapper"]
    job = jobs.env_init(2, HERE / "frameworks.py", *cases, seconds=200)
    assert job.status == 0, job
    for name in trainers:
        assert job.out.count(f"{name}: 50 steps, identical: True") == 2, job
    refused = "accelerate:wrapper: refused: rank "
    assert job.out.count(refused) == 2 and "DistributedDataParallel wraps the same" in job.out, job
