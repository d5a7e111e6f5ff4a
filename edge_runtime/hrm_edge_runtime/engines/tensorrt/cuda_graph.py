"""CUDA graphs through the driver's C library: record a stream's work once, launch it whole ever after.

A segment is some two hundred small kernels, and on a Jetson's CPU starting them one by one takes as long as they run.
PyCUDA (2026.1) has no graphs, so six driver functions are called by name. Not run on a GPU yet.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from hrm_edge_runtime.engines.engine import EngineLostError

CAPTURE_THREAD_LOCAL = 1  # other threads' CUDA calls do not break the recording


class CaptureError(RuntimeError):
    """Work that cannot be recorded; it can still be run one by one."""


def open_library() -> Any:
    """The driver's library; raises CaptureError where it is missing."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CaptureError(f"there is no CUDA driver library ({error})") from error


def capture(library: Any, stream: int, work: Callable[[], None]) -> Callable[[], None]:
    """Record `work` on `stream` and give its replay; whatever fails, the stream is left out of recording."""
    handle, graph, executable = ctypes.c_void_p(stream), ctypes.c_void_p(), ctypes.c_void_p()
    _check(library.cuStreamBeginCapture_v2(handle, CAPTURE_THREAD_LOCAL), "cuStreamBeginCapture")
    try:
        work()
    finally:
        status = library.cuStreamEndCapture(handle, ctypes.byref(graph))
    _check(status, "cuStreamEndCapture")
    instantiated = library.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
    library.cuGraphDestroy(graph)
    _check(instantiated, "cuGraphInstantiate")

    def replay() -> None:
        status = library.cuGraphLaunch(executable, handle)
        if status:
            raise EngineLostError(f"the CUDA graph of a segment does not start (driver error {status})")

    return replay


def _check(status: int, call: str) -> None:
    if status:
        raise CaptureError(f"{call} gives driver error {status}")
