#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Put the faults of faults.txt into the kernels, one at a time: does the run of the PTX find them?

    faults.py NVCC TREE PROGRAMS FOLDER

By hand: minutes. The table is one of tests/mutants/table.py; its last line names what to compile
again, and a test with its order. FOLDER holds the PTX of the kernels
without faults, as `run.py --keep FOLDER` leaves it. Ends with "N faults, K found"; one of ten may
survive.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "mutants")]
import run  # noqa: E402
import table  # noqa: E402


def copy_sources(tree, to):
    for folder in "kernels", "lib", "include":
        shutil.copytree(tree / folder, to / folder)


def take(fault, nvcc, tree, programs, good):
    """-> what found it, or nothing."""
    units = [n for n in fault.near if n.endswith(".cu")]
    tests = [n for n in fault.near if not n.endswith(".cu")]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        copy_sources(tree, folder)
        fault.apply(folder)
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
            program_name, order = test.split(":")
            done = subprocess.run(
                [programs / f"test_{program_name}"], text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=run.LIMIT_S,
                env=dict(os.environ, EMULATE_PTX=str(program), TAMIS_EMULATE_ORDER=order))
            if done.returncode:
                said = [line for line in done.stdout.splitlines()
                        if line.startswith("emulate: ") or "ERROR" in line]
                return said[0] if said else f"status {done.returncode}"
    return None


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    nvcc, tree, programs, good = sys.argv[1], *map(pathlib.Path, sys.argv[2:])
    found, faults = 0, table.read(HERE)
    for fault in faults:
        how = take(fault, nvcc, tree, programs, good)
        found += how is not None
        print("found   " if how else "SURVIVED", fault.file, fault.what, "|", how, flush=True)
    print(f"{len(faults)} faults, {found} found")
    sys.exit(found < 0.9 * len(faults))


if __name__ == "__main__":
    main()
