#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""statics.py TREE: no two files of the library have static functions of one name, so a name in a
profile, a stack or a search has one place."""
import collections
import os
import re
import sys

FOLDERS = ("lib", "kernels", "collectives", "python/src")
BOUNDS = re.compile(r"__launch_bounds__\([^)]*\)\s+")
STATIC = re.compile(r"^static (?:[\w ]+?[ *]+)(\w+)\(", re.M)


def list_sources(tree):
    for folder in FOLDERS:
        for at, _, files in os.walk(os.path.join(tree, folder)):
            yield from (os.path.join(at, name) for name in files if name.endswith((".c", ".cu")))


def main(tree):
    places = collections.defaultdict(set)
    for path in list_sources(tree):
        with open(path, encoding="utf-8") as file:
            text = BOUNDS.sub("", file.read())
        for name in STATIC.findall(text):
            places[name].add(os.path.relpath(path, tree))
    twice = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    for name, paths in sorted(twice.items()):
        print(f"{name}: {', '.join(paths)}\n  ^ begin the names of statics with their file's word")
    return bool(twice)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
