#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""words.py TREE: nobody uses a word again that words.txt has retired; upper and lower case are the same."""
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = (".c", ".h", ".cu", ".cuh", ".cpp", ".hpp", ".py", ".pyi", ".md", ".sh", ".txt", ".cmake")
EXEMPT = re.compile(r"^(CHANGELOG\.md|bench/results/|tests/golden/.*\.txt$|tests/lint/words\.)")


def read_words():
    with open(os.path.join(HERE, "words.txt"), encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                word, pattern, *exceptions = line.rstrip("\n").split("\t")
                yield word, re.compile(pattern.lower()), re.compile(exceptions[0] if exceptions else "$^")


def list_files(tree):
    listing = subprocess.run(["git", "-C", tree, "ls-files", "-z"], capture_output=True, text=True)
    if listing.returncode == 0:
        return [name for name in listing.stdout.split("\0") if name]
    return [os.path.relpath(os.path.join(at, name), tree) for at, _, names in os.walk(tree)
            if not os.path.relpath(at, tree).startswith("build") for name in names]


def main(tree):
    words, bad = list(read_words()), 0
    for name in list_files(tree):
        path = os.path.join(tree, name)
        if not name.endswith(KINDS) or EXEMPT.search(name) or not os.path.isfile(path):
            continue
        with open(path, encoding="utf-8") as file:
            text = file.read()
        lower = text.lower()
        for word, pattern, exceptions in words:
            for found in [] if exceptions.search(name) else pattern.finditer(lower):
                bad = 1
                number = text.count("\n", 0, found.start()) + 1
                print(f"{name}:{number}: {text[found.start():found.end()]}\n  ^ the word is: {word}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
