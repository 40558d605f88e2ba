#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiled code: nvcc's PTX of all kernels, run on the CPU by the programs that test their source.

    run.py NVCC TREE PROGRAMS [--arch compute_90] [--keep FOLDER] [NAME:ORDER...]

PROGRAMS is the folder of the tests of tests/cuda. NAME is one of them without `test_`; ORDER, in
which blocks, warps and lanes run: forward, reverse or a number, the seed of a shuffle. Without
names those of SUITE run. machine.hpp says what is found. Ends with how many kernels ran, how often.
"""
import argparse
import collections
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

# Others (device, whole_step, codecs, refusal) run the same kernels for longer: by hand, as compute_80
# and the other orders.
SUITE = ["pack:1", "exchange:1", "types:reverse", "update:forward", "buckets:2", "dense:reverse",
         "control:3", "rows:forward", "rows_exchange:3", "micro_batches:reverse", "chunks:forward",
         "nodes_life:2"]
JOBS = 2
LIMIT_S = 600  # of a program; the machine may be busy


def compile_ptx(nvcc, tree, source, arch, folder):
    out = folder / f"{source.stem}.ptx"
    if not out.exists():
        subprocess.run([nvcc, "-std=c++17", "-O3", "-fmad=false", f"-arch={arch}", "--ptx",
                        f"-I{tree}/include", f"-I{tree}", source, "-o", out], check=True)
    return out


def make_program(nvcc, tree, arch, folder, pool):
    sources = sorted(tree.glob("kernels/cuda/*.cu"), key=lambda s: -s.stat().st_size)
    files = list(pool.map(lambda s: compile_ptx(nvcc, tree, s, arch, folder), sources))
    program = folder / "program"
    with program.open("w") as out:
        subprocess.run([sys.executable, pathlib.Path(__file__).with_name("assemble.py"), *files],
                       stdout=out, check=True)
    return program


def run_test(programs, name, program, launches):
    test, order = name.split(":")
    environment = dict(os.environ, EMULATE_PTX=str(program), EMULATE_LAUNCHES=str(launches),
                       TAMIS_EMULATE_ORDER=order)
    try:
        done = subprocess.run([programs / "test_cuda", test], env=environment, timeout=LIMIT_S,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        passed, output = done.returncode == 0, done.stdout
    except subprocess.TimeoutExpired:
        passed, output = False, f"not done in {LIMIT_S} s"
    print("ok    " if passed else "FAILED", name, flush=True)
    if not passed:
        print(output[-4000:])
    return passed


def count(program, launches):
    kernels = sum(line.startswith("kernel ") for line in program.open())
    ran = collections.Counter()
    for line in launches.open() if launches.exists() else ():
        number, name = line.split(maxsplit=1)
        ran[name] += int(number)
    print(f"{len(ran)} of {kernels} kernels ran, {sum(ran.values())} launches")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nvcc")
    parser.add_argument("tree", type=pathlib.Path)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--arch", default="compute_90")
    parser.add_argument("--keep", type=pathlib.Path, help="where the PTX is, or is left")
    parser.add_argument("names", nargs="*", default=SUITE)
    args = parser.parse_intermixed_args()
    with tempfile.TemporaryDirectory() as temporary, \
            concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        program = make_program(args.nvcc, args.tree, args.arch, folder, pool)
        launches = folder / "launches"
        launches.unlink(missing_ok=True)
        passed = list(pool.map(
            lambda name: run_test(args.programs, name, program, launches), args.names))
        count(program, launches)
    sys.exit(not all(passed))


if __name__ == "__main__":
    main()
