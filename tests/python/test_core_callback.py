# SPDX-License-Identifier: MIT
"""tamis._core: an all-gather in Python."""

import numpy as np
import pytest
from core_support import N, SEGMENTS, Table, gradient, ranks, refused
from tamis._core import Comm, Error, Layout, Reducer


def test_a_callback_carries_the_same_bits_as_threads():
    def run(comms):
        layout, out = Layout(SEGMENTS), [None] * 3

        def work(rank):
            reducer = Reducer(comms[rank], layout, density=0.1)
            grads = [gradient(10 * rank + i) for i in range(4)]
            for grad in grads:
                reducer.start(grad)
                reducer.wait()
            out[rank] = np.concatenate(grads)
            reducer.close()
            comms[rank].close()

        ranks(3, work)
        return out

    table = Table(3)
    by_callback = run([Comm.callback(r, 3, table.of(r), 20000) for r in range(3)])
    by_threads = run(Comm.local(3, 20000))
    for a in by_callback:
        assert np.array_equal(a, by_threads[0])


def over(allgather):
    """A reducer of one rank whose all-gather may be replaced."""
    box = [lambda send, recv: recv.__setitem__(slice(None), send)]
    comm = Comm.callback(0, 1, lambda send, recv: box[0](send, recv))
    reducer = Reducer(comm, Layout(SEGMENTS))
    box[0] = allgather
    return comm, reducer


def lost(reducer):
    reducer.start(gradient())
    with pytest.raises(Error) as caught:
        reducer.wait()
    assert caught.value.lost == "comm"
    return caught.value


def test_what_a_callback_raises_is_the_cause():
    def broken(send, recv):
        seen = np.frombuffer(recv, np.uint8)  # lives on in the traceback
        raise ValueError("the network is gone", len(seen))

    comm, reducer = over(broken)
    error = lost(reducer)
    assert error.status == "TAMIS_E_TRANSPORT" == comm.status
    assert isinstance(error.__cause__, ValueError) and "network" in str(error.__cause__)
    assert error.__cause__.__traceback__ is not None
    assert "all-gather callback returned" in str(error) and "the network is gone" in str(error)
    with pytest.raises(Error) as caught:
        reducer.start(gradient())
    assert caught.value.lost == "comm" and caught.value.__cause__ is None
    out = np.zeros(N, np.float32)
    reducer.residual(out)  # the work is saved
    assert out.any()


def test_a_callback_says_by_its_exception_that_time_is_up():
    def late(send, recv):
        raise TimeoutError("rank 3 is late")

    assert lost(over(late)[1]).status == "TAMIS_E_TIMEOUT"


def test_a_kept_view_is_void():
    kept = []

    def keeps(send, recv):
        recv[:] = send
        assert send.readonly and not recv.readonly and len(send) == len(recv)
        kept.extend([send, recv])

    reducer = over(keeps)[1]
    reducer.start(gradient())
    reducer.wait()
    for view in kept:
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_an_array_over_a_view_must_not_outlive_the_call():
    kept = []

    def keeps(send, recv):
        recv[:] = send
        kept.append(np.frombuffer(send, np.uint8))

    error = lost(over(keeps)[1])
    assert isinstance(error.__cause__, BufferError) and "copy" in str(error.__cause__)


def test_a_callback_cannot_use_the_objects_that_called_it():
    said = []

    def nested(send, recv):
        recv[:] = send
        for call in (reducer.wait, reducer.close, reducer.stats, comm.close):
            said.append(refused(call).status)
        said.append(refused(Reducer, comm, Layout(SEGMENTS)).status)

    comm, reducer = over(nested)
    reducer.start(gradient())
    reducer.wait()
    assert set(said) == {"TAMIS_E_STATE"} and len(said) % 5 == 0
    reducer.close()


def test_a_callback_has_its_arguments_checked():
    with pytest.raises(TypeError):
        Comm.callback(0, 1, None)
    assert "rank 1 is out of range: nranks is 1" in str(refused(Comm.callback, 1, 1, print))
    assert "-1" in str(refused(Comm.callback, -1, 1, print))
    with pytest.raises(TypeError):
        Comm()
