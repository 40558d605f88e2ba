# SPDX-License-Identifier: MIT
"""torch.cuda where there is no GPU: devices, streams and events of the fake CUDA runtime, and tensors
that lie in its memory.

A rank is a thread. Operations of torch that change such tensors are given to the current stream, and
begin late; those that give values to the host wait for it. Whoever waits for the wrong stream reads
what has not been written yet.
"""

import contextlib
import ctypes
import sys
import threading
import time

import torch

from tamis import _core

fake = ctypes.CDLL(_core.__file__)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
fake.fake_cuda_enqueue.argtypes = [ctypes.c_void_p, ctypes.c_char_p, WORK] + 2 * [ctypes.c_void_p]
for name in ("cudaStreamSynchronize", "cudaStreamQuery", "cudaFree"):
    getattr(fake, name).argtypes = [ctypes.c_void_p]
fake.cudaEventRecord.argtypes = 2 * [ctypes.c_void_p]
fake.cudaStreamWaitEvent.argtypes = 2 * [ctypes.c_void_p] + [ctypes.c_uint]
NON_BLOCKING, NO_TIMING = 1, 2
DTYPES = {torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16)}

here = threading.local()
runs = []  # (begin, end, device): memory of all devices
_kept = []  # what streams still use
waits = []  # (who waits, for whom): streams, in order


def cuda(status):
    assert status == 0, f"the fake CUDA runtime says {status}"


# -- devices and streams -----------------------------------------------------------------------


def current_device():
    number = ctypes.c_int()
    cuda(fake.cudaGetDevice(ctypes.byref(number)))
    return number.value


def index_of(device):
    if device is None or getattr(device, "index", device) is None:
        return current_device()
    return device if isinstance(device, int) else torch.device(device).index


@contextlib.contextmanager
def device(which):
    before = current_device()
    cuda(fake.cudaSetDevice(index_of(which)))
    try:
        yield
    finally:
        cuda(fake.cudaSetDevice(before))


class Event:
    def __init__(self, stream):
        self.handle = ctypes.c_void_p()
        with device(stream.index):
            cuda(fake.cudaEventCreateWithFlags(ctypes.byref(self.handle), NO_TIMING))
        cuda(fake.cudaEventRecord(self.handle, stream.cuda_stream))
        _kept.append(self)


class Stream:
    def __init__(self, which=None, handle=None):
        self.index = index_of(which)
        made = ctypes.c_void_p(handle)
        if handle is None:
            with device(self.index):
                cuda(fake.cudaStreamCreateWithFlags(ctypes.byref(made), NON_BLOCKING))
        self.cuda_stream = made.value or 0

    def __eq__(self, other):
        return (self.index, self.cuda_stream) == (other.index, other.cuda_stream)

    def wait_stream(self, other):
        waits.append((self.cuda_stream, other.cuda_stream))
        event = Event(other)
        cuda(fake.cudaStreamWaitEvent(self.cuda_stream, event.handle, 0))

    def wait_event(self, event):
        cuda(fake.cudaStreamWaitEvent(self.cuda_stream, event.handle, 0))

    def synchronize(self):
        with device(self.index):
            cuda(fake.cudaStreamSynchronize(self.cuda_stream))


def current_stream(which=None):
    index = index_of(which)
    chosen = here.__dict__.setdefault("streams", {})
    if index not in chosen:
        chosen[index] = Stream(index)  # the legacy stream of the fake serves one thread at a time
    return chosen[index]


@contextlib.contextmanager
def stream(one):
    before = current_stream(one.index)
    here.streams[one.index] = one
    try:
        yield
    finally:
        here.streams[one.index] = before


LATE_S = 0.01


def give(one, do):
    """Have a stream call do(), after a while."""

    def late(_):
        time.sleep(LATE_S)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            do()

    work = WORK(late)
    _kept.append(work)
    with device(one.index):
        cuda(fake.fake_cuda_enqueue(one.cuda_stream, b"kernel", work, None, None))


# -- tensors -----------------------------------------------------------------------------------


class Record(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


CHANGE = {"mul_", "add_", "zero_", "copy_"}
# They only describe a tensor, so need not wait for a stream.
DESCRIBE = {"view", "detach", "data_ptr", "numel", "size", "stride", "is_contiguous", "as_strided",
            "element_size", "requires_grad_", "__get__", "__set__", "split", "_version", "expand_as"}


class OnDevice(torch.Tensor):
    """A tensor in the memory of a fake device."""

    @property
    def device(self):
        with torch._C.DisableTorchFunction():
            address = self.data_ptr()
        found = [index for begin, end, index in runs if begin <= address < end]
        return torch.device("cuda", found[0]) if found else torch.device("cpu")

    def cpu(self):
        current_stream(self.device).synchronize()
        with torch._C.DisableTorchFunction():
            return self.detach().as_subclass(torch.Tensor).clone()

    def __deepcopy__(self, memo):
        return self.clone()

    def __dlpack_device__(self):
        return (2, self.device.index)

    def __dlpack__(self, stream=None, **_):
        assert stream == -1, "the step itself names the stream"
        shape = (ctypes.c_int64 * max(1, self.dim()))(*self.shape)
        code, bits = DTYPES[self.dtype]
        record = Record(self.data_ptr(), 2, self.device.index, self.dim(), code, bits, 1,
                        ctypes.addressof(shape), None, 0, None, None)
        _kept.extend((shape, record))
        return new_capsule(ctypes.addressof(record), b"dltensor", None)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        first = next((a for a in args if isinstance(a, OnDevice)), None)
        if name in ("zeros_like", "empty_like", "clone") and first.device.type == "cuda":
            made = empty(first.shape, first.dtype, first.device.index)
            if name == "clone":
                return made.copy_(first)
            return made if name == "empty_like" else made.zero_()
        if first is None or name in DESCRIBE or first.device.type != "cuda":
            return super().__torch_function__(function, types, args, kwargs or {})
        if name in CHANGE and first is args[0]:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                alias = first.data  # with a count of changes of its own
                # torch counts a change when it is asked for it
                first.detach().as_strided((0,), (1,)).zero_()
            give(
                current_stream(first.device),
                lambda: function(alias, *args[1:], **(kwargs or {})),
            )
            return first
        current_stream(first.device).synchronize()
        return super().__torch_function__(function, types, args, kwargs or {})


def empty(shape, dtype=torch.float32, index=None):
    """Memory of a device, filled with 0xAB."""
    index = index_of(index)
    count = torch.Size(shape).numel()
    size = count * torch.empty((), dtype=dtype).element_size()
    place = ctypes.c_void_p()
    with device(index):
        cuda(fake.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(size)))
    runs.append((place.value, place.value + size, index))
    memory = (ctypes.c_char * size).from_address(place.value)
    return torch.frombuffer(memory, dtype=dtype).view(shape).as_subclass(OnDevice)


def put(target, values):
    """Copy a tensor of the host onto the device, in the order of the current stream."""
    target.copy_(values.to(target.dtype).contiguous())


def parameter(values, index=None):
    made = empty(values.shape, values.dtype, index)
    with torch._C.DisableTorchFunction():
        made.copy_(values)
    return torch.nn.Parameter(made)


to = torch.Tensor.to


def to_device(self, *args, **options):
    """Tensor.to, also to a fake device."""
    given = [one for one in (*args, *options.values()) if isinstance(one, torch.device)]
    if not given or given[0].type != "cuda":
        return to(self, *args, **options)
    if self.device.type == "cuda":
        return self
    made = empty(self.shape, self.dtype, given[0].index)
    put(made, self)
    return made


# -- in place of torch.cuda --------------------------------------------------------------------


class Future:
    """As torch.futures.Future(devices=...): its value is ready in the order of the streams that were
    current when it was set. Without devices it is torch's."""

    of_torch = torch.futures.Future
    __class_getitem__ = of_torch.__class_getitem__  # DDP compares the annotations of hooks

    def __new__(cls, *, devices=None):
        return super().__new__(cls) if devices else cls.of_torch()

    def __init__(self, *, devices=None):
        self.devices, self.events, self.result = devices, [], None

    def set_result(self, result):
        self.result = result
        self.events = [Event(current_stream(one)) for one in self.devices]

    def wait(self):
        for event, one in zip(self.events, self.devices):
            current_stream(one).wait_event(event)
        return self.result


def install(monkeypatch):
    for name in ("current_device", "current_stream", "device", "stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(sys.modules[__name__], name))
    monkeypatch.setattr(torch.futures, "Future", Future)
    monkeypatch.setattr(torch.Tensor, "to", to_device)
    del waits[:]
