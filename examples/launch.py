#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Starts N processes on this machine as torchrun does (env://), and ends all when one fails.

    examples/launch.py -n 4 examples/ddp_fashion_mnist.py --epochs 2
    examples/launch.py -n 4 --go-on SCRIPT      others go on when a rank dies (tamis.run_elastic)

For machines without a working torchrun: that of torch 1.13 fails under Python 3.11. Each
process gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
OMP_NUM_THREADS=1 unless it is set. The exit status is that of the first process that failed.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import time
from typing import Any, List, NoReturn, Optional

Processes = List["subprocess.Popen[bytes]"]


def free_port() -> int:
    """A port that was free a moment ago. Rank 0 binds it again, and fails if it was taken since.

    It lies below the range that the system gives to outgoing connections, which may be many.
    """
    for port in random.sample(range(10000, 32768), 100):
        with socket.socket() as listener:
            try:
                listener.bind(("", port))
            except OSError:
                continue
            return port
    sys.exit("launch.py: none of 100 ports is free")


def start(
    rank: int, nranks: int, port: int, command: List[str]
) -> "subprocess.Popen[bytes]":
    environment = dict(
        os.environ,
        RANK=str(rank),
        WORLD_SIZE=str(nranks),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(nranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    environment.setdefault("OMP_NUM_THREADS", "1")
    return subprocess.Popen(command, env=environment)


def wait(processes: Processes, timeout: Optional[float], go_on: bool) -> int:
    """Exit status of the job: 0, or that of the first process seen to have failed; with go_on that
    of the first where none has ended well."""
    deadline = None if timeout is None else time.monotonic() + timeout
    failed = {}
    while True:
        states = [process.poll() for process in processes]
        for rank, state in enumerate(states):
            if state and rank not in failed:
                how = f"signal {-state}" if state < 0 else f"exit status {state}"
                print(f"launch.py: rank {rank} ended with {how}", file=sys.stderr)
                failed[rank] = state if state > 0 else 128 - state
        if failed and not go_on or len(failed) == len(processes):
            return next(iter(failed.values()))
        if None not in states:
            return 0
        if deadline is not None and time.monotonic() > deadline:
            print(f"launch.py: not done after {timeout:g} s", file=sys.stderr)
            return 124
        time.sleep(0.05)


def end(processes: Processes, grace_s: float = 5) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-n", "--nranks", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--timeout", type=float, metavar="S", help="end the job after S seconds")
    parser.add_argument("--go-on", action="store_true", help="end none when another fails")
    parser.add_argument("script", help="Python script, run by the Python that runs this one")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    options = parser.parse_args()
    if options.nranks < 1:
        parser.error("-n must be at least 1")

    signal.signal(signal.SIGTERM, interrupt)
    command = [sys.executable, options.script, *options.arguments]
    port = free_port()
    processes: Processes = []
    try:
        for rank in range(options.nranks):
            processes.append(start(rank, options.nranks, port, command))
        return wait(processes, options.timeout, options.go_on)
    except KeyboardInterrupt:
        return 130
    finally:
        end(processes)


if __name__ == "__main__":
    sys.exit(main())
