# SPDX-License-Identifier: MIT
"""Small messages between all ranks of a communicator."""

from typing import List

from ._arrays import zeros
from ._core import Comm, Layout, Reducer


def gather(comm: Comm, record: bytes) -> List[bytes]:
    """The records of all ranks, of the same length on all, in their order.

    A communicator has no call for bytes, but its dense sum of float32 is exact for whole numbers.

    Collective: yes, between steps          Errors: `Error`
    """
    length = len(record)
    if comm.nranks == 1:
        return [record]
    values = zeros(comm.nranks * length)
    for i, byte in enumerate(record):
        values[comm.rank * length + i] = byte
    layout = Layout([("records", comm.nranks * length)])
    reducer = Reducer(comm, layout, scheme="dense", density=1.0, op="sum")
    try:
        reducer.start(values)
        reducer.wait()
    finally:
        reducer.close()
    whole = bytes(int(value) for value in values.tolist())
    return [whole[at : at + length] for at in range(0, len(whole), length)]
