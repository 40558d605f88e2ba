#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""mutants.table: the table fits the tree, and the machinery of run.py does what its docstring says.

Nothing is built: what builds and tests is replaced by a few lines here.
"""
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run  # noqa: E402
import table  # noqa: E402

LEAST = 60
BLOCK = "@ a.c\n# wrong: promise\n- x + 1;\n-     y;\n+ x - 1;\n~ unit.tree multi.codecs\n"
REPORT = """50% tests passed, 2 tests failed out of 4

The following tests FAILED:
\t  3 - multi.buckets (Failed)
\t 12 - unit.coll (Timeout)
Errors while running CTest
"""


class Copy:
    """In place of run.Copy: a test fails if a file holds what it must not."""
    tests = {n: ([n.split(".")[0]], {n}) for n in ("unit.tree", "multi.codecs", "bench.bytes")}

    def __init__(self, work, finds=None, builds=True):
        self.work, self.finds, self.builds, self.built = work, finds, builds, []

    def build_for(self, names):
        targets = sorted(names)
        if not self.builds:
            raise run.NotBuilt("no")
        self.built.append(targets)

    def select(self, kinds=None):
        return [n for n in self.tests if kinds is None or n.split(".")[0] in kinds]

    def test(self, names, twice):
        wrong = "x - 1;" in pathlib.Path(self.work, "a.c").read_text()
        return {self.finds: "Failed"} if wrong and self.finds in names else {}


class Machinery(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tree = pathlib.Path(self.folder.name)
        self.source = "int z;\nx + 1;\n    y;\n"
        (self.tree / "a.c").write_text(self.source)
        (self.tree / "one.txt").write_text(BLOCK)
        self.mutant = table.read(self.tree)[0]

    def tearDown(self):
        self.folder.cleanup()

    def judge(self, copy):
        how, by = run.try_mutant(copy, self.mutant)
        self.assertEqual((self.tree / "a.c").read_text(), self.source)
        return how, by

    def test_stale(self):
        for text in ("x + 2;\n    y;\n", self.source + self.source, "x + 1;\ny;\n"):
            (self.tree / "a.c").write_text(text)
            self.assertRaises(table.Stale, self.mutant.apply, self.tree)
            self.assertTrue(any("a.c" in s for s in table.check([self.mutant], self.tree)))
            self.assertEqual((self.tree / "a.c").read_text(), text)

    def test_not_well_formed(self):
        for wrong in (BLOCK.replace("+ x - 1;", "+ x + 1;\n+     y;"), "nothing\n" + BLOCK,
                      BLOCK.replace("~ unit.tree multi.codecs\n", ""), BLOCK.replace(": ", " "),
                      BLOCK.replace("@ a.c\n", "")):
            (self.tree / "one.txt").write_text(wrong)
            self.assertRaises(table.Stale, table.read, self.tree)

    def test_killed_near(self):
        copy = Copy(self.tree, finds="multi.codecs")
        self.assertEqual(self.judge(copy), ("killed", "multi.codecs"))
        self.assertEqual(copy.built, [["multi.codecs", "unit.tree"]])

    def test_killed_by_others(self):
        self.assertEqual(self.judge(Copy(self.tree, finds="bench.bytes")),
                         ("killed", "bench.bytes"))

    def test_survives(self):
        copy = Copy(self.tree, finds="none")
        self.assertEqual(self.judge(copy), ("survived", ""))
        self.assertEqual(copy.built, [["multi.codecs", "unit.tree"], ["bench.bytes"]])

    def test_not_built(self):
        self.assertEqual(self.judge(Copy(self.tree, builds=False)), ("not built", "no"))

    def test_report(self):
        self.assertEqual(run.failed_tests(REPORT),
                         {"multi.buckets": "Failed", "unit.coll": "Timeout"})
        self.assertEqual(run.failed_tests("100% tests passed"), {})

    def test_summary(self):
        killed, survived = ["killed"] * 19, ["survived"]
        self.assertEqual(run.summary(killed + survived),
                         ("20 mutants, 19 killed, 1 survived", True))
        self.assertFalse(run.summary(killed[1:] + survived)[1])
        self.assertFalse(run.summary(killed + ["not built"])[1])


class Table(unittest.TestCase):
    def test_fits_the_tree(self):
        mutants = table.read()
        self.assertGreaterEqual(len(mutants), LEAST)
        self.assertEqual(table.check(mutants, run.TREE), [])

    def test_faults_of_kernels_fit_the_tree(self):
        faults = table.read(run.TREE / "tests/cuda/ptx")
        self.assertGreaterEqual(len(faults), 16)
        self.assertEqual(table.check(faults, run.TREE), [])


if __name__ == "__main__":
    unittest.main()
