# SPDX-License-Identifier: MIT
"""CUDA and NCCL, which are loaded when they are asked for, and what is said where they lack."""

import ctypes.util
import os
import shutil
import subprocess
import warnings

import pytest

import jobs
import tamis
from tamis import launch

FOLDER = os.path.dirname(tamis._core.__file__)
CUDA = os.path.join(FOLDER, "_cuda.so")
needs_cuda = pytest.mark.skipif(not os.path.exists(CUDA), reason="built without CUDA")
needs_nccl = pytest.mark.skipif(not tamis.nccl_module(), reason="built without NCCL")
needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")

LOADED = """
def loaded(name):
    return sorted({line.split()[-1] for line in open("/proc/self/maps") if name in line})
"""
REASON = """
import sys
sys.path.insert(0, sys.argv[1])
import tamis
print(next(row["reason"] for row in tamis.features() if row["name"] == "cuda"))
comm, = tamis.Comm.local(1)
try:
    tamis.Reducer(comm, tamis.Layout([("w", 100)]), density=0.1, device="cuda")
except tamis.Error as error:
    print(error.status, error)
"""


def needed(path):
    done = subprocess.run(["readelf", "-d", path], stdout=subprocess.PIPE, check=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "(NEEDED)" in line]
    return [line.split("[")[1].rstrip("]") for line in lines]


def test_the_core_needs_no_vendor():
    found = " ".join(needed(tamis._core.__file__))
    assert "libc.so" in found and not any(name in found for name in ("cuda", "nccl", "mpi")), found


@needs_cuda
def test_no_runtime_has_to_be_installed():
    assert not [name for name in needed(CUDA) if "cuda" in name]
    if tamis.nccl_module():
        assert [name for name in needed(tamis.nccl_module()) if "cu" in name or "nccl" in name] == [
            "libnccl.so.2"
        ]


@needs_cuda
def test_kernels_are_loaded_when_they_are_asked_for():
    job = jobs.alone(LOADED + """
import tamis
before = loaded("_cuda.so")
comm, = tamis.Comm.local(1)
tamis.Reducer(comm, tamis.Layout([("w", 100)]), density=0.1).close()
on_host = loaded("_cuda.so")
tamis.features()
print(before, on_host, len(loaded("_cuda.so")))
""")
    assert (job.status, job.lines) == (0, ["[] [] 1"]), job


def copied(folder):
    shutil.copytree(FOLDER, folder / "tamis")
    return folder / "tamis" / "_cuda.so"


@needs_cuda
def test_a_package_without_kernels_says_so(tmp_path):
    copied(tmp_path).unlink()
    job = jobs.alone(REASON, tmp_path)
    assert job.status == 0, job
    reason, error = job.out.splitlines()
    assert reason == "_cuda.so is not beside _core: install tamis again"
    assert error.startswith("TAMIS_E_UNSUPPORTED ") and reason in error, job


@needs_cuda
def test_kernels_of_another_version_are_refused(tmp_path):
    path = copied(tmp_path)
    node = ("TAMIS_PYTHON_" + ".".join(map(str, tamis.version()))).encode()
    content = path.read_bytes()
    assert node in content
    path.write_bytes(content.replace(node, node[:-1] + b"z"))
    job = jobs.alone(REASON, tmp_path)
    assert job.status == 0 and "_cuda.so could not be loaded" in job.out, job
    assert (node[:-1] + b"z").decode() in job.out, job


@needs_cuda
def test_a_machine_without_a_driver_says_so():
    row = next(row for row in tamis.features() if row["name"] == "cuda")
    if row["available"] or ctypes.util.find_library("cuda"):
        pytest.skip("this machine has a driver")
    assert row["reason"] == "there is no CUDA device: no driver is installed (libcuda.so.1)"


@needs_nccl
@needs_compiler
def test_the_nccl_of_torchs_packages_is_taken_first(tmp_path):
    library = tmp_path / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    command = ["cc", "-shared", "-Wl,-soname,libnccl.so.2", "-x", "c", "/dev/null", "-o", library]
    subprocess.run(command, check=True)
    job = jobs.alone(
        "import sys\nsys.path.insert(0, sys.argv[1])\n" + LOADED + """
from tamis import launch
words = launch.nccl_missing()
print(loaded("libnccl.so.2"))
print(words)
""",
        tmp_path,
    )
    there, words = job.out.splitlines()  # it has no function of NCCL, which is found out
    assert there == str([str(library)]), job
    assert "undefined symbol: nccl" in words and "pip install nvidia-nccl" in words, job


@needs_nccl
def test_nccl_that_cannot_be_loaded_is_not_chosen(monkeypatch):
    carrier = launch.Choice("torch", "torch.distributed is initialised")
    monkeypatch.setattr(launch, "_setting", lambda: "auto")
    monkeypatch.setattr(launch, "_carrier", lambda: carrier)
    monkeypatch.setattr(launch, "nccl_missing", lambda: None)
    assert launch.choose("auto", "cuda").transport == "nccl"
    monkeypatch.setattr(launch, "nccl_missing", lambda: "No. Mend it so.")
    assert launch.choose("auto", "cuda") == launch.choose("auto")
    with pytest.raises(tamis.Error, match="NCCL was requested, but No. Mend it so"):
        launch._open_nccl(None)


class Stand:
    def __init__(self, transport, nranks=2):
        self.transport, self.nranks = transport, nranks


def test_gradients_on_cuda_that_travel_through_the_host_are_told_once(monkeypatch):
    monkeypatch.setattr(launch, "_told", False)
    monkeypatch.setattr(launch, "nccl_missing", lambda: "No. Mend it so.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        launch.tell_detour(Stand("nccl"), "cuda")
        launch.tell_detour(Stand("mpi"), "cpu")
        launch.tell_detour(Stand("local", 1), "cuda")
    with pytest.warns(RuntimeWarning, match="over callback by way of the host.*Mend it so") as told:
        launch.tell_detour(Stand("callback"), "cuda")
        launch.tell_detour(Stand("callback"), "cuda")
    assert len(told) == 1
    monkeypatch.setattr(launch, "_told", False)
    monkeypatch.setattr(launch, "nccl_missing", lambda: None)
    with pytest.warns(RuntimeWarning, match='transport="nccl"'):
        launch.tell_detour(Stand("mpi"), "cuda")
