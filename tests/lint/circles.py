#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""circles.py TREE BUILD: no file calls another that calls it back, over any number of files; no header
includes itself over others; and both hold between folders, too.

Calls are what the object files of a build ask of each other. Exit 77: there are none."""
import collections
import os
import re
import subprocess
import sys

FOLDERS = ("lib", "kernels", "collectives", "bench")


def find_circles(edges):
    """Components of more than one node, and nodes with an edge to themselves (Tarjan)."""
    number, lowest, stack, circles = {}, {}, [], []

    def visit(node):
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == number[node]:
            at = stack.index(node)
            found = stack[at:]
            del stack[at:]
            if len(found) > 1 or node in edges.get(node, ()):
                circles.append(sorted(found))

    for node in sorted(edges):
        if node not in number:
            visit(node)
    return circles


def source_of(path, build):
    folder, target = os.path.relpath(path, build).split("/CMakeFiles/")
    return os.path.normpath(os.path.join(folder, target.split(".dir/", 1)[1][:-2]))


def list_objects(build):
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(build, folder)):
            for name in names:
                if name.endswith(".o") and "cmake_device_link" not in name:
                    yield os.path.join(at, name)


def read_calls(build):
    """{file: files}, by the symbols that one asks for and others have."""
    owners, asked = collections.defaultdict(set), collections.defaultdict(set)
    paths = sorted(list_objects(build))
    if not paths:
        return {}
    listing = subprocess.run(["nm", "-A", *paths], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        path, rest = line.split(":", 1)
        *_, kind, symbol = rest.split()
        source = source_of(path, build)
        if kind == "U":
            asked[source].add(symbol)
        elif kind.isupper():
            owners[symbol].add(source)
    calls = {}
    for source, symbols in asked.items():
        calls[source] = set()
        for symbol in symbols:
            found = owners.get(symbol, set())
            if len(found) > 1:  # programs have names in common
                found = {f for f in found if os.path.dirname(f) == os.path.dirname(source)}
            calls[source] |= found - {source}
    return calls


def read_includes(tree):
    """{header: headers}, of the tree's own."""
    includes = {}
    for folder in FOLDERS:
        for at, _, names in os.walk(os.path.join(tree, folder)):
            for name in names:
                if not name.endswith((".h", ".cuh")):
                    continue
                path = os.path.join(at, name)
                with open(path, encoding="utf-8") as file:
                    found = re.findall(r'^#include "([^"]+)"', file.read(), re.M)
                includes[os.path.relpath(path, tree)] = set(found)
    return includes


def folder_of(path):
    """The device half of a codec lies beside its host half, and belongs to the kernels."""
    return "kernels/cuda" if path.endswith((".cu", ".cuh")) else os.path.dirname(path)


def by_folder(edges):
    folders = collections.defaultdict(set)
    for source, others in edges.items():
        for other in others:
            if folder_of(other) != folder_of(source):
                folders[folder_of(source)].add(folder_of(other))
    return folders


def main(tree, build):
    calls, includes = read_calls(build), read_includes(tree)
    if not calls:
        print("skipped: no object files in", build)
        return 77
    bad = 0
    for what, edges in (("calls", calls), ("includes", includes)):
        for kind, graph in (("files", edges), ("folders", by_folder(edges))):
            for circle in find_circles(graph):
                bad = 1
                print(f"a circle of {kind}, by {what}:")
                for node in circle:
                    print("   ", node, "->", ", ".join(sorted(set(circle) & set(graph.get(node, ())))))
    return bad


if __name__ == "__main__":
    sys.setrecursionlimit(10000)
    sys.exit(main(*sys.argv[1:]))
