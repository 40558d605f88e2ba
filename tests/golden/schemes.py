# SPDX-License-Identifier: MIT
"""The sparse presets: here from their published formulas, in public.py from their public code."""
import math

import numpy as np

from public import ExDyna, MiCRO, OkTopk, SAGE
from rules import (Scheme, added, budgets_by_norm, contiguous, exact_sum_of_squares, largest,
                   mean_by_tree, reaching, smallest)

class TopK(Scheme):
    """Every rank the k largest of its own."""

    def select(self, t, acc):
        selected = [largest(np.abs(a), self.k) for a in acc]
        return selected, smallest(acc, selected)


class CLTK(Scheme):
    """The k largest of rank t mod P."""

    def select(self, t, acc):
        nothing = np.array([], int)
        selected = [largest(np.abs(acc[r]), self.k) if r == t % self.P else nothing
                 for r in range(self.P)]
        return selected, smallest(acc, selected)


class Threshold(Scheme):
    """|acc| >= delta, a constant."""

    def select(self, t, acc):
        return [reaching(a, self.delta) for a in acc], [self.delta]


class DEFT(Scheme):
    """Layers, budgets by norm, bins by cost; rank t mod P packs for all."""

    def __init__(self, case, seen):
        super().__init__(case, seen)
        self.groups, begin = [], 0
        for length in case["segments"]:
            pieces = min(self.P, length) if length > self.n // self.P else 1
            ends = begin + contiguous(length, pieces)
            for end in map(int, ends):
                self.groups.append((begin, end))
                begin = end
        self.lengths = [end - begin for begin, end in self.groups]

    def pack(self, budgets):
        """The bin of each layer; None: taken whole by all."""
        cost = [n * math.log2(k) if k > 1 else n for n, k in zip(self.lengths, budgets)]
        bins, loads = [None] * len(cost), [0.0] * self.P
        for g in sorted(range(len(cost)), key=lambda g: (-cost[g], g)):
            if budgets[g] < self.lengths[g]:
                bins[g] = loads.index(min(loads))
                loads[bins[g]] += cost[g]
        return bins

    def select(self, t, acc):
        budgets = [budgets_by_norm(self.k, [math.sqrt(exact_sum_of_squares(a[b:e]))
                                            for b, e in self.groups], self.lengths) for a in acc]
        bins = self.pack(budgets[t % self.P])
        selected = [[np.array([], int)] for _ in acc]
        self.whole = [np.array([], int)]
        for g, (begin, end) in enumerate(self.groups):
            if bins[g] is None:
                self.whole.append(np.arange(begin, end))
                self.seen.add("common")
                continue
            r = (bins[g] - t) % self.P
            self.seen.add("piece" if end - begin not in self.case["segments"] else "layer")
            selected[r].append(begin + largest(np.abs(acc[r][begin:end]), budgets[r][g]))
        selected = [np.concatenate(p) for p in selected]
        return selected, smallest(acc, selected)

    def common(self):
        return np.concatenate(self.whole)


class Tamis(Scheme):
    """Blocks dealt out in turn, levels by layer that are learned, exactly k."""

    over = 1.5

    def __init__(self, case, seen):
        super().__init__(case, seen)
        ends = np.cumsum(case["segments"])
        self.groups = [(int(e) - length, int(e)) for e, length in zip(ends, case["segments"])]
        self.lengths = list(case["segments"])
        self.group_of = np.repeat(np.arange(len(self.groups)), self.lengths)
        self.part_of = np.arange(self.n) // case["block"] % self.P
        self.levels, self.primed = [0.0] * len(self.groups), False
        self.drift, self.spread, self.xx, self.xy = 0.0, 0.002, 0.01, 0.06
        self.set_margin()

    def slope(self):
        return min(max(self.xy / self.xx, 1.0), 60.0)

    def set_margin(self):
        self.margin = -max(math.log2(self.over) / self.slope(), 3 * math.sqrt(self.spread))

    def keys(self, acc):
        """|acc| / tau of the group, in binary32."""
        weights = np.array([2.0**-level for level in self.levels], np.float32)
        weights = weights if self.primed else np.ones_like(weights)
        return np.abs(acc).astype(np.float32) * weights[self.group_of]

    def candidates(self, acc, own):
        least = np.array([2.0**(level + self.margin) for level in self.levels], np.float32)
        return int(np.sum((np.abs(acc) >= least[self.group_of])[own] & (acc[own] != 0)))

    def select(self, t, acc):
        self.min_keys, self.found, selected, before = [], 0, [], 0
        for r in range(self.P):
            own = np.flatnonzero(self.part_of == (t + r) % self.P)
            budget = self.k * (before + len(own)) // self.n - self.k * before // self.n
            before += len(own)
            keys = self.keys(acc[r])
            selected.append(own[largest(keys[own], budget)])
            self.min_keys.append(float(np.min(keys[selected[r]])) if budget else 0.0)
            self.found += self.candidates(acc[r], own) if self.primed else 0
        return selected, list(self.min_keys)

    def fit(self, key):
        """Slope of the count, from the candidates between margin and smallest key."""
        distance = key - self.margin
        if self.found == 0 or abs(distance) > 1:
            return
        count = math.log2((self.found + 0.5) / (self.k + 0.5))
        self.xx = 0.8 * self.xx + 0.2 * min(max(distance * distance, 1e-6), 1.0)
        self.xy = 0.8 * self.xy + 0.2 * distance * count

    def shift(self, key):
        if abs(key) > 0.6:
            self.seen.add("jump")
            self.drift = 0.0
            return key
        self.seen.add("drift")
        self.drift = 0.8 * self.drift + 0.15 * key
        return 0.7 * key + self.drift

    def level(self, g, shift, share, mean, size, budget):
        """The level of a group: with all, by its part of its budget; near a Laplacian's."""
        if mean == 0 and size == 0:
            self.seen.add("silent")
            return self.levels[g]
        ratio = max(self.lengths[g] / budget, 2.0)
        guess = 0.5 * math.log2(mean / self.lengths[g])
        guess += math.log2(0.7071 * 0.69315 * math.log2(ratio))
        if not self.primed:
            return guess
        miss = math.log2((share * size + 2) / (budget + 2))
        level = self.levels[g] + shift + 0.5 * min(max(miss, -2.0), 2.0) / self.slope()
        self.seen.add("free" if abs(level - guess) <= 3 else "bounded")
        return min(max(level, guess - 3), guess + 3)

    def learn(self, t, acc, selected, union):
        keys = [math.log2(key) - self.used() for key in self.min_keys if key > 0]
        if not keys:
            return
        key = added(keys) / len(keys)
        shift = key
        if self.primed:
            short = added(c * c for c in keys if c < 0) / len(keys)
            self.spread = 0.9 * self.spread + 0.1 * min(max(short, 1e-6), 0.1)
            self.fit(key)
            shift = self.shift(key)
        self.set_levels(shift, acc, union)
        self.set_margin()
        self.primed = True

    def used(self):
        """What the smallest keys are over zero already: nothing, for keys are relative to the levels."""
        return 0.0

    def set_levels(self, shift, acc, union):
        means = [mean_by_tree(exact_sum_of_squares(a[b:e]) for a in acc) for b, e in self.groups]
        budgets = budgets_by_norm(self.k, [math.sqrt(m) for m in means], self.lengths)
        sizes = np.bincount(self.group_of[union], minlength=len(self.groups))
        share = self.k / len(union)
        self.levels = [self.level(g, shift, share, means[g], int(sizes[g]), budgets[g])
                       for g in range(len(self.groups))]


class TamisUpdate(Tamis):
    """One level for all layers; keys are magnitudes."""

    def __init__(self, case, seen):
        super().__init__(case, seen)
        self.group_of, self.levels = np.zeros(self.n, int), [0.0]

    def keys(self, acc):
        return np.abs(acc).astype(np.float32)

    def used(self):
        return self.levels[0] if self.primed else 0.0

    def set_levels(self, shift, acc, union):
        self.levels = [self.levels[0] + shift]


PRESETS = {"topk": TopK, "cltk": CLTK, "threshold": Threshold, "sage": SAGE, "deft": DEFT,
           "micro": MiCRO, "exdyna": ExDyna, "tamis": Tamis, "tamis-update": TamisUpdate,
           "oktopk": OkTopk}
