"""The part of `pycuda.driver` that `engines/trt/cuda.py` uses (names as in PyCUDA 2026.1), and a driver library.

Work put on a stream waits there until somebody synchronises, so a missing wait shows; while a stream is recorded,
nothing runs and the work goes into the graph. FAKE_CUDA_INTEGRATED=0 makes it a card with memory of its own: pinned
arrays and device memory are then different places, and a missing copy shows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

import numpy as np

NUMPY_OF: dict[str, Any] = {"tensor(int32)": np.int32, "tensor(float)": np.float32, "tensor(bool)": np.bool_}
GARBAGE, THREAD_LOCAL = 0xA5, 1


class Error(Exception):
    """As PyCUDA's."""


class MemoryError(Error):  # noqa: A001
    """As PyCUDA's."""


class LaunchError(Error):
    """As PyCUDA's."""


class device_attribute:  # noqa: N801
    INTEGRATED = 18


class host_alloc_flags:  # noqa: N801
    DEVICEMAP = 2


class Context:
    depth = 0

    def push(self) -> None:
        Context.depth += 1

    def pop(self) -> None:
        Context.depth -= 1


class Device:
    def __init__(self, number: int) -> None:
        assert number == 0

    def name(self) -> str:
        return os.environ.get("FAKE_CUDA_NAME", "Orin")

    def compute_capability(self) -> tuple[int, int]:
        return (8, 7)

    def get_attribute(self, attribute: int) -> int:
        assert attribute == device_attribute.INTEGRATED
        return int(os.environ.get("FAKE_CUDA_INTEGRATED", "1"))

    def retain_primary_context(self) -> Context:
        return Context()


STREAMS: dict[int, Stream] = {}


class Stream:
    def __init__(self) -> None:
        self.handle = 1000 + len(STREAMS)
        self.waiting: list[Callable[[], None]] = []
        self.recording: list[Callable[[], None]] | None = None
        STREAMS[self.handle] = self

    def put(self, work: Callable[[], None]) -> None:
        (self.waiting if self.recording is None else self.recording).append(work)

    def synchronize(self) -> None:
        assert self.recording is None, "a recorded stream cannot be waited for"
        if os.environ.get("FAKE_CUDA_FAILS") == "wait":
            raise LaunchError("cuStreamSynchronize failed: an illegal memory access was encountered")
        work, self.waiting = self.waiting, []
        for one in work:
            one()


def enqueue(stream: int, work: Callable[[], None]) -> None:
    STREAMS[stream].put(work)


class DeviceAllocation:
    def __init__(self, num_bytes: int) -> None:
        self._bytes = np.full(num_bytes, GARBAGE, np.uint8)

    def __int__(self) -> int:
        return self._bytes.ctypes.data


class PagelockedHostAllocation:
    """Pinned memory; the base of the arrays that PyCUDA gives."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, mem_flags: int) -> None:
        self._array = np.empty(shape, dtype)
        self._is_mapped = mem_flags == host_alloc_flags.DEVICEMAP
        self.__array_interface__ = self._array.__array_interface__

    def get_device_pointer(self) -> int:
        assert self._is_mapped, "only memory that was asked for as mapped has an address on the device"
        return self._array.ctypes.data


def init() -> None:
    if os.environ.get("FAKE_CUDA_FAILS") == "init":
        raise Error("cuInit failed: no CUDA-capable device is detected")


def mem_alloc(num_bytes: int) -> DeviceAllocation:
    if num_bytes > int(os.environ.get("FAKE_CUDA_BYTES", str(1 << 30))):
        raise MemoryError("cuMemAlloc failed: out of memory")
    return DeviceAllocation(num_bytes)


def memset_d8(address: int, value: int, num_bytes: int) -> None:
    ctypes.memset(address, value, num_bytes)


def pagelocked_empty(shape: tuple[int, ...], dtype: Any, mem_flags: int = 0) -> np.ndarray:
    return np.asarray(PagelockedHostAllocation(shape, dtype, mem_flags))


def memcpy_htod_async(address: int, array: np.ndarray, stream: Stream) -> None:
    stream.put(lambda: ctypes.memmove(address, array.ctypes.data, array.nbytes))


def memcpy_dtoh_async(array: np.ndarray, address: int, stream: Stream) -> None:
    stream.put(lambda: ctypes.memmove(array.ctypes.data, address, array.nbytes))


def memcpy_dtod_async(target: int, source: int, num_bytes: int, stream: Stream) -> None:
    stream.put(lambda: ctypes.memmove(target, source, num_bytes))


class Library:
    """libcuda's graph functions; `fails` names one that gives an error."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.launches = 0
        self._graphs: dict[int, list[Callable[[], None]]] = {}

    def cuStreamBeginCapture_v2(self, stream: ctypes.c_void_p, mode: int) -> int:
        assert mode == THREAD_LOCAL
        if self.fails == "cuStreamBeginCapture":
            return 900
        STREAMS[stream.value or 0].recording = []
        return 0

    def cuStreamEndCapture(self, stream: ctypes.c_void_p, graph: Any) -> int:
        recorded, STREAMS[stream.value or 0].recording = STREAMS[stream.value or 0].recording, None
        assert recorded is not None
        self._graphs[len(self._graphs) + 1] = recorded
        graph._obj.value = len(self._graphs)
        return 901 if self.fails == "cuStreamEndCapture" else 0

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: ctypes.c_void_p, flags: Any) -> int:
        assert flags.value == 0
        executable._obj.value = graph.value
        return 902 if self.fails == "cuGraphInstantiate" else 0

    def cuGraphDestroy(self, graph: ctypes.c_void_p) -> int:
        assert graph.value in self._graphs
        return 0

    def cuGraphLaunch(self, executable: ctypes.c_void_p, stream: ctypes.c_void_p) -> int:
        if self.fails == "cuGraphLaunch":
            return 700
        self.launches += 1
        for work in self._graphs[executable.value or 0]:
            STREAMS[stream.value or 0].put(work)
        return 0
