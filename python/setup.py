# SPDX-License-Identifier: MIT
"""Lets pip build the package with CMake, which knows how: this file names no source.

    pip install ./python                                    # needs a package index, for setuptools
    pip install --no-build-isolation ./python               # with those of the system
    CMAKE_ARGS="-DTAMIS_MPI=OFF" pip install ./python       # options of CMake, see cmake/options.cmake
    CMAKE_ARGS="-DTAMIS_CUDA=ON" pip install ./python       # for CUDA; or wheel.sh, which finds nvcc
    python3 -m build --sdist ./python                       # a source archive; wheel.sh makes all

Everything that is made lies in a temporary folder, nothing in the source tree. What is built is said
last; pip shows it with -v, and where the build fails.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.develop import develop
from setuptools.command.editable_wheel import editable_wheel
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "source")  # in a source archive, which has the files beside this one on top
if not os.path.exists(TOP):
    TOP = os.path.dirname(HERE)
# What CMake needs for the package.
SOURCES = ["CMakeLists.txt", "LICENSE", "cmake", "include", "lib", "kernels", "collectives"]
SOURCES += ["python/" + part for part in ("CMakeLists.txt", "core.map.in", "module.map", "src", "tamis")]
HEADER = os.path.join(TOP, "include", "tamis", "tamis.h")


def version():
    """The version that the public header names."""
    if not os.path.exists(HEADER):
        raise SystemExit(
            f"tamis: {HEADER} is missing. The package is built from a source archive or from a whole"
            " checkout of libtamis, in place: pip 21.3 or later, and pip install ./python."
        )
    with open(HEADER, encoding="utf-8") as header:
        text = header.read()
    parts = ("MAJOR", "MINOR", "PATCH")
    return ".".join(re.search(rf"#define TAMIS_VERSION_{part} (\d+)", text)[1] for part in parts)


def find_tools():
    """Say what to install where CMake could not, or less clearly."""
    compilers = [shlex.split(os.environ["CC"])[0]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    for tools, package in ((["cmake"], "cmake"), (compilers, "gcc libc6-dev")):
        if not any(shutil.which(tool) for tool in tools):
            raise SystemExit(
                f"tamis: no {' or '.join(tools)} was found"
                f" (Debian: apt-get install {package} make pkg-config libxxhash-dev)."
            )


def call(command):
    """Run a command whose output goes where ours goes. Returns its lines."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    lines = []
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line.strip())
    if process.wait() != 0:
        raise SystemExit(f"tamis: {shlex.join(command[:2])} failed; its message is above.")
    return lines


class build_with_cmake(build_ext):
    def run(self):
        find_tools()
        begin = time.monotonic()
        # Kernels take minutes to compile: wheel.sh asks for them.
        configure = ["cmake", "-S", TOP, "-B", self.build_temp, "-DCMAKE_BUILD_TYPE=Release"]
        configure += ["-DTAMIS_CUDA=OFF"]
        if "CMAKE_GENERATOR" not in os.environ and shutil.which("ninja"):
            configure.append("-GNinja")
        configure += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        configure += ["-DTAMIS_PYTHON=ON", "-DTAMIS_PYTHON_DIR=.", "-DTAMIS_TESTS=OFF"]
        configure += ["-DTAMIS_BENCH=OFF", f"-DPython3_EXECUTABLE={sys.executable}"]
        build = ["cmake", "--build", self.build_temp, "--config", "Release"]
        build += ["--target", "tamis_python"]
        if "CMAKE_BUILD_PARALLEL_LEVEL" not in os.environ:
            build += ["--parallel", str(len(os.sched_getaffinity(0)))]
        install = ["cmake", "--install", self.build_temp, "--config", "Release", "--strip"]
        install += ["--component", "python", "--prefix", os.path.abspath(self.build_lib)]
        parts = [re.fullmatch(r"-- ((?:MPI|OPENMP|CUDA|NCCL): .*)", line) for line in call(configure)]
        call(build)
        call(install)
        print(f"tamis {version()}, built in {time.monotonic() - begin:.0f} s:")
        for part in filter(None, parts):
            print(f"    {part[1]}", flush=True)


class sdist_with_library(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, [file for file in files if not os.path.isabs(file)])
        for name in SOURCES:
            source, target = os.path.join(TOP, name), os.path.join(base_dir, "source", name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(source):
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, target)


def refused(command, sentence):
    """A command of setuptools that cannot be had."""

    def run(self):
        raise SystemExit(f"tamis: {sentence}")

    return type(command.__name__, (command,), {"run": run})


NO_EDITABLE = "there is no editable install. Build with CMake; PYTHONPATH=<build>/python."
scratch = tempfile.mkdtemp(prefix="tamis-python-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)

setup(
    version=version(),
    license="MIT",
    packages=[],
    py_modules=[],
    ext_modules=[Extension("tamis._core", [], py_limited_api=True)],  # a wheel of one platform
    cmdclass={
        "build_ext": build_with_cmake,
        "develop": refused(develop, NO_EDITABLE),
        "editable_wheel": refused(editable_wheel, NO_EDITABLE),
        "sdist": sdist_with_library,
    },
    options={
        "bdist_wheel": {"py_limited_api": "cp39"},
        "build": {"build_base": scratch},
        "egg_info": {"egg_base": scratch},
    },
)
