# SPDX-License-Identifier: MIT
"""Values as bytes and back: what state_dict() of modules and optimizers returns, without pickle.

    8 bytes      length of the text
    the text     JSON. Numbers, texts, None and booleans are themselves, all else is a list:
                     ["list", ...]  ["tuple", ...]  ["dict", [key, value], ...]
                     ["bytes", begin, end]
                     ["numpy", dtype, shape, begin, end]      ["torch", dtype, shape, begin, end]
    the rest     where begin and end point to
"""

import json
import struct
from typing import Any, List

from ._arrays import numpy_of, tensor_bytes, torch_of

_LENGTH = struct.Struct("<Q")


class _Writer:
    def __init__(self) -> None:
        self.parts: List[bytes] = []
        self.used = 0

    def _store(self, data: bytes) -> List[int]:
        self.parts.append(data)
        self.used += len(data)
        return [self.used - len(data), self.used]

    def node(self, value: Any, where: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return [kind, *(self.node(one, f"{where}[{i}]") for i, one in enumerate(value))]
        if isinstance(value, dict):
            keys = [self.node(key, where) for key in value]
            found = [self.node(one, f"{where}[{key!r}]") for key, one in value.items()]
            return ["dict", *zip(keys, found)]
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", *self._store(bytes(value))]
        return self._array(value, where)

    def _array(self, value: Any, where: str) -> Any:
        torch = torch_of(value)
        if torch and value.layout == torch.strided and not value.is_quantized:
            kind = str(value.dtype).split(".")[1]
            return ["torch", kind, list(value.shape), *self._store(tensor_bytes(value))]
        if numpy_of(value) and value.dtype.kind not in "OV":
            return ["numpy", value.dtype.str, list(value.shape), *self._store(value.tobytes())]
        raise TypeError(
            f"{where} is a {type(value).__name__}, which cannot be saved: numbers, texts, bytes,"
            " lists, tuples, dicts, arrays of numpy and tensors of torch can"
        )


def encode(value: Any, where: str) -> bytes:
    """@param where  what `value` is called in errors

    Errors: TypeError naming a part that cannot be saved
    """
    writer = _Writer()
    text = json.dumps(writer.node(value, where)).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *writer.parts])


def decode(data: bytes) -> Any:
    """What encode was given. Arrays are copies."""
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    return _value(json.loads(data[_LENGTH.size : begin]), memoryview(data)[begin:])


def _value(node: Any, rest: memoryview) -> Any:
    if not isinstance(node, list):
        return node
    kind, *parts = node
    if kind == "list":
        return [_value(part, rest) for part in parts]
    if kind == "tuple":
        return tuple(_value(part, rest) for part in parts)
    if kind == "dict":
        return {_value(key, rest): _value(value, rest) for key, value in parts}
    if kind == "bytes":
        return bytes(rest[parts[0] : parts[1]])
    dtype, shape, begin, end = parts
    make = _numpy if kind == "numpy" else _torch
    return make(dtype, shape, rest[begin:end])


def _numpy(dtype: str, shape: List[int], data: memoryview) -> Any:
    import numpy

    array = numpy.frombuffer(bytearray(data), dtype) if data else numpy.zeros(0, dtype)
    return array.reshape(shape)[()]  # a scalar if it was one


def _torch(dtype: str, shape: List[int], data: memoryview) -> Any:
    import torch

    kind = getattr(torch, dtype)
    if not data:
        return torch.zeros(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
