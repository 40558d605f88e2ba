# SPDX-License-Identifier: MIT
"""smoke.py NAME: the installed package in this interpreter: a step of two ranks that are threads.

Nothing but the standard library is needed. Prints one line: NAME, versions, ok.
"""

import platform
import sys
import threading

import tamis
from exporter import Vector

assert tamis.__file__.startswith(sys.prefix), f"{tamis.__file__} is not what was installed"

LENGTH, DENSITY, LARGE = 64, 0.125, 8  # 8 entries travel
GRADIENTS = [[0.25] * LENGTH, [0.5] * LENGTH]
for place in range(LARGE):
    GRADIENTS[0][8 * place] = 16.0 + place
    GRADIENTS[1][8 * place] = 32.0 + place
EXPECTED = [24.0 + i // 8 if i % 8 == 0 else 0.0 for i in range(LENGTH)]  # the mean

failures = []


def work(comm, out):
    try:
        reducer = tamis.Reducer(comm, tamis.Layout([("w", LENGTH)]), density=DENSITY)
        gradient, residual = Vector(GRADIENTS[comm.rank]), Vector([0.0] * LENGTH)
        reducer.start(gradient)
        reducer.wait()
        reducer.residual(residual)
        out[comm.rank] = list(gradient.numbers), list(residual.numbers)
        reducer.close()
    except BaseException as error:
        failures.append(error)
        comm.abort()  # else the other waits for its deadline


comms = tamis.Comm.local(2, timeout_ms=10000)
results = [None, None]
threads = [threading.Thread(target=work, args=(comm, results)) for comm in comms]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    raise failures[0]
for rank, (gradient, residual) in enumerate(results):
    assert gradient == EXPECTED, f"rank {rank}: {gradient}"
    kept = [0.0 if i % 8 == 0 else GRADIENTS[rank][i] for i in range(LENGTH)]
    assert residual == kept, f"rank {rank}: {residual}"
for comm in comms:
    comm.close()


def version_of(name):
    try:
        return f"{name} {__import__(name).__version__}"
    except ImportError:
        return f"no {name}"


parts = [platform.python_version(), version_of("numpy"), version_of("torch"), "ok"]
print(f"{sys.argv[1]}: {', '.join(parts)}")
