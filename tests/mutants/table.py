# SPDX-License-Identifier: MIT
"""The table of mutants: what is put wrong, where, and what is promised there.

A file of the table, *.txt beside this one, is blocks of lines:

    @ collectives/reducer/finish.c      the file, from here on
    # what is wrong: what it breaks, as a document or a header promises it
    - old text, which occurs once in the file
    + new text
    ~ multi.buckets multi.update        tests that are near, tried first

Old and new text may have several lines, each with its mark. Without a new text the old one is
taken out.
"""
import pathlib

HERE = pathlib.Path(__file__).resolve().parent


class Stale(Exception):
    """A text of the table is not in the tree as it should be, or the table is not well formed."""


class Mutant:
    def __init__(self, number, file, what):
        self.number, self.file, self.what = number, file, what
        self.old, self.new, self.near = [], [], []

    def texts(self):
        return "\n".join(self.old), "\n".join(self.new)

    def apply(self, tree):
        """Put it into the tree. -> the file's bytes before."""
        path = pathlib.Path(tree, self.file)
        before = path.read_bytes()
        old, new = (text.encode() for text in self.texts())
        if before.count(old) != 1:
            raise Stale(f"mutant {self.number}, {self.file}: the old text occurs "
                        f"{before.count(old)} times, not once:\n{old.decode()}")
        path.write_bytes(before.replace(old, new))
        return before

    def revert(self, tree, before):
        pathlib.Path(tree, self.file).write_bytes(before)


def read_file(path, mutants):
    file = None
    for line in path.read_text().splitlines():
        mark, text = line[:2].rstrip(), line[2:]
        if mark == "@":
            file = text
        elif mark == "#":
            mutants.append(Mutant(len(mutants) + 1, file, text))
        elif mark in ("-", "+", "~") and mutants:
            m = mutants[-1]
            {"-": m.old, "+": m.new, "~": m.near}[mark].extend(
                text.split() if mark == "~" else [text])
        elif mark:
            raise Stale(f"{path.name}: not a line of the table: {line}")


def read(folder=HERE):
    mutants = []
    for path in sorted(pathlib.Path(folder).glob("*.txt")):
        read_file(path, mutants)
    for m in mutants:
        old, new = m.texts()
        if not m.file or not old or old == new or ": " not in m.what or not m.near:
            raise Stale(f"mutant {m.number} ({m.file}): file, old text, another new text, what it "
                        "breaks (\"what: promise\") and near tests are needed")
    return mutants


def check(mutants, tree):
    """All that is stale, as sentences."""
    wrong = []
    for m in mutants:
        path = pathlib.Path(tree, m.file)
        count = path.read_text().count(m.texts()[0]) if path.is_file() else -1
        if count != 1:
            times = "there is no such file" if count < 0 else f"the old text occurs {count} times"
            wrong.append(f"mutant {m.number}, {m.file}: {times}: {m.what}")
        for test in m.near:
            kind, name = (test.split(".") + [""])[:2]
            if kind in ("unit", "multi", "mpi", "faults") and test != "faults.processes" and \
                    not pathlib.Path(tree, "tests", kind, f"test_{name}.c").is_file():
                wrong.append(f"mutant {m.number}: there is no test {test}")
    return wrong
