#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Relative links of the documents lead to files, and those with # to a heading there.

    links.py TREE

Both tracked and new files; where there is no git, all outside of build folders.
"""
import os
import re
import subprocess
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")


def documents():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                            capture_output=True, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\n") if os.path.isfile(name)]
    return [os.path.join(folder, name) for folder, folders, names in os.walk(".")
            if not os.path.relpath(folder).startswith("build") for name in names if name.endswith(".md")]


def text_of(path):
    """A document without its examples."""
    with open(path, encoding="utf-8") as file:
        return re.sub(r"^```.*?^```", "", file.read(), flags=re.M | re.S)


def anchors(path):
    """What headings are called, as forges make it of them; a second of the same name gets -1."""
    seen = {}
    for title in re.findall(r"^#{1,6} (.*)", text_of(path), flags=re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).replace("`", "").replace("*", "")
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        count = seen[name] = seen.get(name, -1) + 1
        yield f"{name}-{count}" if count else name


def dead(document):
    for target in LINK.findall(text_of(document)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        place = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
        if not os.path.exists(place):
            yield f"{document}: {target}: no such file"
        elif anchor and place.endswith(".md") and anchor not in set(anchors(place)):
            yield f"{document}: {target}: no such heading"


def main():
    os.chdir(sys.argv[1])
    found = documents()
    bad = [line for document in found for line in dead(document)]
    print(*bad, sep="\n", end="\n" if bad else "")
    sys.exit(1 if bad or not found else 0)


main()
