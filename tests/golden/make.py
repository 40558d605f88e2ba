#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden vectors: what every sparse preset must select, from the published formulas.

    make.py            write <preset>.txt beside this file
    make.py --check    compare them with what would be written; exit 77 without NumPy

gradients.py has the input, rules.py what presets share, schemes.py the presets.

P ranks are simulated in one process, with NumPy, with none of the library's code: top-k is a stable
sort, sums are sums. tests/multi/test_golden.c runs the library on the same gradients and compares.

Gradients are whole numbers times 2^unit, so sums over ranks and steps are exact in binary32 and their
order does not matter. Both sides make them from one integer hash, SplitMix64: with
x = random(random(random(seed, rank), step), index), zero if (x >> 1) % 8 = 0, else

    e = number of trailing zeros of x >> 4, at most `tail`     P(e) = 2^-(e+1)
    magnitude = 2^e + (x >> 40) mod 2^e, negative if x is odd

times the factors of all lines `scale FROM TO BEGIN END FACTOR` for which FROM <= step < TO and
BEGIN <= index < END. A file holds cases; a case is a head of settings, then for each step

    step T
    threshold ...    what ranks cut at: one number if they have it in common, else one per rank
    levels ...       tamis alone: log2 of the level of each group, used in this step
    borders ...      oktopk alone: where the regions end in this step
    picks ...        entries that each rank sent
    union I:V ...    index and applied sum, in units
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
from gradients import MASK, gradient, random
from schemes import PRESETS

# -- cases --------------------------------------------------------------------------------------
# Two for each preset: one that goes its way, and one with a drop of scale or a hot layer. `branches`
# are those of the rules that the two must take together.

USUAL = {"ranks": 3, "segments": [700, 40, 500, 7, 253], "density": 0.02, "threshold": 0.0,
         "block": 0, "steps": 16, "tail": 9, "unit": -10, "seed": 1, "scale": []}
DROP = {"ranks": 4, "seed": 2, "unit": -14, "scale": [(0, 8, 0, 1500, 16)]}
HOT = {"ranks": 4, "seed": 2, "scale": [(0, 8, 0, 300, 8), (8, 16, 1200, 1500, 8)]}
SMALL = {"tail": 4, "unit": 0}  # sums of squares stay exact
WARM = dict(SMALL, ranks=4, seed=2, scale=[(0, 8, 0, 300, 4), (8, 16, 1200, 1500, 4),
                                           (4, 16, 1240, 1247, 16)])
LONG = {"segments": [200, 20, 130]}

CASES = {
    "topk": [{}, DROP],
    "cltk": [{}, HOT],
    "threshold": [{}, dict(DROP, threshold=0.2)],
    "sage": [{}, dict(DROP, steps=18, threshold=0.003, scale=[
        (0, 1, 0, 1500, 0), (1, 8, 0, 1500, 16), (2, 4, 0, 1500, 8)])],
    "deft": [SMALL, WARM],
    "micro": [{"density": 0.04}, DROP],
    "exdyna": [{"density": 0.04, "segments": [2100, 40, 860]}, dict(HOT, block=128)],
    "oktopk": [dict(LONG, steps=70), dict(LONG, ranks=4, seed=2, unit=-14, steps=40, scale=[
        (0, 8, 0, 1500, 16), (5, 7, 0, 350, 8)])],
    "tamis": [dict(SMALL, block=32, scale=[(0, 4, 700, 740, 0)]), dict(WARM, block=32)],
    "tamis-update": [{"block": 32}, dict(DROP, block=32)],
}

BRANCHES = {
    "sage": {"alpha", "no alpha", "gamma 0.95", "gamma 1", "gamma 1.05"},
    "deft": {"common", "piece", "layer"},
    "micro": {"factor 1.005", "factor 1.00125", "factor 0.9987", "factor 0.995"},
    "exdyna": {"factor 1.005", "factor 0.995", "forward", "backward", "least"},
    "oktopk": {"full", "fits", "none"},
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
    for line in case["scale"]:
        yield "scale %d %d %d %d %d" % line


def whole(x):
    """A number of units, which must be one."""
    assert x == np.rint(x) and abs(x) < 2**24
    return int(x)


def hash_of(residual):
    weights = random(0, np.arange(len(residual)))
    return sum(whole(x) * int(w) for x, w in zip(residual, weights) if x) & MASK


def simulate(name, case, seen):
    scheme, unit = PRESETS[name](case, seen), 2.0 ** case["unit"]
    acc = [np.zeros(case["n"]) for _ in range(case["ranks"])]
    for t in range(case["steps"]):
        for r in range(case["ranks"]):
            acc[r] += gradient(case, r, t) * unit
        levels = list(getattr(scheme, "levels", []))
        picks, thresholds = scheme.select(t, acc)
        union = scheme.union(acc, picks)
        borders = list(getattr(scheme, "borders", []))
        scheme.learn(t, acc, picks, union)
        applied = scheme.give(acc, picks, union) / unit
        yield "step %d" % t
        yield "threshold " + show(thresholds)
        if levels:
            yield "levels " + show(levels)
        if borders:
            yield "borders " + show(borders)
        yield "picks " + " ".join(str(len(p)) for p in picks)
        yield "union " + " ".join("%d:%d" % (i, whole(v)) for i, v in zip(union, applied))
        yield "residual " + " ".join("%016x" % hash_of(a / unit) for a in acc)


def make(name):
    lines, seen = [], set()
    for settings in CASES[name]:
        case = dict(USUAL, **settings)
        case["n"] = sum(case["segments"])
        lines += head(name, case)
        lines += simulate(name, case, seen)
    missing = BRANCHES.get(name, set()) - seen
    assert not missing, "%s: never taken: %s" % (name, ", ".join(sorted(missing)))
    return "\n".join(lines) + "\nend\n"


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
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == ["--check"]))
