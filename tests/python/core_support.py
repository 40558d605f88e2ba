# SPDX-License-Identifier: MIT
"""What the tests of tamis._core share."""

import threading

import numpy as np
import pytest
from tamis._core import Comm, Error, Layout, Reducer

SEGMENTS = [("first", 96), ("second", 32)]
N = 128


def alone(**options):
    """A reducer of one rank, over threads."""
    return Reducer(Comm.local(1)[0], Layout(SEGMENTS), **options)


def gradient(seed=0, n=N):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def ranks(count, work, timeout_s=200):
    """work(rank) on `count` threads; raises what the first of them raised."""
    errors = []

    def guarded(rank):
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(r,), daemon=True) for r in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
        assert not thread.is_alive(), "a rank hangs"
    if errors:
        raise errors[0]


def refused(call, *args, **keywords):
    """The Error of a call, which costs nothing."""
    with pytest.raises(Error) as caught:
        call(*args, **keywords)
    assert caught.value.lost == "nothing"
    return caught.value


class Table:
    """An all-gather for threads, in Python."""

    def __init__(self, nranks):
        self.barrier = threading.Barrier(nranks, timeout=100)
        self.sent = [None] * nranks

    def of(self, rank):
        def allgather(send, recv):
            self.sent[rank] = bytes(send)
            self.barrier.wait()
            recv[:] = b"".join(self.sent)
            self.barrier.wait()

        return allgather
