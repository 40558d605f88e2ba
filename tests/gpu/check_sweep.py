#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""gpu.sweep_words: what sweep.py says of records that were made up, and that its table is true."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
TREE = HERE.parents[1]
sys.path.insert(0, str(HERE))
import sweep  # noqa: E402

RANGE = sweep.Parameter("range", "TAM_RANGE", "32768", ["8192", "131072"], ["step"], ["a.cu"])
CASES = (("step", 138000000, 0.01), ("step", 25000000, 0.001))


def record(value, case, ratio, same=True, parameter="range"):
    return {"record": "sweep", "parameter": parameter, "value": value, "now": "32768",
            "case": case[0], "n": case[1], "density": case[2], "same": same, "ratio": ratio}


def records(**by_value):
    """now=(1.001, 0.999), v8192=(...): a ratio for each case"""
    return [record(value.replace("now", "v32768")[1:], case, ratio)
            for value, found in by_value.items() for case, ratio in zip(CASES, found)]


class Words(unittest.TestCase):
    def judge(self, **by_value):
        return sweep.judge(RANGE, records(**by_value))[0]

    def test_change(self):
        words = self.judge(now=(1.002, 0.999), v8192=(1.2, 1.1), v131072=(0.9, 0.95))
        self.assertTrue(words.startswith("best 131072, 0.925 of the time with 32768"), words)
        self.assertTrue(words.endswith(
            ": change TAM_RANGE in kernels/cuda/parameters.h to 131072"), words)

    def test_keep_what_is_best(self):
        words = self.judge(now=(1.0, 1.0), v8192=(1.2, 1.1), v131072=(1.01, 1.02))
        self.assertTrue(words.startswith("best 131072, 1.015"), words)
        self.assertTrue(words.endswith(": keep 32768"), words)

    def test_keep_for_a_small_gain(self):
        self.assertIn("keep", self.judge(now=(1.0, 1.0), v8192=(1.2, 1.1), v131072=(0.985, 0.985)))

    def test_keep_within_noise(self):
        gain = {"v8192": (1.2, 1.1), "v131072": (0.95, 0.95)}
        self.assertIn("change", self.judge(now=(1.02, 1.0), **gain))
        self.assertIn("keep", self.judge(now=(1.03, 1.0), **gain))
        self.assertIn("keep", self.judge(now=(1.0, 0.97), **gain))

    def test_keep_where_a_case_gets_slower(self):
        self.assertIn("keep", self.judge(now=(1.0, 1.0), v8192=(1.2, 1.1), v131072=(0.8, 1.05)))

    def test_values_that_are_missing(self):
        words = self.judge(now=(1.0, 1.0), v131072=(0.9, 0.9))
        self.assertIn("8192 not measured", words)
        self.assertIn("change", words)
        self.assertIsNone(self.judge(now=(1.0, 1.0)))
        self.assertIsNone(self.judge())

    def test_half_measured_is_not_measured(self):
        self.assertIsNone(self.judge(now=(1.0, 1.0), v131072=(0.5,)))

    def test_other_results(self):
        wrong = records(now=(1.0, 1.0), v131072=(0.5, 0.5)) + [record("8192", CASES[0], 0.1, False)]
        words, good = sweep.judge(RANGE, wrong)
        self.assertFalse(good)
        self.assertTrue(words.startswith("8192: other results"), words)


class Program(unittest.TestCase):
    def run_it(self, made_up):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"record":"machine"}\n' + "".join(json.dumps(r) + "\n" for r in made_up))
            file.flush()
            return subprocess.run([sys.executable, "-B", HERE / "sweep.py", file.name], text=True,
                                  capture_output=True, check=False)

    def test_a_line_for_each_parameter(self):
        done = self.run_it(records(now=(1.0, 1.0), v131072=(0.9, 0.9)))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = done.stdout.splitlines()
        self.assertEqual([line.split()[0] for line in lines],
                         [p.name for p in sweep.read_table()])
        self.assertEqual(sum("not measured" not in line.replace("8192 not measured", "")
                             for line in lines), 1)

    def test_nothing(self):
        self.assertEqual(self.run_it([]).returncode, 77)

    def test_a_defect(self):
        done = self.run_it([record("8192", CASES[0], 0.9, False)])
        self.assertEqual(done.returncode, 1)
        self.assertIn("a defect", done.stdout)


class Table(unittest.TestCase):
    """sweep.txt, parameters.h and docs/cuda.md say the same."""

    def test_five_parameters(self):
        self.assertEqual(len(sweep.read_table()), 5)

    def test_present_values(self):
        text = (TREE / sweep.FILE).read_text()
        defined = dict(re.findall(r"#define (TAM_\w+) (.+)", text))
        for p in sweep.read_table():
            value = defined[p.macro]
            value = str(eval(defined.get(value, value)))
            self.assertEqual(p.now, value, p.macro)
            self.assertNotIn(p.now, p.values)

    def test_sources_read_it(self):
        for p in sweep.read_table():
            pattern = re.compile(rf"\b{p.macro}\b")
            users = {str(f.relative_to(TREE)) for folder in ("kernels", "collectives")
                     for f in (TREE / folder).rglob("*.c*") if pattern.search(f.read_text())}
            self.assertEqual(users, set(p.sources), p.macro)

    def test_documented(self):
        text = (TREE / "docs/cuda.md").read_text()
        for p in sweep.read_table():
            row = [line for line in text.splitlines() if line.startswith(f"| `{p.macro}`")]
            self.assertEqual(len(row), 1, p.macro)
            cells = [c.strip() for c in row[0].split("|")]
            self.assertEqual(cells[2:4], [p.now, ", ".join(p.values)])


if __name__ == "__main__":
    unittest.main()
