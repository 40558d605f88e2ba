#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Put the faults of faults.txt into the kernels, one at a time: which kind of test finds them?

    faults.py NVCC TREE PROGRAMS FOLDER [--only 3,7]

    PTX        what nvcc made of the kernels, on a machine on the CPU (run.py)
    emulation  the source of the kernels, every CUDA thread a fiber: the programs of EMULATED
    code       what nvcc's machine code must be (widths.py)

By hand: a quarter of an hour of CPU time. The table is one of tests/mutants/table.py; the last line of a
fault names what to compile again, and the test and its order for the PTX. PROGRAMS is the folder of
the tests of tests/cuda in a build by ninja, with all of EMULATED built. FOLDER holds the PTX of the
kernels without faults, as `run.py --keep FOLDER` leaves it. Prints a table; ends with 0 if the PTX
finds all.
"""
import argparse
import contextlib
import io
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "mutants")]
import run  # noqa: E402
import table  # noqa: E402
import widths  # noqa: E402

EMULATED = [f"{name}:{order}" for name in ("chunks", "exchange", "types", "control", "pack", "nodes_life")
            for order in ("forward", "reverse", "1")]
LIMIT_S = 120  # of a program in the emulation: with a fault it may hang
IN_ACCUMULATE = ("kernel.cuh", "chunk.cuh", "gradient.cuh")


def copy_sources(tree, to):
    for folder in "kernels", "lib", "include", "tests/cuda":
        shutil.copytree(tree / folder, to / folder)


def run_program(program, test, order, limit, **environment):
    """-> what it says of the fault, or nothing if it passes"""
    try:
        done = subprocess.run([program, test], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit, check=False,
                              env=dict(os.environ, TAMIS_EMULATE_ORDER=order, **environment))
    except subprocess.TimeoutExpired:
        return f"not done in {limit} s"
    if done.returncode == 0:
        return None
    said = [line for line in done.stdout.splitlines() if line.startswith("emulate: ")] or \
        [line for line in done.stdout.splitlines() if "ERROR" in line]
    return said[0] if said else f"status {done.returncode}"


# -- PTX --------------------------------------------------------------------------------------

def try_ptx(units, tests, nvcc, folder, programs, good):
    ptx = folder / "ptx"
    shutil.copytree(good, ptx, ignore=lambda _, names: [
        n for n in names if n == "program" or n.replace(".ptx", ".cu") in units])
    for unit in units:
        run.compile_ptx(nvcc, folder, folder / "kernels/cuda" / unit, "compute_90", ptx)
    program = ptx / "program"
    with program.open("w") as out:
        subprocess.run([sys.executable, HERE / "assemble.py", *sorted(ptx.glob("*.ptx"))],
                       stdout=out, check=True)
    for test in tests:
        name, order = test.split(":")
        said = run_program(programs / "test_cuda", name, order, run.LIMIT_S,
                           EMULATE_PTX=str(program))
        if said:
            return said
    return None


# -- emulation --------------------------------------------------------------------------------

def commands(build, target):
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", target], text=True,
                          stdout=subprocess.PIPE, check=True)
    return done.stdout.splitlines()


def compile_emulated(unit, tree, folder, build):
    """As the build compiles it, but from the sources in folder. -> the object"""
    source, out = f"{tree}/kernels/cuda/{unit}", folder / f"{unit}.o"
    line, = [c for c in commands(build, "tests/cuda/libtamis_emulated.a")
             if c.endswith(f"-c {source}")]
    words = [w.replace(f"-I{tree}", f"-I{folder}") for w in shlex.split(line)]
    words[words.index("-MF") + 1] = str(out) + ".d"
    words[words.index("-o") + 1] = str(out)
    words[-1] = f"{folder}/kernels/cuda/{unit}"
    subprocess.run(words, cwd=build, check=True, stdout=subprocess.DEVNULL)
    return out


def link_emulated(objects, folder, build):
    """The objects come before the library, which then does not give those of the same names."""
    target, out = "tests/cuda/test_cuda", folder / "test_cuda"
    line = commands(build, target)[-1]
    line = line.replace(f" -o {target} ", f" {' '.join(map(str, objects))} -o {out} ")
    subprocess.run(line, shell=True, cwd=build, check=True)
    return out


def try_emulation(units, tree, folder, build):
    objects = [compile_emulated(unit, tree, folder, build) for unit in units]
    program = link_emulated(objects, folder, build)
    for test in EMULATED:
        name, order = test.split(":")
        said = run_program(program, name, order, LIMIT_S)
        if said:
            return f"{test}: {said}"
    return None


# -- machine code -----------------------------------------------------------------------------

def try_code(fault, units, nvcc, folder):
    widths.failures.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        for unit in units:
            built = widths.build(nvcc, folder, folder / "kernels/cuda" / unit, "sm_90", folder)
            if built:
                widths.check_spills(unit, "sm_90", built[1])
        if fault.file.endswith(IN_ACCUMULATE):
            widths.check_hot(nvcc, folder, folder)
    return widths.failures[0] if widths.failures else None


# -- all --------------------------------------------------------------------------------------

def take(fault, args, tree):
    """-> what found it, of each kind"""
    units = [n for n in fault.near if n.endswith(".cu")]
    tests = [n for n in fault.near if not n.endswith(".cu")]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy_sources(tree, folder)
        fault.apply(folder)
        return (try_ptx(units, tests, args.nvcc, folder, args.programs, args.folder),
                try_emulation(units, tree, folder, args.programs.parents[1]),
                try_code(fault, units, args.nvcc, folder))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nvcc")
    for name in "tree", "programs", "folder":
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--only", help="numbers, from 1, with commas between")
    args = parser.parse_args()
    tree, args.programs = args.tree.resolve(), args.programs.resolve()
    faults = table.read(HERE)
    if args.only:
        faults = [faults[int(n) - 1] for n in args.only.split(",")]
    counts = [0, 0, 0]
    print("| fault | PTX | emulation | code |\n|---|---|---|---|", flush=True)
    for fault in faults:
        found = take(fault, args, tree)
        counts = [n + (how is not None) for n, how in zip(counts, found)]
        print(f"| {fault.what} |", " | ".join("found" if how else "-" for how in found), "|")
        for kind, how in zip(("PTX", "emulation", "code"), found):
            if how:
                print(f"    {kind}: {how}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    print(f"{len(faults)} faults; found by " + ", ".join(
        f"{kind} {n}" for kind, n in zip(("the PTX", "the emulation", "machine code"), counts)))
    sys.exit(counts[0] < len(faults))


if __name__ == "__main__":
    main()
