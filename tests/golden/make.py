#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden vectors: what every sparse preset must select, from the published formulas and code.

    make.py            write <preset>.txt beside this file
    make.py --check    compare them with what would be written; exit 77 without NumPy
    make.py --counts   entries per k of oktopk, beside those of its public code with all its faults

gradients.py has the input, rules.py what presets share, schemes.py the presets, public.py those whose
authors have published code, as that code has them.

P ranks are simulated in one process, with NumPy, with none of the library's code: top-k is a stable
sort, sums are sums. tests/multi/test_golden.c runs the library on the same gradients and compares.

Gradients are whole numbers times 2^unit, so sums over ranks and steps are exact in binary32 and their
order does not matter. Both sides make them from one integer hash, SplitMix64: with
x = random(random(random(seed, rank), step), index), zero if (x >> 1) % 8 = 0, else

    e = number of trailing zeros of x >> 4, at most `tail`     P(e) = 2^-(e+1)
    magnitude = 2^e + (x >> 40) mod 2^e, negative if x is odd

times the factors of all lines `scale FROM TO BEGIN END FACTOR` for which FROM <= step < TO and
BEGIN <= index < END. A file holds cases; a case is a header of settings, then for each step

    step T
    threshold ...    of the ranks: one number if they have it in common, else one per rank
    levels ...       tamis alone: log2 of the level of each group, used in this step
    borders ...      oktopk alone: where the regions end in this step
    picks ...        entries that each rank sent
    union I:V ...    index and applied sum, in units; in brief cases `count N` in its place
    residual H ...   of each rank: sum over i of (residual[i] in units) * random(0, i), modulo 2^64
"""
import os
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

sys.dont_write_bytecode = True  # beside the sources
from gradients import gradient, random
from public import OkTopk
from schemes import PRESETS

# -- cases --------------------------------------------------------------------------------------
# Two for each preset: one that goes its way, and one with a drop of scale or a hot layer. `branches`
# are those of the rules that the two must take together.

USUAL = {"ranks": 3, "segments": [700, 40, 500, 7, 253], "density": 0.02, "threshold": 0.0,
         "block": 0, "steps": 16, "tail": 9, "unit": -10, "seed": 1, "brief": 0, "scale": []}
DROP = {"ranks": 4, "seed": 2, "unit": -14, "scale": [(0, 8, 0, 1500, 16)]}
HOT = {"ranks": 4, "seed": 2, "scale": [(0, 8, 0, 300, 8), (8, 16, 1200, 1500, 8)]}
SMALL = {"tail": 4, "unit": 0}  # sums of squares stay exact
WARM = dict(SMALL, ranks=4, seed=2, scale=[(0, 8, 0, 300, 4), (8, 16, 1200, 1500, 4),
                                           (4, 16, 1240, 1247, 16)])
LONG = {"segments": [200, 20, 130]}
MANY = {"segments": [15000, 5000], "ranks": 4, "steps": 131, "unit": -9, "brief": 1}
CREEP = {"density": 0.03, "block": 32, "unit": -12, "steps": 80, "brief": 1}

CASES = {
    "topk": [{}, DROP],
    "cltk": [{}, HOT],
    "threshold": [{}, dict(DROP, threshold=0.2)],
    "sage": [{}, dict(DROP, steps=18, threshold=0.003, scale=[
        (0, 1, 0, 1500, 0), (1, 8, 0, 1500, 16), (2, 4, 0, 1500, 8)])],
    "deft": [SMALL, WARM],
    "micro": [{"density": 0.04}, DROP, {"density": 0.0075, "steps": 60}],
    "exdyna": [{"density": 0.04, "segments": [2100, 40, 860]}, dict(HOT, block=128),
               dict(CREEP, segments=[3200], scale=[(0, 80, 0, 100, 64)]),
               dict(CREEP, segments=[3520], ranks=5, scale=[(0, 80, 0, 60, 64)])],
    "oktopk": [dict(LONG, steps=70), dict(LONG, ranks=4, seed=2, unit=-14, steps=40, scale=[
        (0, 8, 0, 1500, 16), (5, 7, 0, 350, 8), (0, 2, 3, 350, 0)]),
               {"segments": [60], "density": 0.01, "steps": 40,
                "scale": [(0, 2, 0, 60, 0)]},  # k = 1
               dict(MANY, density=0.01), dict(MANY, density=0.001, seed=3)],
    "tamis": [dict(SMALL, block=32, scale=[(0, 4, 700, 740, 0)]), dict(WARM, block=32)],
    "tamis-update": [{"block": 32}, dict(DROP, block=32)],
}

BRANCHES = {
    "sage": {"alpha", "no alpha", "gamma 0.95", "gamma 1", "gamma 1.05"},
    "deft": {"common", "piece", "layer"},
    "micro": {"factor 1.005", "factor 1.00125", "factor 0.9987", "factor 0.995", "10 of 11"},
    "exdyna": {"factor 1.005", "factor 0.995", "forward", "backward", "least"},
    "oktopk": {"full", "fits", "equal", "few", "raised", "lowered", "sums raised", "sums lowered"},
    "tamis": {"drift", "jump", "free", "bounded", "silent"},
    "tamis-update": {"drift", "jump"},
}

# -- writing ------------------------------------------------------------------------------------


def show(numbers):
    return " ".join("%.17g" % x for x in numbers)


def head(name, case):
    yield "scheme %s" % name
    yield "ranks %d" % case["ranks"]
    yield "segments " + " ".join(map(str, case["segments"]))
    yield "density %.17g" % case["density"]
    yield "first_threshold %.17g" % case["threshold"]
    for word in ("block", "steps", "tail", "unit", "seed"):
        yield "%s %d" % (word, case[word])
    if case["brief"]:
        yield "brief 1"
    for line in case["scale"]:
        yield "scale %d %d %d %d %d" % line


def whole(x):
    """Numbers of units, which must be whole."""
    assert np.all(x == np.rint(x)) and np.all(np.abs(x) < 2**24)
    return x.astype(np.int64)


def hash_of(residual):
    weights = random(0, np.arange(len(residual)))
    return int(np.sum(whole(residual).astype(np.uint64) * weights, dtype=np.uint64))


def simulate(name, case, seen):
    scheme, unit = PRESETS[name](case, seen), 2.0 ** case["unit"]
    acc = [np.zeros(case["n"]) for _ in range(case["ranks"])]
    for t in range(case["steps"]):
        for r in range(case["ranks"]):
            acc[r] += gradient(case, r, t) * unit
        levels = list(getattr(scheme, "levels", []))
        selected, thresholds = scheme.select(t, acc)
        union = scheme.union(acc, selected)
        borders = list(getattr(scheme, "borders", []))
        scheme.learn(t, acc, selected, union)
        applied = scheme.give(acc, selected, union) / unit
        yield "step %d" % t
        yield "threshold " + show(thresholds)
        if levels:
            yield "levels " + show(levels)
        if borders:
            yield "borders " + show(borders)
        yield "picks " + " ".join(str(len(p)) for p in selected)
        if case["brief"]:
            yield "count %d" % len(union)
        else:
            yield "union " + " ".join("%d:%d" % entry for entry in zip(union, whole(applied)))
        yield "residual " + " ".join("%016x" % hash_of(a / unit) for a in acc)


def complete(settings):
    case = dict(USUAL, **settings)
    case["n"] = sum(case["segments"])
    return case


def make(name):
    lines, seen = [], set()
    for case in map(complete, CASES[name]):
        lines += head(name, case)
        lines += simulate(name, case, seen)
    missing = BRANCHES.get(name, set()) - seen
    assert not missing, "%s: never taken: %s" % (name, ", ".join(sorted(missing)))
    return "\n".join(lines) + "\nend\n"


def count_selected(case):
    """Entries and sums that are selected, in units of k, step by step: public code, library."""
    schemes = [OkTopk(case, set(), mended) for mended in (False, True)]
    accs, counts = [[np.zeros(case["n"]) for _ in range(case["ranks"])] for _ in schemes], []
    for t in range(case["steps"]):
        fresh = [gradient(case, r, t) * 2.0 ** case["unit"] for r in range(case["ranks"])]
        row = []
        for scheme, acc in zip(schemes, accs):
            for a, g in zip(acc, fresh):
                a += g
            selected, _ = scheme.select(t, acc)
            union = scheme.union(acc, selected)
            scheme.give(acc, selected, union)
            row.append((sum(map(len, selected)) / scheme.P / scheme.k, len(union) / scheme.k))
        counts.append(row)
    return np.array(counts)


def show_counts():
    """What is mended changes the counts by less than 10 %. @return whether it does not"""
    failed = False
    for case in map(complete, (one for one in CASES["oktopk"] if one.get("brief"))):
        all_steps = count_selected(case)
        for name, counts in zip(("public code", "library"), (all_steps[:, 0], all_steps[:, 1])):
            print("density %g, %s: a rank selects %.3f k, %.3f k in the last 32 steps; %.3f k sums, "
                  "%.3f k in the last 32" % (case["density"], name, counts[:, 0].mean(),
                                             counts[-32:, 0].mean(), counts[:, 1].mean(),
                                             counts[-32:, 1].mean()))
        means = all_steps.mean(0)
        failed = failed or bool(np.any(np.abs(means[1] / means[0] - 1) > 0.1))
    return failed


def main(check):
    folder, failed = os.path.dirname(os.path.abspath(__file__)), False
    for name in PRESETS:
        path, text = os.path.join(folder, name + ".txt"), make(name)
        if not check:
            with open(path, "w") as file:
                file.write(text)
        elif not os.path.exists(path) or open(path).read() != text:
            print("%s is not what make.py writes" % path)
            failed = True
    return show_counts() or failed if check else failed


if __name__ == "__main__":
    sys.exit(show_counts() if sys.argv[1:] == ["--counts"] else main(sys.argv[1:] == ["--check"]))
