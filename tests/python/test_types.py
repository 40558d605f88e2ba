# SPDX-License-Identifier: MIT
#
# test: slow
"""mypy --strict finds nothing in the examples, nor in the package where torch's stubs are complete."""

import subprocess
import sys

import pytest
import torch

from jobs import TREE, environment

version = pytest.importorskip("mypy.version").__version__

PACKAGE = TREE / "python" / "tamis"
# Their classes need those packages' own types.
TRAINERS = [PACKAGE / "transformers.py", PACKAGE / "lightning.py"]


def number(text):
    return tuple(int(part) for part in text.split("+")[0].split("a")[0].split(".")[:2])


def test_the_examples_and_the_package(tmp_path):
    """A minute or two: mypy reads all of torch."""
    options, files = [], sorted((TREE / "examples").glob("*.py"))
    assert files
    if number(torch.__version__) < (2, 4) or number(version) < (1, 10):
        options = ["--follow-imports", "silent"]  # those of torch are not complete: examples alone
    else:
        files += [path for path in PACKAGE.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", *options]
    command += ["--cache-dir", tmp_path, *(path for path in files if path not in TRAINERS)]
    done = subprocess.run(
        list(map(str, command)), cwd=TREE, env=environment(MYPYPATH=PACKAGE.parent), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0 and "no issues found" in done.stdout, done.stdout
