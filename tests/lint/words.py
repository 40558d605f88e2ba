#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""words.py TREE: nobody uses a word again that words.txt has retired; upper and lower case
are the same, except inside (?-i:...)."""
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
                yield word, pattern, re.compile(exceptions[0] if exceptions else "$^")


def list_files(tree):
    listing = subprocess.run(["git", "-C", tree, "ls-files", "-z"], capture_output=True, text=True)
    if listing.returncode == 0:
        names = listing.stdout.split("\0")
    else:
        names = [os.path.relpath(os.path.join(at, name), tree) for at, _, files in os.walk(tree)
                 if not os.path.relpath(at, tree).startswith("build") for name in files]
    return [name for name in names if name.endswith(KINDS) and not EXEMPT.search(name)
            and os.path.isfile(os.path.join(tree, name))]


def find_lines(tree, patterns):
    """The lines that one of the patterns fits: grep's compiled expressions are eight times faster."""
    every = "|".join(f"(?:{pattern})" for pattern in patterns)
    found = subprocess.run(["grep", "-HnPi", "--null", every, *list_files(tree)], cwd=tree,
                           capture_output=True, encoding="utf-8", check=False)
    if found.returncode > 1:
        sys.exit(f"words.py: {found.stderr}")
    for line in found.stdout.splitlines():
        name, rest = line.split("\0", 1)
        yield (name, *rest.split(":", 1))


def main(tree):
    words, bad = list(read_words()), 0
    compiled = [(word, re.compile(pattern, re.I), exceptions) for word, pattern, exceptions in words]
    for name, number, line in find_lines(tree, [pattern for _, pattern, _ in words]):
        for word, pattern, exceptions in compiled:
            if pattern.search(line) and not exceptions.search(name):
                bad = 1
                print(f"{name}:{number}: {line.strip()}\n  ^ the word is: {word}")
    return bad


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
