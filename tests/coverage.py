#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""coverage.py TOP <GCOV_JSON: by folder the lines and branches that were reached, and of the lines
that return a failure those that were not. See coverage.sh."""
import collections
import json
import os
import re
import sys

FOLDERS = re.compile(r"^(lib|kernels/cpu|collectives)/")
# A sentence is made where a failure is found first; other lines hand it on.
FAILS = re.compile(r"\b(tam_fail|tam_error\w*|fail|refuse|lose|poison)\w*\(|\bTAMIS_E_[A-Z]+")


def read(top):
    """-> by file: {line: times}, {(line, branch): times}"""
    lines = collections.defaultdict(collections.Counter)
    branches = collections.defaultdict(collections.Counter)
    for text in sys.stdin:
        if not text.startswith("{"):
            continue
        report = json.loads(text)
        for file in report["files"]:
            path = os.path.join(report["current_working_directory"], file["file"])
            path = os.path.relpath(path, top)
            if not FOLDERS.match(path) or not path.endswith(".c"):
                continue
            for line in file["lines"]:
                number = line["line_number"]
                lines[path][number] += line["count"]
                for i, branch in enumerate(line["branches"]):
                    branches[path][number, i] += branch["count"]
    return lines, branches


def share(counters):
    reached = sum(n > 0 for c in counters for n in c.values())
    return reached, sum(len(c) for c in counters)


def show(name, row):
    print(f"{name:<32}" + "".join(f"{a:>8} of {b:>6} {100 * a / max(b, 1):5.1f} %" for a, b in row))


def main():
    top = sys.argv[1]
    lines, branches = read(top)
    errors = {}
    for path in lines:
        with open(os.path.join(top, path), encoding="utf-8") as file:
            source = file.read().splitlines()
        errors[path] = collections.Counter({n: times for n, times in lines[path].items()
                                            if FAILS.search(source[n - 1])})
        for number in sorted(n for n, times in errors[path].items() if times == 0):
            print(f"{path}:{number}: {source[number - 1].strip()}")
    print(f"\n{'folder':<32}{'lines':>24}{'branches':>24}{'lines that refuse':>24}")
    folders = collections.defaultdict(list)
    for path in sorted(lines):
        folders[os.path.dirname(path)].append(path)
        folders["all"].append(path)
    for folder in sorted(folders, key=lambda name: (name == "all", name)):
        show(folder, [share([table[p] for p in folders[folder]])
                      for table in (lines, branches, errors)])


if __name__ == "__main__":
    main()
