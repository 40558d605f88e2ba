# SPDX-License-Identifier: MIT
"""A vector of float32 that speaks DLPack, of the standard library alone."""

import ctypes

from capsules import CPU, FLOAT, Legacy, Tensor, new_capsule


class Vector:
    """Must outlive its capsules: their record and the numbers lie in it."""

    def __init__(self, numbers):
        self.numbers = (ctypes.c_float * len(numbers))(*numbers)
        self._shape = (ctypes.c_int64 * 1)(len(numbers))
        tensor = Tensor(
            ctypes.addressof(self.numbers), CPU, 0, 1, FLOAT, 32, 1, self._shape, None, 0
        )
        self._record = Legacy(tensor, None, None)

    def __dlpack__(self, stream=None):
        return new_capsule(ctypes.addressof(self._record), b"dltensor", None)

    def __dlpack_device__(self):
        return (CPU, 0)
