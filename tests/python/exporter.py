# SPDX-License-Identifier: MIT
"""A vector of float32 that speaks DLPack, of the standard library alone."""

import ctypes


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CPU, FLOAT = 1, 2


class Vector:
    """Must outlive its capsules: their record and the numbers lie in it."""

    def __init__(self, numbers):
        self.numbers = (ctypes.c_float * len(numbers))(*numbers)
        self._shape = (ctypes.c_int64 * 1)(len(numbers))
        tensor = _Tensor(
            ctypes.addressof(self.numbers), CPU, 0, 1, FLOAT, 32, 1, self._shape, None, 0
        )
        self._managed = _Managed(tensor, None, None)

    def __dlpack__(self, stream=None):
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self):
        return (CPU, 0)
