#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step of ranks that any launcher has started: milliseconds, and bytes on the loopback interface; or
with --die how long after a death the others end their next step.

    examples/launch.py -n 8 bench/lab/launched.py                TAMIS_TRANSPORT=torch: over gloo
    mpirun -np 8 python3 bench/lab/launched.py
    examples/launch.py -n 4 --go-on bench/lab/launched.py --elements 500000 --die 1,2

For bytes the ranks must use that interface: UCX_TLS=tcp,self, or OMPI_MCA_btl=tcp,self.
"""
import argparse
import os
import pathlib
import signal
import statistics
import tempfile
import time

import numpy as np

import tamis


def loopback_bytes():
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":")[1].split()[8])
    return 0


def measure(comm, reducer, gradient, steps):
    def step():
        own = gradient.copy()
        begin = time.perf_counter()
        reducer.start(own)
        reducer.wait()
        return time.perf_counter() - begin

    def together():
        tamis.check_equal(comm, np.zeros(4, np.float32))

    for _ in range(8):
        step()
    together()
    before = loopback_bytes()
    together()
    seconds = [step() for _ in range(steps)]
    together()
    if comm.rank == 0:
        sent = (loopback_bytes() - before) / steps
        dense = 2 * gradient.nbytes * (comm.nranks - 1)
        print(f"{comm.transport}, {comm.nranks} ranks: {1e3 * statistics.median(seconds):.2f} ms, {sent:.0f} "
              f"bytes a step of all ranks, dense all-reduces send {dense / max(sent, 1):.1f} times that")


def survive(comm, reducer, gradient, dying, folder):
    ended, me = [], comm.rank
    state = tamis.ElasticState(comm, {"w": np.zeros_like(gradient)}, own={}, reducers=[reducer])

    def train(state):
        while state.step < 60:
            if me in dying and state.step == 20 + 15 * dying.index(me):
                (folder / str(dying.index(me))).write_text(str(time.monotonic()))
                os.kill(os.getpid(), signal.SIGKILL)
            state.reducers[0].start(gradient.copy())
            state.reducers[0].wait()
            state.step += 1
            ended.append(time.monotonic())
            state.commit()

    tamis.run_elastic(train, state)
    for n in range(len(dying) if state.comm.rank == 0 else 0):
        died = float((folder / str(n)).read_text())
        later = [f"{at - died:.3f}" for at in ended if at > died]
        print(f"death {n}: the next steps end {', '.join(later[:2])} s after it", flush=True)
    os._exit(0)  # torch's store may have died with rank 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--elements", type=int, default=1000000)
    parser.add_argument("--density", type=float, default=0.033)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--die", metavar="RANK[,RANK]", help="ranks that are killed")
    given = parser.parse_args()
    comm = tamis.comm(timeout_s=60)
    reducer = tamis.Reducer(comm, tamis.Layout([("w", given.elements)]), density=given.density)
    gradient = np.random.default_rng(comm.rank).standard_normal(given.elements).astype(np.float32)
    if given.die:
        folder = pathlib.Path(tempfile.gettempdir(), f"launched-{os.getppid()}")
        folder.mkdir(exist_ok=True)
        survive(comm, reducer, gradient, [int(rank) for rank in given.die.split(",")], folder)
    measure(comm, reducer, gradient, given.steps)


if __name__ == "__main__":
    main()
