#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the project promises of a GPU against what was measured: goals.py RESULTS.jsonl

Prints one line for each promise: reached, missed, or not measured. Exit status 1 if one was missed,
77 if nothing was measured. Ratios are made of medians of one session on one device.
"""
import json
import sys


def load(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.startswith("{")]


class Records:
    def __init__(self, records):
        self.records = records

    def find(self, **wanted):
        """The last record that has all these values, or None."""
        for record in reversed(self.records):
            if all(record.get(name) == value for name, value in wanted.items()):
                return record
        return None

    def time_us(self, **wanted):
        record = self.find(**wanted)
        return record["time_us"]["median"] if record and "time_us" in record else None


def ratio(a, b):
    return a / b if a is not None and b else None


def step(n, density, scheme="tamis", grad="fp32"):
    return {"record": "perf", "n": n, "density": density, "scheme": scheme, "grad": grad,
            "output": "sparse", "replayed": True}


def copy_share(r, n, grad):
    """Part of the copy rate of the fused pass with candidates and norms; 8 parts, 1 %."""
    found = r.find(record="pass", n=n, grad=grad, parts=8, density=0.01, phases="accumulate")
    return found["copy_share"] if found else None


def step_share(r, n, grad):
    found = r.find(**step(n, 0.01, grad=grad))
    return 1.0 / found["memory_ratio"] if found and found.get("memory_ratio") else None


def worst(records, name):
    values = [x.get(name) for x in records if x.get("record") == "perf" and x.get("replayed")]
    values = [x for x in values if x is not None]
    return max(values) if values else None


def promises(r):
    """(what, measured, limit, whether more is better)"""
    small, large = 25000000, 138000000
    exact = "cyclic+global+predict+union"
    threshold = "cyclic+global+step+union"
    for n, grad, limit in ((large, "fp32", 0.90), (small, "fp32", 0.80), (large, "bf16", 0.88)):
        share = copy_share(r, n, grad)
        yield f"fused pass {grad}, n {n}: share of the copy rate", share, limit, True
    yield ("exact k / threshold mode, step",
           ratio(r.time_us(**step(large, 0.01, exact)), r.time_us(**step(large, 0.01, threshold))),
           1.05, False)
    yield ("norms / no norms, step",
           ratio(r.time_us(**step(large, 0.01)), r.time_us(**step(large, 0.01, exact))),
           1.03, False)
    for n in (small, large):
        for density in (0.01, 0.001):
            ours = r.time_us(**step(n, density))
            for name, limit in (("cub_select", 3), ("micro_mask", 3), ("torch_where", 3),
                                ("torch_topk", 8)):
                theirs = r.time_us(record="baseline", name=name, n=n, density=density)
                yield f"{name} / step, n {n}, {density:g}", ratio(theirs, ours), limit, True
    yield "blocking calls of the host per step", worst(r.records, "host_syncs"), 0, False
    yield "elements that differ from the CPU", worst(r.records, "wrong"), 0, False


def main():
    r = Records(load(sys.argv[1]))
    counts = {"reached": 0, "missed": 0, "not measured": 0}
    for n in (25000000, 138000000):
        for grad in ("fp32", "bf16"):
            share = step_share(r, n, grad)
            if share is not None:
                print(f"      whole step {grad}, n {n}, 1 %: {share:.3f} of the copy rate "
                      "for its pass alone")
    for what, measured, limit, more in promises(r):
        if measured is None:
            word, figure = "not measured", "-"
        else:
            good = measured >= limit if more else measured <= limit
            word, figure = "reached" if good else "missed", f"{measured:.3f}"
        counts[word] += 1
        print(f"      {word:12s} {what}: {figure} ({'at least' if more else 'at most'} {limit})")
    print("      " + ", ".join(f"{count} {word}" for word, count in counts.items()))
    if counts["missed"]:
        return 1
    return 0 if counts["reached"] else 77


if __name__ == "__main__":
    sys.exit(main())
