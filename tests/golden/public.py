# SPDX-License-Identifier: MIT
"""Presets whose authors have published code: the rules as that code has them.

    SAGE      github.com/kljp/sage and the later repositories of the group
    MiCRO     github.com/kljp/micro
    ExDyna    github.com/kljp/exdyna
    OkTopk    github.com/Shigangli/Ok-Topk, folder VGG

Constants, comparisons and types of numbers are the code's, not the papers': a threshold that is a
Python number is binary64 and is compared as binary32, as torch does; one that comes out of a tensor is
binary32. `mended` names every fault that the library does not share. Without it the code's own
behaviour comes out, where it does not end with an error: make.py compares the two.
"""
import math

import numpy as np

from gradients import random
from rules import Scheme, contiguous, largest, smallest

F = np.float32


def at_least(acc, threshold):
    return np.flatnonzero((np.abs(acc).astype(F) >= F(threshold)) & (acc != 0))


def over(acc, threshold):
    return np.flatnonzero(np.abs(acc).astype(F) > F(threshold))


class SAGE(Scheme):
    """Each rank its own delta. The first one is a Python number; what follows is binary32, for the mean
    of a sample is a tensor."""

    mended = {"a mean of zero": "divided by, or delta is zero for good; here alpha is 1"}

    def __init__(self, case, seen):
        super().__init__(case, seen)
        self.size = max(1, int(self.n / (1 + self.n * 0.05 * 0.05)))
        self.deltas, self.means = [F(self.delta)] * self.P, [None] * self.P

    def sample(self, t, rank):
        """The library's choice; published: Python's generator, with a seed of each rank's own. Bucket 0."""
        x = random(random(random(rank, 0), t), np.arange(self.size))
        return ((x >> np.uint64(32)) * np.uint64(self.n) >> np.uint64(32)).astype(int)

    def mean(self, acc, t, rank):
        total = F(0)
        for x in np.abs(acc[self.sample(t, rank)]).astype(F):
            total = F(total + x)
        return F(total / F(self.size))

    def step(self, acc, rank, mean):
        before, d = self.means[rank], self.k / self.n
        alpha = F(mean / before) if before > 0 and mean > 0 else F(1)
        self.seen.add("alpha" if before > 0 and mean > 0 else "no alpha")
        delta = F(self.deltas[rank] * alpha)
        found = len(at_least(acc, delta)) / self.n
        gamma = 0.95 if found / d < 0.1 else 1.05 if found / d > 10 else 1.0
        self.seen.add("gamma %g" % gamma)
        beta = 2.0 / (1.0 + math.exp(d - found))
        return F(F(delta * F(beta)) * F(gamma))

    def select(self, t, acc):
        for r in range(self.P):
            mean = self.mean(acc[r], t, r)
            if t > 0:
                self.deltas[r] = self.step(acc[r], r, mean)
            self.means[r] = mean
        return [at_least(a, d) for a, d in zip(acc, self.deltas)], list(self.deltas)


class Stepped(Scheme):
    """MiCRO's threshold over parts that rotate; `ends` are the parts' in this step."""

    mended = {"a third test of q > 0": "0.9987 cannot be reached; q > 1 is meant",
              "a rank that finds nothing": "sends one made-up index, which counts"}

    def select(self, t, acc):
        selected = []
        for r in range(self.P):
            part = (t + r) % self.P
            begin, end = self.ends[part - 1] if part else 0, self.ends[part]
            selected.append(begin + at_least(acc[r][begin:end], self.delta))
        return selected, [self.delta]

    def learn(self, t, acc, selected, union):
        q = sum(len(p) for p in selected) / self.k
        factor = 0.995
        if q > 1.1:
            factor = 1.005
        elif q > 0.909:
            factor = 1.00125 if q > 1 else 0.9987
        self.seen.add("factor %g" % factor)
        self.seen.add("10 of 11" if 0.909 < q <= 1 / 1.1 else "q")
        self.delta *= factor


class MiCRO(Stepped):
    def __init__(self, case, seen):
        super().__init__(case, seen)
        self.ends = contiguous(self.n, self.P)


class ExDyna(Stepped):
    """MiCRO over runs of blocks, which move by one between neighbours."""

    mended = dict(Stepped.mended, **{
        "n < 32768": "blocks of no elements: the last part has all; here they may be shorter than 32",
        "fewer entries than ranks": "divided by zero; here the average is at least 1"})

    def __init__(self, case, seen):
        super().__init__(case, seen)
        blocks = 1024
        self.size = self.n // blocks
        if self.size >= 32:
            self.size -= self.size % 32
        if case["block"]:  # published: always 1024 blocks
            self.size, blocks = case["block"], self.n // case["block"]
        self.least = blocks / (4 * self.P)  # a fraction
        self.blocks = [blocks // self.P + (c < blocks % self.P) for c in range(self.P)]
        self.place()

    def place(self):
        self.ends = np.cumsum(self.blocks) * self.size
        self.ends[-1] = self.n

    def move(self, load, a, b, shift):
        if self.blocks[a] - 1 < max(self.least, 1):
            self.seen.add("least")
            return
        self.seen.add("forward" if a < b else "backward")
        self.blocks[a] -= 1
        self.blocks[b] += 1
        load[a] -= shift
        load[b] += shift

    def learn(self, t, acc, selected, union):
        super().learn(t, acc, selected, union)
        load = [0] * self.P
        for r in range(self.P):
            load[(t + r) % self.P] = len(selected[r])
        found = sum(load)
        average, shift = max(int(found / self.P), 1), int(self.size * (found / self.n))
        for c in range(self.P - 1):
            a, b = float(load[c]) / average, float(load[c + 1]) / average
            if a > 1.05 and b < 0.95238:
                self.move(load, c, c + 1, shift)
            if a < 0.95238 and b > 1.05:
                self.move(load, c + 1, c, shift)
        self.place()


class OkTopk(Scheme):
    """VGG/allreducer.py and VGG/compression.py: a threshold of each rank and one of the sums, found every
    32nd step and adapted in all. The first sparse step is the 512th, a multiple of 32 and 64; the dense
    ones before it touch no residual. So step 0 here is step 512 there."""

    mended = {
        "k = int(n d)": "may be 0; here at least 1",
        "selection without a limit": "here the 4 k largest of a rank",
        "a threshold of zero": "fewer than k entries are not zero: all that are not are selected until the "
                               "threshold is found again; here the next step looks",
        "fewer than k sums": "the smallest is the threshold, and none at all an error; here all are selected, "
                             "zeros too, and the next step looks",
        "k of the sums": "of those equal to the k-th largest some; here all",
        "indices as float32": "exact below 2^24 only",
        "nothing over the k-th largest": "an error, always with k = 1; here what equals it is selected",
    }

    def __init__(self, case, seen, mended=True):
        super().__init__(case, seen)
        self.mend = mended
        self.deltas, self.sum_threshold = [0.0] * self.P, 0.0
        self.look = [True] * self.P  # Published: only t % 32 == 0.
        self.look_sums = True
        self.borders = [self.n * (r + 1) // self.P for r in range(self.P)]

    def raised(self, acc, delta):
        """Before entries are selected, at most five times."""
        for _ in range(5):
            if len(over(acc, delta)) <= 4 * self.k // 3:
                break
            self.seen.add("raised")
            delta *= 1.03
        return delta

    def threshold(self, t, r, acc):
        if t % 32 == 0 or (self.mend and self.look[r]):
            self.look[r] = False
            return float(np.partition(np.abs(acc), self.n - self.k)[self.n - self.k])
        return self.raised(acc, self.deltas[r])

    def select_over(self, acc, delta, looks):
        found = over(acc, delta)
        if self.mend and looks and len(found) == 0 and delta > 0:
            found = at_least(acc, delta)
            self.seen.add("equal")
        self.seen.add("full" if len(found) > 4 * self.k else "fits")
        kept = found[largest(np.abs(acc[found]), 4 * self.k)] if self.mend else found
        return kept, len(found)

    def select(self, t, acc):
        self.t, used, selected = t, [], []
        for r in range(self.P):
            looks = t % 32 == 0 or self.look[r]
            delta = self.threshold(t, r, acc[r])
            kept, found = self.select_over(acc[r], delta, looks)
            used.append(delta)
            selected.append(kept)
            self.look[r] = delta == 0
            self.deltas[r] = delta
            if found < 2 * self.k / 3:
                self.deltas[r] /= 1.012
                self.seen.add("lowered")
            elif found > 5 * self.k / 4:
                self.deltas[r] *= 1.012
        return selected, used

    def sums(self, acc, selected):
        sums = np.zeros(self.n)
        for a, p in zip(acc, selected):
            sums[p] += a[p]
        return sums

    def found(self, sums, sent):
        """In a step that looks: the k largest of the sums that are not zero, or all there are."""
        some = np.flatnonzero(sums)
        if self.mend and len(some) < self.k:
            self.look_sums = True
            self.seen.add("few")
            return sent
        order = some[largest(np.abs(sums[some]), min(self.k, len(some)))]
        self.look_sums = False
        self.sum_threshold = float(np.min(np.abs(sums[order])))
        return np.flatnonzero(np.abs(sums) >= self.sum_threshold) if self.mend else order

    def kept(self, sums):
        selected = over(sums, self.sum_threshold)
        if len(selected) < 2 * self.k / 3:
            self.sum_threshold /= 1.008
            self.seen.add("sums lowered")
        elif len(selected) > 4 * self.k / 3:
            self.sum_threshold *= 1.008
            self.seen.add("sums raised")
        return selected

    def union(self, acc, selected):
        sums = self.sums(acc, selected)
        if self.t % 32 == 0 or self.look_sums:
            return self.found(sums, np.unique(np.concatenate(selected)).astype(int))
        return self.kept(sums)

    def give(self, acc, selected, union):
        applied = self.sums(acc, selected)[union]
        for a, p in zip(acc, selected):
            a[np.intersect1d(p, union)] = 0
        return applied

    def wish(self, selected, c):
        return int(selected[len(selected) * c // self.P]) if len(selected) else self.n * c // self.P

    def learn(self, t, acc, selected, union):
        # Published: found every 64th step, and they hold in that step; here from the next one on. No
        # result depends on them.
        wishes = [[self.wish(p, c) for c in range(1, self.P)] + [self.n] for p in selected]
        self.borders = [sum(ends) // self.P for ends in zip(*wishes)]
