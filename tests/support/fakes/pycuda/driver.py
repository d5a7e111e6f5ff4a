"""The part of `pycuda.driver` that `engines/trt/drivers.py` uses, and a driver library.

Names as in PyCUDA 2026.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import fake_gpu
import numpy as np

Error = fake_gpu.RefusedError
MemoryError = fake_gpu.OutOfMemoryError
Stream = fake_gpu.Stream


class device_attribute:
    INTEGRATED = 18
    MULTIPROCESSOR_COUNT = 16


class Context:
    push = staticmethod(fake_gpu.push)
    pop = staticmethod(fake_gpu.pop)


class Device:
    def __init__(self, number: int) -> None:
        assert number == 0

    name = staticmethod(fake_gpu.name)
    get_attribute = staticmethod(fake_gpu.attribute)
    total_memory = staticmethod(fake_gpu.memory_bytes)

    def compute_capability(self) -> tuple[int, int]:
        return (8, 7)

    def retain_primary_context(self) -> Context:
        return Context()


class Event:
    def __init__(self, flags: int = 0) -> None:
        self._real = fake_gpu.Event(flags)
        self.record = self._real.record
        self.synchronize = self._real.synchronize

    def __del__(self) -> None:
        del fake_gpu.events[self._real.handle]


class DeviceAllocation:
    def __init__(self, num_bytes: int) -> None:
        self._address = fake_gpu.allocate(num_bytes)

    def __int__(self) -> int:
        return self._address

    def __del__(self) -> None:
        if hasattr(self, "_address"):
            del fake_gpu.memory[self._address]


class PagelockedHostAllocation:
    """Pinned memory; the base of the arrays that PyCUDA gives."""

    def __init__(self, shape: int, dtype: Any, mem_flags: int) -> None:
        assert dtype == "uint8"
        self._address = fake_gpu.pin(shape)
        self._is_mapped = mem_flags == fake_gpu.MAPPED
        self.__array_interface__ = fake_gpu.pinned[self._address].__array_interface__

    def get_device_pointer(self) -> int:
        assert self._is_mapped, "only mapped memory has an address on the device"
        return self._address

    def __del__(self) -> None:
        del fake_gpu.pinned[self._address]


mem_alloc = DeviceAllocation


def init() -> None:
    fake_gpu.refuse("init", fake_gpu.NO_DEVICE)


def memset_d8(address: int, value: int, num_bytes: int) -> None:
    ctypes.memset(address, value, num_bytes)


def pagelocked_empty(shape: int, dtype: Any, mem_flags: int = 0) -> np.ndarray:
    return np.asarray(PagelockedHostAllocation(shape, dtype, mem_flags))


def memcpy_htod_async(address: int, source: Any, stream: Stream) -> None:
    view = np.frombuffer(source, np.uint8)
    stream.put_copy(address, view.ctypes.data, view.nbytes)


def memcpy_dtoh_async(target: Any, address: int, stream: Stream) -> None:
    view = np.frombuffer(target, np.uint8)
    stream.put_copy(view.ctypes.data, address, view.nbytes)


def memcpy_dtod_async(target: int, source: int, num_bytes: int, stream: Stream) -> None:
    stream.put_copy(target, source, num_bytes)


class Library:
    """libcuda's graph functions."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return partial(_status_of, GRAPH_FUNCTIONS[name])


def _status_of(call: Callable[..., Any], *arguments: Any) -> int:
    """Call a function with plain numbers; its result goes to the handle passed by reference."""
    numbers = []
    handles = []
    for argument in arguments:
        if hasattr(argument, "_obj"):
            handles.append(argument._obj)
        else:
            numbers.append(getattr(argument, "value", argument))
    try:
        result = call(*numbers)
    except fake_gpu.RefusedError as refused:
        return refused.status
    for handle in handles:
        handle.value = result
    return 0


GRAPH_FUNCTIONS = {
    "cuStreamBeginCapture_v2": fake_gpu.begin_capture,
    "cuStreamEndCapture": fake_gpu.end_capture,
    "cuGraphInstantiateWithFlags": fake_gpu.instantiate,
    "cuGraphDestroy": fake_gpu.graphs.__getitem__,  # KeyError for one never made
    "cuGraphExecDestroy": fake_gpu.executables.pop,
    "cuGraphUpload": fake_gpu.upload,
    "cuGraphLaunch": fake_gpu.launch,
}
