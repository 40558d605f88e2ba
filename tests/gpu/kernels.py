#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where the time of a step goes, kernel by kernel: kernels.py NCU N DENSITY COMMAND...

Runs the command under Nsight Compute, which times each kernel of a replayed graph by itself, and
prints a record and a line for each: the median over the steps it saw, in the order of the step.
They are not what a step takes: between kernels there are gaps, and under ncu none runs beside
another. Exit status 77 if ncu may not read the clocks of this machine.
"""
import csv
import json
import statistics
import subprocess
import sys

METRIC = "gpu__time_duration.sum"
SKIPPED, FIRST, STEPS, LAUNCHES = 77, 18, 3, 18  # the first step warms up
UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3}


def profile(ncu, command):
    return subprocess.run(
        [ncu, "--clock-control", "none", "--cache-control", "none", "--graph-profiling", "node",
         "-s", str(FIRST), "-c", str(STEPS * LAUNCHES), "--metrics", METRIC, "--csv",
         "--page", "raw", *command], capture_output=True, text=True, check=False)


def medians(text):
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    unit = UNITS[rows[0][METRIC]]  # the first row has the units
    times = {}
    for row in rows[1:]:
        name = row["Kernel Name"].split("(")[0].replace("void ", "")
        times.setdefault(name, []).append(float(row[METRIC].replace(",", "")) * unit)
    return {name: statistics.median(us) for name, us in times.items()}


def main():
    ncu, n, density, *command = sys.argv[1:]
    done = profile(ncu, command)
    if METRIC not in done.stdout:
        print((done.stderr or done.stdout).strip()[-300:])
        return SKIPPED
    for name, us in medians(done.stdout).items():
        print(json.dumps({"record": "kernel", "n": int(n), "density": float(density),
                          "kernel": name, "time_us": {"median": round(us, 2)}},
                         separators=(",", ":")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
