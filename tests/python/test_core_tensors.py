# SPDX-License-Identifier: MIT
"""tamis._core: every check of a tensor that comes by DLPack."""

import gc

import capsules
import numpy as np
import pytest
from capsules import Exporter
from core_support import N, alone, gradient, refused

from tamis import _core

VERSIONED = tuple(int(x) for x in np.__version__.split(".")[:2]) >= (2, 1)


@pytest.mark.parametrize(
    "words, make",
    [
        ("not contiguous", lambda: np.zeros(2 * N, np.float32)[::2]),
        ("not contiguous", lambda: np.zeros((N // 2, 2), np.float32).T),
        ("elements of float64, not float32", lambda: np.zeros(N, np.float64)),
        ("Convert it to float32 (numpy: .astype(np.float32)", lambda: np.zeros(N, np.float64)),
        ("elements of int32, not float32", lambda: np.zeros(N, np.int32)),
        ("elements of float16, not float32", lambda: np.zeros(N, np.float16)),
        ("127 elements, not 128", lambda: np.zeros(N - 1, np.float32)),
        ("256 elements, not 128", lambda: np.zeros(2 * N, np.float32)),
        ("neither a tensor", lambda: 3.5),
        ("in CUDA memory (device 2)", lambda: hand(device_type=capsules.CUDA, device_id=2)),
        ("in CUDA memory", lambda: hand(device_type=capsules.MANAGED)),
        ("DLPack device type 4", lambda: hand(device_type=capsules.OPENCL)),
        ("elements of 2 lanes", lambda: hand(lanes=2)),
        ("elements of complex64", lambda: hand(code=capsules.COMPLEX, bits=64)),
        ("elements of bfloat16", lambda: hand(code=capsules.BFLOAT, bits=16)),
        ("not contiguous", lambda: hand(shape=(2, 64), strides=(1, 2))),
        ("invalid extent", lambda: hand(shape=(-128, -1))),
        ("invalid extent", lambda: hand(shape=(2**62, 2**62))),
        ("DLPack 2.0", lambda: hand(version=(2, 0))),
        ("read-only", lambda: hand(version=(1, 0), flags=capsules.READ_ONLY)),
        ("was copied", lambda: hand(version=(1, 1), flags=capsules.COPIED)),
        ("already consumed", lambda: hand(name=b"used_dltensor")),
        ("already consumed", lambda: hand(name=b"used_dltensor_versioned", version=(1, 0))),
    ],
)
def test_a_wrong_tensor_is_refused_with_its_own_sentence(words, make):
    reducer, bad = alone(), make()
    for call in (reducer.start, reducer.accumulate):
        error = refused(call, bad)
        assert error.status == "TAMIS_E_ARGUMENT"
        assert words in str(error) and "the gradient" in str(error)
        assert error.remedy and str(error).endswith(error.remedy)
    good = gradient()  # and nothing has begun
    reducer.start(good)
    reducer.wait()


def hand(**fields):
    return Exporter(np.zeros(N, np.float32), **fields)


def test_the_sentence_names_the_segment():
    reducer = alone()
    error = refused(reducer.start, [np.zeros(96, np.float32), np.zeros(31, np.float32)])
    assert "the gradient of second has 31 elements, not 32" in str(error)
    error = refused(reducer.plan, [1], [np.zeros(32, np.float64)])
    assert "the gradient of second has elements of float64" in str(error)


def test_a_read_only_array_is_refused_and_sparse_output_reads_it():
    frozen = gradient()
    before = frozen.copy()
    frozen.flags.writeable = False
    error = refused(alone().start, frozen)
    assert "read-only" in str(error) or "readonly" in str(error)
    if not VERSIONED:
        pytest.skip("this numpy lends nothing that is read-only")
    reducer = alone(output="sparse")
    reducer.start(frozen)
    reducer.wait()
    assert np.array_equal(frozen, before)
    indices, values = reducer.result()
    assert np.frombuffer(indices, np.uint32)[0] == np.argmax(abs(before))
    assert np.frombuffer(values, np.float32)[0] == before[np.argmax(abs(before))]


def test_what_an_exporter_raises_is_the_cause():
    class Broken:
        def __dlpack__(self, **keywords):
            raise BufferError("it is on the moon")

        def __dlpack_device__(self):
            return (1, 0)

    error = refused(alone().start, Broken())
    assert "on the moon" in str(error) and isinstance(error.__cause__, BufferError)


class Curious(Exporter):
    """What its __dlpack__ runs holds every object that there is, as gc.get_objects() in some thread
    may do at any time."""

    def __dlpack__(self, stream=None):
        self.seen = gc.get_objects()
        return super().__dlpack__(stream)


def test_others_may_hold_all_objects_meanwhile():
    layout, comm = _core.Layout([("a", 5), ("b", 7)]), _core.Comm.local(1)[0]
    reducer = _core.Reducer(comm, layout, scheme="dense")
    lent = [Curious(np.ones(5, np.float32)), Curious(np.ones(7, np.float32))]
    reducer.ready(reducer.plan([0, 1], lent))
    reducer.wait()
    reducer.start(lent)
    reducer.wait()
    local = _core.Local(reducer, lent, steps=2)
    local.step()
    local.close()


def test_strides_may_be_absent_and_axes_of_one_element_do_not_count():
    for fields in (
        dict(strides=None),
        dict(shape=(4, 32), strides=None),
        dict(shape=(4, 1, 32), strides=(32, 7, 1)),
        dict(shape=(1, 128), strides=(999, 1)),
        dict(device_type=capsules.PINNED),
        dict(version=(1, 3)),
    ):
        array = gradient()
        top = np.argmax(abs(array))
        value = array[top]
        reducer = alone(density=0.01)
        reducer.start(Exporter(array, **fields))
        reducer.wait()
        assert array[top] == value and np.count_nonzero(array) == 1


def test_byte_offset_is_honoured():
    array = np.concatenate([np.full(8, 7, np.float32), gradient()])
    top = 8 + np.argmax(abs(array[8:]))
    value = array[top]
    reducer = alone(density=0.01)
    reducer.start(Exporter(array, shape=(N,), byte_offset=8 * 4))
    reducer.wait()
    assert np.all(array[:8] == 7)
    assert array[top] == value and np.count_nonzero(array[8:]) == 1


def test_an_empty_tensor_is_refused():
    assert "0 elements" in str(refused(alone().start, np.zeros((0, 5), np.float32)))
