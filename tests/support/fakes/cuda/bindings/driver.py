"""The part of `cuda.bindings.driver` that `engines/trt/drivers.py` uses, as in 12.9 and 13.5.

Every function returns a tuple that begins with the status; if it fails the values are None. Handles
and device addresses are objects and are taken as those or as numbers; an enumeration is taken as
itself alone. A host pointer is a plain number.
"""

from __future__ import annotations

import ctypes
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


class CUdevice_attribute(IntEnum):
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16
    CU_DEVICE_ATTRIBUTE_INTEGRATED = 18
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76


class CUstreamCaptureMode(IntEnum):
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1


class Handle:
    """A handle or a device address; the real module has a class of each kind."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __int__(self) -> int:
        return self._number


def _function(
    call: Callable[..., Any], kind: Callable[[Any], Any] | None = None
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that gives the status, and with `kind` a value of that kind."""

    def function(*arguments: object) -> tuple[Any, ...]:
        status = CUresult.CUDA_SUCCESS
        value = None
        try:
            value = call(*map(_number_of, arguments))
        except fake_gpu.RefusedError as refused:
            status = CUresult(refused.status)
        if kind is None:
            return (status,)
        if status is CUresult.CUDA_SUCCESS:
            value = kind(value)
        return status, value

    return function


def _number_of(argument: object) -> object:
    return int(argument) if isinstance(argument, Handle) else argument


def _require(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        found = type(value).__name__
        raise TypeError(f"Argument has incorrect type (expected {kind.__name__}, got {found})")


def _init(flags: int) -> None:
    assert flags == 0
    fake_gpu.refuse("init", fake_gpu.NO_DEVICE)


def _name(length: int, device: int) -> bytes:
    assert device == 0
    return fake_gpu.name().encode().ljust(length, b"\0")


def _attribute(attribute: CUdevice_attribute, device: int) -> int:
    _require(attribute, CUdevice_attribute)
    assert device == 0
    return fake_gpu.attribute(attribute)


def _create_stream(flags: int) -> int:
    assert flags == 0
    return fake_gpu.Stream().handle


def _allocate_host(num_bytes: int, flags: int) -> int:
    assert flags == (fake_gpu.MAPPED if fake_gpu.attribute(fake_gpu.INTEGRATED) else 0)
    return fake_gpu.pin(num_bytes)


def _host_on_device(pointer: int, flags: int) -> int:
    assert flags == 0
    assert pointer in fake_gpu.pinned
    return pointer


def _copy(target: int, source: int, num_bytes: int, stream: int) -> None:
    fake_gpu.streams[stream].put_copy(target, source, num_bytes)


def _begin_capture(stream: int, mode: CUstreamCaptureMode) -> None:
    _require(mode, CUstreamCaptureMode)
    fake_gpu.begin_capture(stream, mode)


def _record(event: int, stream: int) -> None:
    fake_gpu.events[event].record(fake_gpu.streams[stream])


FUNCTIONS = {
    "cuInit": _function(_init),
    "cuDeviceGet": _function(int, Handle),
    "cuDeviceGetName": _function(_name, bytes),
    "cuDeviceGetAttribute": _function(_attribute, int),
    "cuDeviceTotalMem": _function(lambda _device: fake_gpu.memory_bytes(), int),
    "cuDevicePrimaryCtxRetain": _function(int, Handle),
    "cuDevicePrimaryCtxRelease": _function(int),
    "cuCtxPushCurrent": _function(lambda _context: fake_gpu.push()),
    "cuCtxPopCurrent": _function(lambda: fake_gpu.pop() or 0, Handle),
    "cuStreamCreate": _function(_create_stream, Handle),
    "cuStreamDestroy": _function(fake_gpu.streams.pop),
    "cuStreamSynchronize": _function(lambda stream: fake_gpu.streams[stream].synchronize()),
    "cuStreamBeginCapture": _function(_begin_capture),
    "cuStreamEndCapture": _function(fake_gpu.end_capture, Handle),
    "cuEventCreate": _function(lambda flags: fake_gpu.Event(flags).handle, Handle),
    "cuEventRecord": _function(_record),
    "cuEventSynchronize": _function(lambda event: fake_gpu.events[event].synchronize()),
    "cuEventDestroy": _function(fake_gpu.events.pop),
    "cuMemAlloc": _function(fake_gpu.allocate, Handle),
    "cuMemFree": _function(fake_gpu.memory.pop),
    "cuMemsetD8": _function(ctypes.memset),
    "cuMemHostAlloc": _function(_allocate_host, int),
    "cuMemHostGetDevicePointer": _function(_host_on_device, Handle),
    "cuMemFreeHost": _function(fake_gpu.pinned.pop),
    "cuMemcpyHtoDAsync": _function(_copy),
    "cuMemcpyDtoHAsync": _function(_copy),
    "cuMemcpyDtoDAsync": _function(_copy),
    "cuGraphInstantiate": _function(fake_gpu.instantiate, Handle),
    "cuGraphDestroy": _function(fake_gpu.graphs.__getitem__),
    "cuGraphExecDestroy": _function(fake_gpu.executables.pop),
    "cuGraphUpload": _function(fake_gpu.upload),
    "cuGraphLaunch": _function(fake_gpu.launch),
}
globals().update(FUNCTIONS)
