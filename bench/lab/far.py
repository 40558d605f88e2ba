#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Local steps (DiLoCo) of emulated hosts that are far apart; a host leaves without a word, another joins.

    cd bench/cluster; ./cluster.sh with 3 1gbit ../lab/far.py .../bench/cluster/cluster_cable

Two hosts make rounds. After some of them the third joins, later the second is killed. Cables delay each
way by --delay ms, lose --loss percent of what a host sends, and carry --mbit Mbit/s each way.
"""
import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ADDRESS = "10.77.0.1"  # of host 0
ROUNDS, JOINS_AT, DIES_AFTER = 40, 6, 8  # rounds without a change end it; rounds since the join


def orchestrate(given):
    script = pathlib.Path(__file__).resolve()
    cluster = script.parents[1] / "cluster" / "cluster.sh"
    with tempfile.TemporaryDirectory() as folder:
        control = pathlib.Path(folder, "control")
        os.mkfifo(control)
        cables = subprocess.Popen([cluster, "cables", given.cable, control])
        time.sleep(1)
        control.write_text(f"all from {given.loss} {given.delay} 0 {given.mbit}\n"
                           f"all to 0 0 0 {given.mbit}\n")

        def start(host, rank, nranks, *more):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(nranks), MASTER_PORT="29700",
                       MASTER_ADDR=ADDRESS if nranks > 1 else "127.0.0.1", FAR_FOLDER=folder,
                       GLOO_SOCKET_IFNAME="lo" if nranks == 1 else "eth0")
            command = [cluster, "exec", str(host), sys.executable, script, "--rank", *more]
            return subprocess.Popen([*command, "--elements", str(given.elements)], env=env)

        job = [start(0, 0, 2), start(1, 1, 2)]
        while not pathlib.Path(folder, "join").exists() and job[0].poll() is None:
            time.sleep(0.05)
        new = start(2, 0, 1, "--join")
        statuses = [one.wait() for one in (*job, new)]
        cables.terminate()
        print(f"exit statuses {statuses}: the second was killed")


def rank(given):
    import numpy as np
    import torch
    import tamis
    import tamis.torch

    folder = pathlib.Path(os.environ["FAR_FOLDER"])
    comm = tamis.comm(timeout_s=120) if not given.join else tamis.Comm.local(1)[0]
    name = "newcomer" if given.join else f"rank {comm.rank}"
    parameter = torch.nn.Parameter(torch.zeros(given.elements))
    target = torch.from_numpy(np.random.default_rng(1).standard_normal(given.elements).astype(np.float32))
    optimizer = tamis.torch.SparseLoCo(torch.optim.SGD([parameter], 0.1), [("w", parameter)],
                                       steps=8, density=0.25, comm=comm)
    state = tamis.ElasticState(comm, {"w": parameter.data}, reducers=[optimizer])
    began, rounds = time.monotonic(), []

    def train(state):
        begun = state.step
        while state.step < begun + 8 * ROUNDS:
            if name == "rank 1" and state.joins and state.step == begun + 8 * DIES_AFTER:
                os.kill(os.getpid(), signal.SIGKILL)
            before = time.monotonic()
            for _ in range(8):
                parameter.grad = parameter.detach() - target
                optimizer.step()
                state.step += 1
            rounds.append(time.monotonic() - before)
            if name == "newcomer" and len(rounds) == 1:
                print(f"newcomer: its first round ends {time.monotonic() - began:.1f} s after it came, at "
                      f"round {state.step // 8}", flush=True)
            if state.comm.rank == 0 and state.step == 8 * JOINS_AT and not state.joins:
                (folder / "join").touch()
            state.commit()

    tamis.run_elastic(train, state, grow=f"{ADDRESS}:29800", join=given.join)
    tamis.check_equal(state.comm, parameter.detach())
    print(f"{name}: {state.step // 8} rounds, median {statistics.median(rounds):.2f} s, longest "
          f"{max(rounds):.2f}; {state.comm.nranks} equal replicas, {state.recoveries} recoveries, error "
          f"{float((parameter.detach() - target).square().mean()):.3f}", flush=True)
    os._exit(0)  # torch's store may have died


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("cable", nargs="?", help="the program cluster_cable")
    parser.add_argument("--delay", type=float, default=50)
    parser.add_argument("--loss", type=float, default=0.5)
    parser.add_argument("--mbit", type=float, default=0, help="0: what the machine gives")
    parser.add_argument("--elements", type=int, default=500000)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--join", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank:
        rank(given)
    else:
        orchestrate(given)


if __name__ == "__main__":
    main()
