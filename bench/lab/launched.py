#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A step of ranks that any launcher has started: milliseconds, and bytes on the loopback interface; or
with --die how long after a death the others end their next step, with --joins how long newcomers take.

    examples/launch.py -n 8 bench/lab/launched.py                TAMIS_TRANSPORT=torch: over gloo
    mpirun -np 8 python3 bench/lab/launched.py
    examples/launch.py -n 4 --go-on bench/lab/launched.py --elements 500000 --die 1,2
    examples/launch.py -n 2 bench/lab/launched.py --elements 500000 --joins 2

For bytes the ranks must use that interface: UCX_TLS=tcp,self, or OMPI_MCA_btl=tcp,self.
"""
import argparse
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
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


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_newcomer(given):
    alone = dict(os.environ, RANK="0", WORLD_SIZE="1", MASTER_PORT=str(free_port()))
    command = [sys.executable, __file__, "--join", "--elements", str(given.elements)]
    return subprocess.Popen(command + ["--total", str(given.total)], env=alone)


def enlarge(comm, reducer, gradient, given):
    """Newcomers come one after another; parameters and two moments are shared."""
    rows = {name: np.full_like(gradient, comm.rank if given.join else 0) for name in ("w", "m", "v")}
    state = tamis.ElasticState(comm, rows, reducers=[reducer])
    began, commits, idle, children = time.monotonic(), [], [], []

    def commit():
        before = time.monotonic()
        try:
            state.commit()
            idle.append(time.monotonic() - before)
        except BaseException:
            commits.append(time.monotonic() - before)
            raise

    def train(state):
        last = state.step + 40
        while state.step < last or state.comm.nranks < given.total:
            own = gradient.copy()
            state.reducers[0].start(own)
            state.reducers[0].wait()
            rows["w"] -= own
            if given.join and not idle:
                print(f"newcomer: its first step ends {time.monotonic() - began:.2f} s after it came")
            state.step += 1
            if comm.rank == 0 and not given.join and state.step % 20 == 0 and len(children) < given.joins:
                children.append(start_newcomer(given))
            commit()

    tamis.run_elastic(train, state, grow=True, join=given.join)
    tamis.check_equal(state.comm, rows["w"])
    if state.comm.rank == 0:
        took = ", ".join(f"{1e3 * one:.0f}" for one in commits)
        print(f"the job: commits in which ranks joined took {took} ms, others "
              f"{1e3 * statistics.median(idle):.1f}; {state.comm.nranks} equal replicas")
    for child in children:
        child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--elements", type=int, default=1000000)
    parser.add_argument("--density", type=float, default=0.033)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--die", metavar="RANK[,RANK]", help="ranks that are killed")
    parser.add_argument("--joins", type=int, default=0, help="newcomers, one after another")
    parser.add_argument("--join", action="store_true", help="be one")
    parser.add_argument("--total", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.joins:
        os.environ.setdefault("TAMIS_RENDEZVOUS", f"127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}")
    comm = tamis.comm(timeout_s=60)
    reducer = tamis.Reducer(comm, tamis.Layout([("w", given.elements)]), density=given.density)
    gradient = np.random.default_rng(comm.rank).standard_normal(given.elements).astype(np.float32)
    if given.die:
        folder = pathlib.Path(tempfile.gettempdir(), f"launched-{os.getppid()}")
        folder.mkdir(exist_ok=True)
        survive(comm, reducer, gradient, [int(rank) for rank in given.die.split(",")], folder)
    if given.joins or given.join:
        given.total = given.total or comm.nranks + given.joins
        enlarge(comm, reducer, gradient, given)
        return
    measure(comm, reducer, gradient, given.steps)


if __name__ == "__main__":
    main()
