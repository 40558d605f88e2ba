# SPDX-License-Identifier: MIT
"""Tensors whose DLPack records tests make by hand, field by field, right or wrong."""

import ctypes


class Tensor(ctypes.Structure):
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


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

CPU, CUDA, PINNED, OPENCL, MANAGED = 1, 2, 3, 4, 13
INT, UINT, FLOAT, BFLOAT, COMPLEX = 0, 1, 2, 4, 5
READ_ONLY, COPIED = 1, 2


class Exporter:
    """A float32 array of numpy, with fields of its record replaced. Must outlive its capsules.

    `strides=None` gives NULL. `version` makes it a versioned record.
    """

    def __init__(self, array, name=None, version=None, flags=0, strides=None, shape=None, **fields):
        self.array = array
        shape = array.shape if shape is None else shape
        self.shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        values = dict(
            data=array.ctypes.data,
            device_type=CPU,
            device_id=0,
            ndim=len(shape),
            code=FLOAT,
            bits=32,
            lanes=1,
            shape=self.shape,
            byte_offset=0,
        )
        values.update(fields)
        tensor = Tensor(**values)
        if self.strides is not None:
            tensor.strides = self.strides
        self.device = (values["device_type"], values["device_id"])
        if version is None:
            self.name = name or b"dltensor"
            self.record = Legacy(tensor)
        else:
            self.name = name or b"dltensor_versioned"
            self.record = Versioned(version[0], version[1], None, None, flags, tensor)

    def __dlpack__(self, stream=None):
        return new_capsule(ctypes.addressof(self.record), self.name, None)

    def __dlpack_device__(self):
        return self.device
