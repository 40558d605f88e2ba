# SPDX-License-Identifier: MIT
"""What the tests of elastic training share: a small training run with NumPy, on any communicator.

    python3 elastic_support.py FOLDER     a rank of a job over env://, which test_elastic_restart.py
                                          starts by torchrun: see main()
"""

import os
import pathlib
import signal
import sys
import threading

import numpy as np

import tamis
from core_support import ranks

SEGMENTS = [("first", 96), ("second", 32)]
N = 128
TARGET = np.linspace(-1, 1, N).astype(np.float32)
RATE = np.float32(0.3)


def gradient(w, step, rank, nranks):
    """A rank's own gradient of |w - TARGET|^2 / 2, with noise that depends on its place alone."""
    noise = np.random.default_rng([step, rank, nranks]).standard_normal(N).astype(np.float32)
    return (w - TARGET) + np.float32(0.1) * noise


class Run:
    """A rank: weights, the second of them an optimizer's momentum, and a reducer."""

    def __init__(self, comm, **options):
        self.w, self.momentum = np.zeros(N, np.float32), np.zeros(N, np.float32)
        self.reducer = tamis.Reducer(comm, tamis.Layout(SEGMENTS), density=0.1, **options)
        self.own = np.full(1, comm.rank, np.float32)
        self.state = tamis.ElasticState(
            comm,
            {"w": self.w, "momentum": self.momentum},
            own={"own": self.own},
            reducers=[self.reducer],
        )
        self.calls = []  # (step, nranks) whenever train was called

    def step(self, state):
        grad = gradient(self.w, state.step, state.comm.rank, state.comm.nranks)
        state.reducers[0].start(grad)
        state.reducers[0].wait()
        self.momentum[:] = np.float32(0.5) * self.momentum + grad
        self.w -= RATE * self.momentum
        state.step += 1

    def train(self, steps, before=lambda state: None, every=1):
        def train(state):
            self.calls.append((state.step, state.comm.nranks))
            while state.step < steps:
                before(state)
                self.step(state)
                if state.step % every == 0:
                    state.commit()
            return self.w.copy()

        return train


class Dies(Exception):
    """What ends a rank."""


class Death:
    """Ends rank `victim` of `nranks` before a step, when all of these have made the one before: a
    rank that still was in its exchange would otherwise be a step behind."""

    def __init__(self, nranks, victim, step):
        self.nranks, self.victim, self.step = nranks, victim, step
        self.all_there = threading.Barrier(nranks, timeout=60)

    def __call__(self, state):
        if (state.comm.nranks, state.step) != (self.nranks, self.step):
            return
        rank = state.comm.rank
        self.all_there.wait()
        if rank == self.victim:
            raise Dies


def elastic(train, state, **options):
    """run_elastic on a rank that closes what it has when it dies."""
    try:
        return tamis.run_elastic(train, state, **options)
    except BaseException as error:
        if not isinstance(error, tamis.Error):  # else the others may still read what all get
            state.close()
        raise


def residual(reducer):
    out = np.zeros(N, np.float32)
    reducer.residual(out)
    return out


def on_ranks(count, work, timeout_s=100):
    """What work(rank) returned, or raised, on `count` threads."""
    out = [None] * count

    def keep(rank):
        try:
            out[rank] = work(rank)
        except BaseException as error:
            out[rank] = error

    ranks(count, keep, timeout_s)
    return out


def run_local(nranks, steps, folder=None, timeout_ms=100000, **options):
    """A run that nothing disturbs, on threads. The weights of all ranks, and their runs."""
    comms = tamis.Comm.local(nranks, timeout_ms)
    runs = [None] * nranks

    def work(rank):
        runs[rank] = Run(comms[rank], **options)
        return elastic(runs[rank].train(steps), runs[rank].state, folder=folder)

    out = on_ranks(nranks, work)
    for one in out:
        if isinstance(one, BaseException):
            raise one
    return out, runs


def reference(nranks, stages):
    """Weights of a run whose ranks become fewer: stages of (ranks of the one before, last step)."""
    comms = tamis.Comm.local(nranks, 60000)
    numbers = list(range(nranks))
    runs = on_ranks(nranks, lambda rank: Run(comms[rank]))
    for left, last in stages:
        if len(left) < len(numbers):
            numbers = [numbers[rank] for rank in left]

        def work(place):
            run = runs[numbers[place]]
            if run.state.comm.nranks > len(left):
                smaller = run.state.comm.shrink(left)
                part = run.state.parts[0]
                part.object, _ = part.object.migrate(smaller)
                run.state.comm = smaller
            while run.state.step < last:
                run.step(run.state)

        assert on_ranks(len(left), work) == [None] * len(left)
    return runs[numbers[0]].w


def kill_once(folder, step):
    """Before that step rank 1 kills its process, in its first life."""

    def before(state):
        mark = pathlib.Path(folder, "killed")
        if state.step == step and state.comm.rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def main(folder):
    """Ranks of torchrun, over gloo. Rank 1 is killed before step 7, and 10 steps are made. Every
    second commit is a set. Each rank leaves its weights, and where it began."""
    comm = tamis.comm("torch", timeout_s=60)
    run = Run(comm)
    w = tamis.run_elastic(
        run.train(10, kill_once(folder, 7)),
        run.state,
        folder=os.path.join(folder, "sets"),
        save_every=2,
    )
    np.savez(os.path.join(folder, f"rank{comm.rank}.npz"), w=w, calls=np.array(run.calls))


if __name__ == "__main__":
    main(sys.argv[1])
