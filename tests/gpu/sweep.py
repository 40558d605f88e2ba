#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What a sweep of the device path's parameters found, and what to change: sweep.py RESULTS.jsonl

One line for each parameter of sweep.txt: the value that takes the least time, as a share of the time
that the present value takes (over its cases, the geometric mean), and "change MACRO in FILE to VALUE"
or "keep". A change must save more than GAIN and twice as much as the present value differs from
itself, and must not make any case slower than noise. Exit status 1 if a value gave other results, 77
if nothing was measured.
"""
import collections
import json
import math
import pathlib
import sys

TABLE = pathlib.Path(__file__).with_name("sweep.txt")
FILE = "kernels/cuda/parameters.h"
GAIN = 0.02

Parameter = collections.namedtuple("Parameter", "name macro now values cases sources")


def read_table(path=TABLE):
    rows = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return [Parameter(row[0], row[1], row[2], row[3].split(","), row[4].split(","),
                      row[5].split(",")) for row in rows]


def load(path):
    with open(path, encoding="utf-8") as file:
        records = [json.loads(line) for line in file if line.startswith("{")]
    return [r for r in records if r.get("record") == "sweep"]


def ratios(records, value):
    """The last value measured for each case."""
    return {(r["case"], r["n"], r["density"]): r["ratio"] for r in records if r["value"] == value}


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(parameter, records):
    """-> words, whether all is well; None: not measured"""
    mine = [r for r in records if r["parameter"] == parameter.name]
    other = sorted({r["value"] for r in mine if not r["same"]}, key=float)
    if other:
        return f"{', '.join(other)}: other results than with {parameter.now}: a defect", False
    itself = ratios(mine, parameter.now)
    found = {v: ratios(mine, v) for v in parameter.values}
    found = {v: cases for v, cases in found.items() if cases and cases.keys() == itself.keys()}
    if not found:
        return None, True
    noise = max(abs(x - 1) for x in itself.values())
    best = min(found, key=lambda v: mean(found[v].values()))
    ratio, worst = mean(found[best].values()), max(found[best].values())
    words = (f"best {best}, {ratio:.3f} of the time with {parameter.now} (worst case {worst:.3f}, "
             f"noise {noise:.3f})")
    missing = [v for v in parameter.values if v not in found]
    if missing:
        words += f", {', '.join(missing)} not measured"
    if ratio < 1 - max(GAIN, 2 * noise) and worst <= 1 + noise:
        return f"{words}: change {parameter.macro} in {FILE} to {best}", True
    return f"{words}: keep {parameter.now}", True


def main():
    records = load(sys.argv[1])
    measured, well = 0, True
    for parameter in read_table():
        words, good = judge(parameter, records)
        measured += words is not None
        well &= good
        print(f"      {parameter.name:16s} {words or 'not measured'}")
    if not well:
        return 1
    return 0 if measured else 77


if __name__ == "__main__":
    sys.exit(main())
