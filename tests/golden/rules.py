# SPDX-License-Identifier: MIT
"""Pieces of rules that several presets share."""
import math

import numpy as np

def largest(keys, k):
    """Indices of the k largest, ties to the lowest index, ascending."""
    return np.sort(np.argsort(-keys, kind="stable")[:k])


def reaching(acc, threshold):
    """A threshold is compared as binary32, and zeros are never selected."""
    return np.flatnonzero((np.abs(acc) >= np.float32(threshold)) & (acc != 0))


def contiguous(n, parts):
    """Ends of `parts` runs of n elements, the first n mod parts one longer."""
    return np.cumsum([n // parts + (p < n % parts) for p in range(parts)])


def added(numbers):
    """One after another: sum() of Python 3.12 and later carries what rounding takes."""
    total = 0.0
    for x in numbers:
        total += x
    return total


def added_by_tree(numbers):
    """Float32 sums of ranks: halves of a row of places, of which the last have every second alone."""
    places = 1 << (len(numbers) - 1).bit_length()
    own = 2 * len(numbers) - places
    row = [None] * places
    for rank, x in enumerate(numbers):
        row[rank if rank < own else 2 * rank - own] = x
    while len(row) > 1:
        row = [b if a is None else a if b is None else np.float32(a + b)
               for a, b in zip(row[::2], row[1::2])]
    return row[0]


def mean_by_tree(numbers):
    """The mean over ranks of numbers that are far below the largest float32."""
    numbers = list(numbers)
    return float(added_by_tree([np.float32(x / len(numbers)) for x in numbers]))


def budgets_by_norm(k, norms, lengths):
    """DEFT: by descending norm, floor(K norm / N), at least 1, at most all."""
    left, rest, out = float(k), added(norms), [0] * len(norms)
    for g in sorted(range(len(norms)), key=lambda g: (-norms[g], g)):
        share = left * norms[g] / rest if rest > 0 else 0.0
        out[g] = min(max(math.floor(share), 1), lengths[g])
        left, rest = max(left - out[g], 0.0), rest - norms[g]
    return out


def exact_sum_of_squares(acc):
    """Binary32 adds these without rounding, so their order is of no matter."""
    total = float(np.sum(acc * acc))
    assert total < 2**24, "choose smaller numbers: sums of squares must be exact"
    return total


class Scheme:
    """select: one index array per rank, and their thresholds; learn: after the step."""

    def __init__(self, case, seen):
        self.case, self.seen = case, seen
        self.n, self.P = case["n"], case["ranks"]
        self.k = max(1, math.floor(case["density"] * self.n))
        self.delta = case["threshold"] or 1 / (2 * math.sqrt(self.k))

    def learn(self, t, acc, selected, union):
        pass

    def common(self):
        """Taken by all ranks without being sent."""
        return np.array([], int)

    def union(self, acc, selected):
        return np.unique(np.concatenate(selected + [self.common()])).astype(int)

    def give(self, acc, selected, union):
        """Exchange union: everybody its own values at all of the union; what is applied. Where ranks
        give their own entries alone (pairs, balanced-pairs) a preset has its own, as OkTopk."""
        applied = sum(a[union] for a in acc)
        for a in acc:
            a[union] = 0
        return applied


def smallest(acc, selected):
    return [float(np.min(np.abs(acc[r][p]))) if len(p) else 0.0 for r, p in enumerate(selected)]
