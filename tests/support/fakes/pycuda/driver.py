"""The part of `pycuda.driver` that `engines/trt/drivers.py` uses, and a driver library.

Names as in PyCUDA 2026.1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import fake_gpu
import numpy as np


class Error(Exception):
    """As PyCUDA's."""


class MemoryError(Error):  # noqa: A001
    """As PyCUDA's."""


def _raising(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except fake_gpu.RefusedError as refused:
            raise Error(f"cuda call failed: {refused}") from None

    return called


class device_attribute:  # noqa: N801
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

    def compute_capability(self) -> tuple[int, int]:
        return (8, 7)

    def total_memory(self) -> int:
        return fake_gpu.memory_bytes()

    def retain_primary_context(self) -> Context:
        return Context()


class Stream:
    def __init__(self) -> None:
        self.real = _raising(fake_gpu.Stream)()
        self.handle = self.real.handle

    def synchronize(self) -> None:
        _raising(self.real.synchronize)()


class Event:
    def __init__(self, flags: int = 0) -> None:
        self._real = _raising(fake_gpu.Event)(flags)

    def record(self, stream: Stream) -> None:
        _raising(self._real.record)(stream.real)

    def synchronize(self) -> None:
        _raising(self._real.synchronize)()

    def __del__(self) -> None:
        fake_gpu.events.pop(self._real.handle)


class DeviceAllocation:
    def __init__(self, address: int) -> None:
        self._address = address

    def __int__(self) -> int:
        return self._address

    def __del__(self) -> None:
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


def init() -> None:
    if fake_gpu.is_set_to_fail("init"):
        raise Error("cuInit failed: no CUDA-capable device is detected")


def mem_alloc(num_bytes: int) -> DeviceAllocation:
    try:
        return DeviceAllocation(fake_gpu.allocate(num_bytes))
    except fake_gpu.RefusedError:
        raise MemoryError("cuMemAlloc failed: out of memory") from None


def memset_d8(address: int, value: int, num_bytes: int) -> None:
    ctypes.memset(address, value, num_bytes)


def pagelocked_empty(shape: int, dtype: Any, mem_flags: int = 0) -> np.ndarray:
    return np.asarray(PagelockedHostAllocation(shape, dtype, mem_flags))


def memcpy_htod_async(address: int, source: Any, stream: Stream) -> None:
    view = np.frombuffer(source, np.uint8)
    _raising(stream.real.put_copy)(address, view.ctypes.data, view.nbytes)


def memcpy_dtoh_async(target: Any, address: int, stream: Stream) -> None:
    view = np.frombuffer(target, np.uint8)
    _raising(stream.real.put_copy)(view.ctypes.data, address, view.nbytes)


def memcpy_dtod_async(target: int, source: int, num_bytes: int, stream: Stream) -> None:
    _raising(stream.real.put_copy)(target, source, num_bytes)


def _status_of(call: Callable[[], Any]) -> int:
    try:
        call()
    except fake_gpu.RefusedError as refused:
        return refused.status
    return 0


class Library:
    """libcuda's graph functions."""

    def cuStreamBeginCapture_v2(self, stream: ctypes.c_void_p, mode: int) -> int:
        return _status_of(lambda: fake_gpu.begin_capture(stream.value or 0, mode))

    def cuStreamEndCapture(self, stream: ctypes.c_void_p, graph: Any) -> int:
        return _status_of(
            lambda: setattr(graph._obj, "value", fake_gpu.end_capture(stream.value or 0))
        )

    def cuGraphInstantiateWithFlags(
        self, executable: Any, graph: ctypes.c_void_p, flags: Any
    ) -> int:
        made = lambda: fake_gpu.instantiate(graph.value or 0, flags.value)  # noqa: E731
        return _status_of(lambda: setattr(executable._obj, "value", made()))

    def cuGraphDestroy(self, graph: ctypes.c_void_p) -> int:
        fake_gpu.graphs[graph.value or 0]  # a graph that was never made is an error here
        return 0

    def cuGraphExecDestroy(self, executable: ctypes.c_void_p) -> int:
        del fake_gpu.executables[executable.value or 0]
        return 0

    def cuGraphUpload(self, executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        return _status_of(lambda: fake_gpu.upload(executable.value or 0, stream.value or 0))

    def cuGraphLaunch(self, executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        return _status_of(lambda: fake_gpu.launch(executable.value or 0, stream.value or 0))
