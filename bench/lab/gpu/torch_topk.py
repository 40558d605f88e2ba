#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cost of a step written in PyTorch, as in published programs: one JSON line each.

    torch_topk.py N DENSITY [RUNS]

    torch_topk   acc.add_(g, alpha=s); topk of |acc|; gather; clear
    torch_where  acc.add_(g, alpha=s); mask = |acc| >= threshold; nonzero; gather; torch.where:
                 the masking step of MiCRO's program, with its threshold known

Times are medians between two device events; the host waits inside nonzero, which cannot be avoided.
Without PyTorch or a device it prints why on one line and exits with status 77.
"""
import json
import statistics
import sys

BUFFERS = 4
WARMUP = 3


def skip(reason):
    print(json.dumps({"record": "baseline", "name": "torch", "skipped": reason}))
    sys.exit(77)


try:
    import torch
except ImportError as error:
    skip(f"PyTorch cannot be imported: {error}")
if not torch.cuda.is_available():
    skip("PyTorch sees no CUDA device")


def topk_step(acc, grad, k, threshold):
    acc.add_(grad, alpha=0.5)
    indices = torch.topk(acc.abs(), k, sorted=False).indices
    values = acc[indices]
    acc[indices] = 0.0
    return indices, values


def where_step(acc, grad, k, threshold):
    acc.add_(grad, alpha=0.5)
    mask = acc.abs() >= threshold
    indices = mask.nonzero(as_tuple=True)[0]
    values = acc[indices]
    acc.copy_(torch.where(mask, torch.zeros((), device=acc.device), acc))
    return indices, values


def make_gradients(n):
    """Heavy-tailed like those of tamis_perf: v (1 - v^2)^(-1/4), v uniform in (-1, 1)."""
    gradients = []
    for seed in range(BUFFERS):
        torch.manual_seed(seed)
        v = torch.rand(n, device="cuda").mul_(2.0).sub_(1.0).clamp_(-0.9999998, 0.9999998)
        gradients.append(v / (1.0 - v * v).sqrt_().sqrt_())
    return gradients


def time_runs(step, acc, gradients, k, threshold, runs):
    times = []
    for i in range(WARMUP + runs):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        acc.zero_()
        begin.record()
        indices, _ = step(acc, gradients[i % BUFFERS], k, threshold)
        end.record()
        end.synchronize()
        if i >= WARMUP:
            times.append(1e3 * begin.elapsed_time(end))
    return times, indices.numel()


def main():
    if len(sys.argv) < 3:
        print("usage: torch_topk.py N DENSITY [RUNS]", file=sys.stderr)
        return 2
    n, density = int(float(sys.argv[1])), float(sys.argv[2])
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 21
    k = max(1, int(density * n))
    v = 1.0 - density
    threshold = 0.5 * v / (1.0 - v * v) ** 0.25
    acc = torch.zeros(n, device="cuda")
    gradients = make_gradients(n)
    for name, step in (("torch_topk", topk_step), ("torch_where", where_step)):
        times, selected = time_runs(step, acc, gradients, k, threshold, runs)
        record = {"record": "baseline", "name": name, "n": n, "density": density, "grad": "fp32",
                  "runs": runs, "selected": selected, "torch": torch.__version__,
                  "time_us": {"min": round(min(times), 2),
                              "median": round(statistics.median(times), 2)}}
        print(json.dumps(record), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
