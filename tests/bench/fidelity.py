#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""fidelity.py TRAIN: rates are tuned equally, runs are made once, rows are compared by bytes, and
every variant is one that tamis_train takes."""
import json
import math
import os
import stat
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "bench", "lab"))
import fidelity  # noqa: E402
import fidelity_report  # noqa: E402

TRAIN = sys.argv.pop(1)
LM = fidelity.WORKLOADS[0]
DENSE = fidelity.Variant("dense", ("--scheme", "dense"))


def summary(value, share=1.0, metric="validation_loss", identical=True):
    return dict(record="summary", metric=metric, metric_value=value, seed=1, steps=100,
                replicas_identical=identical, wire_bytes_per_step=share, dense_bytes_per_step=1.0,
                ranks=4, parameters=10)


def row(variant, values, share=1.0, **more):
    return fidelity_report.Row("lm", "adamw", variant, 0.01, {},
                               [[summary(value, share, **more)] for value in values])


class Valley:
    """Runs whose metric is least at one rate."""

    quick = False

    def __init__(self, best):
        self.best, self.made, self.lengths = best, [], set()

    def records(self, workload, variant, rate, seed, longer=1):
        self.made.append(rate)
        self.lengths.add(longer)
        diverges = rate > 4 * self.best
        return [summary(None if diverges else 1.0 + abs(math.log(rate / self.best)))]


class Tuning(unittest.TestCase):
    def test_dense_tries_the_whole_grid_with_all_seeds(self):
        runs = Valley(0.005)
        best, tried = fidelity.tune(runs, LM, DENSE, None)
        self.assertEqual(best, 0.005)
        self.assertEqual(sorted(tried), sorted(LM.rates))
        self.assertEqual(sorted(runs.made), sorted(LM.rates * len(fidelity.SEEDS)))

    def test_others_try_both_neighbours_of_what_they_end_at(self):
        for best in LM.rates[1:-1]:
            runs = Valley(best)
            found, tried = fidelity.tune(runs, LM, DENSE, 0.005)
            at = LM.rates.index(best)
            self.assertEqual(found, best)
            self.assertLessEqual(set(LM.rates[at - 1:at + 2]), set(tried))
            self.assertEqual(len(runs.made), len(set(runs.made)))

    def test_the_grid_goes_on_where_its_end_is_best(self):
        self.assertEqual(fidelity.tune(Valley(0.04), LM, DENSE, None)[0], 0.04)
        self.assertEqual(fidelity.tune(Valley(0.00025), LM, DENSE, 0.01)[0], 0.00025)

    def test_a_run_that_diverged_is_never_best_and_accuracies_are_turned_round(self):
        self.assertEqual(fidelity.score([summary(0.1), summary(None)]), math.inf)
        self.assertLess(fidelity.score([summary(0.9, metric="test_accuracy")]),
                        fidelity.score([summary(0.8, metric="test_accuracy")]))


class Rows(unittest.TestCase):
    def test_rows_are_as_the_library_advises_but_for_those_that_name_a_form(self):
        rows = {v.name: v.args for v in fidelity.adamw_variants(LM)}
        named = {name for name, args in rows.items() if "--beta1" in args}
        self.assertEqual(named, {"tamis 3.3 % bf16, beta1 0.9", "tamis 3.3 % bf16, beta1 0",
                                 "tamis 2 % fp4", "topk 0.375 %, updates"})
        self.assertTrue(all("update.scale" not in " ".join(args) for args in rows.values()))

    def test_longer_runs_have_the_rate_that_was_tuned_and_all_seeds(self):
        runs = Valley(0.005)
        variants = fidelity.variants_of(LM, "")
        short = [fidelity_report.Row("lm", "adamw", v.name, 0.007, {}, [[summary(1.0)]])
                 for v in variants]
        rows = fidelity.make_longer(runs, LM, variants, short)
        self.assertEqual([len(row.values) for row in rows], [len(fidelity.SEEDS)] * len(rows))
        self.assertEqual([r.variant for r in rows],
                         [v.name for v in variants if v.longer])
        self.assertEqual((set(runs.made), runs.lengths), ({0.007}, {fidelity.LONGER}))

    def test_some_rows_are_those_whose_names_match_and_dense(self):
        names = [v.name for v in fidelity.variants_of(LM, "^PowerSGD [12]|^DiLoCo 6")]
        self.assertEqual(names, ["dense", "DiLoCo 64", "PowerSGD 1", "PowerSGD 2"])

    def test_runs_with_other_options_have_other_names(self):
        other = fidelity.Variant(DENSE.name, (*DENSE.args, "--beta1", "0"))
        self.assertNotEqual(fidelity.file_name(LM, DENSE, 0.1, 1, 10),
                            fidelity.file_name(LM, other, 0.1, 1, 10))


class Reports(unittest.TestCase):
    def test_others_are_beside_tamis_of_the_same_bytes(self):
        rows = [row("tamis 1 %", [2.0], 0.01), row("tamis 10 %", [1.0], 0.1),
                row("tamis 1 %, gradients", [9.0], 0.01),
                row("tamis 3.3 % bf16, beta1 0.9", [9.0], 0.05)]
        between = row("topk 1 %", [5.0], math.sqrt(0.01 * 0.1))
        self.assertAlmostEqual(fidelity_report.at_same_bytes(between, rows), 1.5)
        self.assertIsNone(fidelity_report.at_same_bytes(row("micro 1 %", [5.0], 0.2), rows))

    def test_a_row_of_which_no_run_was_finished_has_its_line(self):
        dense = row("dense", [2.0])
        lost = fidelity_report.Row("lm", "adamw", "topk 1 %", 0.01, {},
                                   [[dict(fidelity.DIVERGED, steps=100)]])
        self.assertEqual(list(fidelity_report.groups([dense, lost]).values()), [[dense, lost]])
        self.assertIn("| topk 1 % | nan | +nan % | - | nan % |", fidelity_report.table([dense, lost]))
        self.assertIn("topk 1 %", fidelity_report.line(lost))

    def test_a_table_has_ratios_of_losses_and_points_of_accuracies(self):
        text = fidelity_report.table([row("dense", [2.0, 2.2]), row("topk 1 %", [2.31, 2.31], 0.1)])
        self.assertIn("| topk 1 % | 2.3100 | +10.00 % | 0.0000 | 10.00 % |", text)
        text = fidelity_report.table([row("dense", [0.9], metric="test_accuracy"),
                                      row("topk 1 %", [0.885], 0.1, metric="test_accuracy")])
        self.assertIn("| topk 1 % | 88.50 % | -1.50 | - |", text)


class Program(unittest.TestCase):
    def program(self, folder, *more):
        """A few steps of a small model, whatever the variant."""
        program = os.path.join(folder, "train")
        text = os.path.join(folder, "text")
        with open(text, "w", encoding="utf-8") as out:
            out.write("the quick brown fox jumps over the lazy dog, and over it again. " * 40)
        with open(program, "w", encoding="utf-8") as out:
            out.write(f'#!/bin/sh\necho run >>"{folder}/log"\nexec "{TRAIN}" "$@" --steps 2 --data '
                      f'"{text}" --layers 1 --width 40 --heads 2 --context 8 {" ".join(more)}\n')
        os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
        return program

    def run_main(self, folder, *more):
        program = self.program(folder, *more)
        with mock.patch.object(sys, "argv", ["", "--train", program, "--out", folder, "--quick",
                                             "--only", "lm"]), \
                mock.patch.object(fidelity_report, "plot"), \
                mock.patch.object(fidelity_report, "frontier"):
            return fidelity.main()

    def test_the_quick_form_has_a_row_of_every_variant_and_makes_no_run_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.run_main(folder), 0)
            with open(os.path.join(folder, "fidelity.md"), encoding="utf-8") as report:
                text = report.read()
            names = [variant.name for variant in fidelity.lm_variants(LM)]
            for name in names:
                self.assertIn(f"\n| {name} | ", text)
            self.assertEqual(self.run_main(folder), 0)
            with open(os.path.join(folder, "log"), encoding="utf-8") as log:
                self.assertEqual(len(log.readlines()), len(names))

    def test_replicas_that_differ_end_with_status_1(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_main(folder)
            path = os.path.join(folder, "runs", os.listdir(os.path.join(folder, "runs"))[0])
            with open(path, encoding="utf-8") as lines:
                records = [json.loads(line) for line in lines]
            records[-1]["replicas_identical"] = False
            with open(path, "w", encoding="utf-8") as out:
                out.writelines(json.dumps(record) + "\n" for record in records)
            self.assertEqual(self.run_main(folder), 1)

    def test_a_run_that_diverges_is_a_result_and_another_failure_is_not(self):
        workload = fidelity.Workload("lm", "momentum", 0, 20, (), 0.0)
        with tempfile.TemporaryDirectory() as folder:
            runs = fidelity.Runs(self.program(folder, "--steps 20"), folder, True)
            self.assertEqual(runs.records(workload, DENSE, 1e6, 1),
                             [dict(fidelity.DIVERGED, steps=20)])
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "ended with 2: .*--nonsense"):
                self.run_main(folder, "--nonsense")

    def test_momentum_variants_run(self):
        with tempfile.TemporaryDirectory() as folder:
            workload = fidelity.Workload("lm", "momentum", 0, 2, (0.01,), 0.01)
            with mock.patch.object(fidelity, "WORKLOADS", (workload,)):
                self.assertEqual(self.run_main(folder), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
