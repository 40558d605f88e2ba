# SPDX-License-Identifier: MIT
"""Random numbers and gradients of the golden vectors; make.py says what they are."""
import numpy as np

MASK = (1 << 64) - 1


def random(key, counter):
    """SplitMix64; counter may be an array."""
    with np.errstate(over="ignore"):
        x = np.uint64(key) + (np.asarray(counter, np.uint64) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return x ^ x >> np.uint64(31)


def trailing_zeros(x):
    return np.log2((x & (~x + np.uint64(1))).astype(np.float64)).astype(np.uint64)


def gradient(case, rank, step):
    """In units."""
    key = random(random(case["seed"], rank), step)
    x = random(key, np.arange(case["n"]))
    e = trailing_zeros(x >> np.uint64(4) | np.uint64(1 << case["tail"]))
    whole = (np.uint64(1) << e) + ((x >> np.uint64(40)) & ((np.uint64(1) << e) - np.uint64(1)))
    g = whole.astype(np.float64)
    g[(x >> np.uint64(1)) % np.uint64(8) == 0] = 0
    g[x % np.uint64(2) == 1] *= -1
    for first, last, begin, end, factor in case["scale"]:
        if first <= step < last:
            g[begin:end] *= factor
    return g
