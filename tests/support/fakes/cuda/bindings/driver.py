"""The part of `cuda.bindings.driver` that `engines/trt/drivers.py` uses, as in 12.9 and 13.5.

Every function returns a tuple that begins with the status; if it fails the values are None. Handles
and device addresses are objects of their own classes and are taken as those or as numbers; an
enumeration is taken as itself alone. A host pointer is a plain number. Without a library the first
call raises RuntimeError.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import fake_gpu


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


class CUdevice_attribute(IntEnum):  # noqa: N801
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class _Handle:
    def __init__(self, number: int) -> None:
        self._number = number

    def __int__(self) -> int:
        return self._number


class CUdevice(_Handle): ...


class CUcontext(_Handle): ...


class CUstream(_Handle): ...


class CUevent(_Handle): ...


class CUdeviceptr(_Handle): ...


class CUgraph(_Handle): ...


class CUgraphExec(_Handle): ...


def _answer(call: Callable[[], Any], kind: Callable[[Any], Any] | None = None) -> tuple[Any, ...]:
    """Return the status, and the value if the function has one."""
    status = CUresult.CUDA_SUCCESS
    value = None
    try:
        value = call()
    except fake_gpu.RefusedError as refused:
        status = CUresult(refused.status)
    if kind is None:
        return (status,)
    if status is CUresult.CUDA_SUCCESS:
        value = kind(value)
    return status, value


def cuInit(flags: int) -> tuple[Any, ...]:
    assert flags == 0
    if os.environ.get("FAKE_CUDA_FAILS") == "library":
        raise RuntimeError("Failed to dlopen libcuda.so.1")
    return _answer(lambda: fake_gpu.refuse("init", fake_gpu.NO_DEVICE))


def cuDeviceGet(ordinal: int) -> tuple[Any, ...]:
    return _answer(lambda: ordinal, CUdevice)


def cuDeviceGetName(length: int, device: CUdevice) -> tuple[Any, ...]:
    assert int(device) == 0
    return _answer(lambda: fake_gpu.name().encode().ljust(length, b"\0"), bytes)


def cuDeviceGetAttribute(attribute: CUdevice_attribute, device: CUdevice) -> tuple[Any, ...]:
    _require(attribute, CUdevice_attribute)
    assert int(device) == 0
    return _answer(lambda: fake_gpu.attribute(attribute), int)


def cuDeviceTotalMem(device: CUdevice) -> tuple[Any, ...]:
    assert int(device) == 0
    return _answer(lambda: fake_gpu.memory_bytes(), int)


def cuDevicePrimaryCtxRetain(device: CUdevice) -> tuple[Any, ...]:
    return _answer(lambda: int(device), CUcontext)


def cuDevicePrimaryCtxRelease(device: CUdevice) -> tuple[Any, ...]:
    return _answer(lambda: int(device))


def cuCtxPushCurrent(context: CUcontext) -> tuple[Any, ...]:
    assert isinstance(context, CUcontext)
    return _answer(fake_gpu.push)


def cuCtxPopCurrent() -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.pop() or 0, CUcontext)


def cuStreamCreate(flags: int) -> tuple[Any, ...]:
    assert flags == 0
    return _answer(lambda: fake_gpu.Stream().handle, CUstream)


def cuStreamDestroy(stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.streams.pop(int(stream)))


def cuStreamSynchronize(stream: Any) -> tuple[Any, ...]:
    return _answer(fake_gpu.streams[int(stream)].synchronize)


def cuEventCreate(flags: int) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.Event(flags).handle, CUevent)


def cuEventRecord(event: Any, stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.events[int(event)].record(fake_gpu.streams[int(stream)]))


def cuEventSynchronize(event: Any) -> tuple[Any, ...]:
    return _answer(fake_gpu.events[int(event)].synchronize)


def cuEventDestroy(event: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.events.pop(int(event)))


def cuMemAlloc(num_bytes: int) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.allocate(num_bytes), CUdeviceptr)


def cuMemFree(address: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.memory.pop(int(address)))


def cuMemsetD8(address: Any, value: int, num_bytes: int) -> tuple[Any, ...]:
    return _answer(lambda: ctypes.memset(int(address), value, num_bytes))


def cuMemHostAlloc(num_bytes: int, flags: int) -> tuple[Any, ...]:
    assert flags == (fake_gpu.MAPPED if fake_gpu.attribute(fake_gpu.INTEGRATED) else 0)
    return _answer(lambda: fake_gpu.pin(num_bytes), int)


def cuMemHostGetDevicePointer(pointer: int, flags: int) -> tuple[Any, ...]:
    assert flags == 0
    assert pointer in fake_gpu.pinned
    return _answer(lambda: pointer, CUdeviceptr)


def cuMemFreeHost(pointer: int) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.pinned.pop(pointer))


def cuMemcpyHtoDAsync(target: Any, source: int, num_bytes: int, stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.streams[int(stream)].put_copy(int(target), source, num_bytes))


def cuMemcpyDtoHAsync(target: int, source: Any, num_bytes: int, stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.streams[int(stream)].put_copy(target, int(source), num_bytes))


def cuMemcpyDtoDAsync(target: Any, source: Any, num_bytes: int, stream: Any) -> tuple[Any, ...]:
    return _answer(
        lambda: fake_gpu.streams[int(stream)].put_copy(int(target), int(source), num_bytes)
    )


def cuStreamBeginCapture(stream: Any, mode: CUstreamCaptureMode) -> tuple[Any, ...]:
    _require(mode, CUstreamCaptureMode)
    return _answer(lambda: fake_gpu.begin_capture(int(stream), mode))


def cuStreamEndCapture(stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.end_capture(int(stream)), CUgraph)


def cuGraphInstantiate(graph: Any, flags: int) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.instantiate(int(graph), flags), CUgraphExec)


def cuGraphDestroy(graph: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.graphs[int(graph)])


def cuGraphExecDestroy(graph: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.executables.pop(int(graph)))


def cuGraphUpload(graph: Any, stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.upload(int(graph), int(stream)))


def cuGraphLaunch(graph: Any, stream: Any) -> tuple[Any, ...]:
    return _answer(lambda: fake_gpu.launch(int(graph), int(stream)))


def _require(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(
            f"Argument has incorrect type (expected {kind.__name__}, got {type(value).__name__})"
        )
