"""The CUDA driver's calls, said alike by two: NVIDIA's cuda-bindings, or PyCUDA where only that is installed.

cuda-bindings has wheels for aarch64, so nothing is compiled on a board. PyCUDA (2026.1) is built on the machine and has
no graphs: six functions of the driver's C library are called by name for it. Only cuda-bindings ran on a GPU (an H100).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from hrm_edge_runtime.engines.engine import EngineUnavailableError

INSTALL = "install hrm-edge[jetson], in a container use --runtime nvidia, or choose --engine cpu"
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads' calls do not break the recording
MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP
NO_TIMING, SLEEPS = 2, 1  # CU_EVENT_DISABLE_TIMING, CU_EVENT_BLOCKING_SYNC
MAJOR, MINOR, INTEGRATED, NUM_SMS = 75, 76, 18, 16  # CUdevice_attribute


@dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """Which GPU this is; `compute_capability` as "8.7"."""

    name: str
    compute_capability: str
    is_integrated: bool
    num_sms: int
    memory_bytes: int


class CudaError(RuntimeError):
    """A driver call that failed; the text is the call and the driver's error."""


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package around it
        return False


def driver_here() -> Driver:
    """cuda-bindings, or PyCUDA where only that is installed; raises EngineUnavailableError where neither is."""
    for module, driver in (("cuda.bindings", BindingsDriver), ("pycuda", PycudaDriver)):
        if is_installed(module):
            try:
                return driver()
            except ImportError as error:
                raise EngineUnavailableError(f"{module} does not load ({error}): {INSTALL}.") from error
    raise EngineUnavailableError(f"neither cuda-bindings nor PyCUDA is installed: {INSTALL}.")


class BindingsDriver:
    """The first device through cuda-bindings (12.9 and 13.5 read): numbers for addresses and handles, or CudaError."""

    def __init__(self) -> None:
        self._cuda = importlib.import_module("cuda.bindings.driver")

        def of(name: str) -> Callable[..., Any]:
            return partial(self._call, name)

        self.free, self.unpin = of("cuMemFree"), of("cuMemFreeHost")
        self.send, self.fetch, self.copy = of("cuMemcpyHtoDAsync"), of("cuMemcpyDtoHAsync"), of("cuMemcpyDtoDAsync")
        self.wait, self.record, self.wait_for = of("cuStreamSynchronize"), of("cuEventRecord"), of("cuEventSynchronize")
        self.launch, self.destroy = of("cuGraphLaunch"), of("cuGraphExecDestroy")
        self.destroy_event = of("cuEventDestroy")

    def info(self) -> GpuInfo:
        """Start the driver and ask; makes no context."""
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        major, minor, integrated, num_sms = (
            self._call("cuDeviceGetAttribute", self._cuda.CUdevice_attribute(number), device)
            for number in (MAJOR, MINOR, INTEGRATED, NUM_SMS)
        )
        return GpuInfo(
            name=self._call("cuDeviceGetName", 128, device).split(b"\0")[0].decode(),
            compute_capability=f"{major}.{minor}",
            is_integrated=bool(integrated),
            num_sms=num_sms,
            memory_bytes=self._call("cuDeviceTotalMem", device),
        )

    def enter(self) -> int:
        """Make the primary context current on this thread; returns a new stream in it."""
        device = self._call("cuDeviceGet", 0)
        self._call("cuCtxPushCurrent", self._call("cuDevicePrimaryCtxRetain", device))
        try:
            return int(self._call("cuStreamCreate", 0))
        except CudaError:
            self._release()
            raise

    def leave(self, stream: int) -> None:
        try:
            self._call("cuStreamDestroy", stream)
        finally:
            self._release()

    def _release(self) -> None:
        self._call("cuCtxPopCurrent")
        self._call("cuDevicePrimaryCtxRelease", self._call("cuDeviceGet", 0))

    def allocate(self, num_bytes: int) -> int:
        address = int(self._call("cuMemAlloc", num_bytes))
        self._call("cuMemsetD8", address, 0, num_bytes)
        return address

    def pin(self, num_bytes: int, *, mapped: bool) -> tuple[int, int]:
        """Pinned host memory: its pointer, and the address under which the GPU sees it (0 unless `mapped`)."""
        pointer = self._call("cuMemHostAlloc", num_bytes, MAPPED if mapped else 0)
        return pointer, int(self._call("cuMemHostGetDevicePointer", pointer, 0)) if mapped else 0

    def new_event(self, *, sleeps: bool) -> int:
        return int(self._call("cuEventCreate", NO_TIMING | (SLEEPS if sleeps else 0)))

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture", stream, self._cuda.CUstreamCaptureMode(THREAD_LOCAL))

    def end_capture(self, stream: int) -> int:
        recorded = self._call("cuStreamEndCapture", stream)
        try:
            return int(self._call("cuGraphInstantiate", recorded, 0))
        finally:
            self._call("cuGraphDestroy", recorded)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            status, *values = getattr(self._cuda, name)(*arguments)
        except RuntimeError as error:  # there is no libcuda, or it lacks this function
            raise CudaError(f"{name}: {error}") from error
        if status:
            raise CudaError(f"{name} gives {self._cuda.CUresult(status).name}")
        return values[0] if values else None


class PycudaDriver:
    """The same through PyCUDA 2026.1, which frees memory with the object that stands for it: held by address."""

    def __init__(self, library: Any = None) -> None:
        self._cuda = importlib.import_module("pycuda.driver")
        self._library = library
        self._held: dict[int, Any] = {}

    def info(self) -> GpuInfo:
        self._ask(self._cuda.init)
        device, attributes = self._ask(self._cuda.Device, 0), self._cuda.device_attribute
        return GpuInfo(
            name=self._ask(device.name),
            compute_capability=".".join(map(str, self._ask(device.compute_capability))),
            is_integrated=bool(self._ask(device.get_attribute, attributes.INTEGRATED)),
            num_sms=self._ask(device.get_attribute, attributes.MULTIPROCESSOR_COUNT),
            memory_bytes=self._ask(device.total_memory),
        )

    def enter(self) -> int:
        self._context = self._ask(self._ask(self._cuda.Device, 0).retain_primary_context)
        self._ask(self._context.push)
        try:
            stream = self._ask(self._cuda.Stream)
        except CudaError:
            self._context.pop()
            raise
        self._held[int(stream.handle)] = stream
        return int(stream.handle)

    def leave(self, stream: int) -> None:
        del self._held[stream]
        self._ask(self._context.pop)

    def allocate(self, num_bytes: int) -> int:
        memory = self._ask(self._cuda.mem_alloc, num_bytes)
        self._ask(self._cuda.memset_d8, int(memory), 0, num_bytes)
        self._held[int(memory)] = memory
        return int(memory)

    def free(self, address: int) -> None:
        del self._held[address]

    unpin = destroy_event = free

    def pin(self, num_bytes: int, *, mapped: bool) -> tuple[int, int]:
        array = self._ask(self._cuda.pagelocked_empty, num_bytes, "uint8", mem_flags=MAPPED if mapped else 0)
        self._held[array.ctypes.data] = array
        return array.ctypes.data, int(self._ask(array.base.get_device_pointer)) if mapped else 0

    def send(self, address: int, pointer: int, num_bytes: int, stream: int) -> None:
        self._ask(self._cuda.memcpy_htod_async, address, _bytes_at(pointer, num_bytes), self._held[stream])

    def fetch(self, pointer: int, address: int, num_bytes: int, stream: int) -> None:
        self._ask(self._cuda.memcpy_dtoh_async, _bytes_at(pointer, num_bytes), address, self._held[stream])

    def copy(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self._ask(self._cuda.memcpy_dtod_async, target, source, num_bytes, self._held[stream])

    def wait(self, stream_or_event: int) -> None:
        self._ask(self._held[stream_or_event].synchronize)

    wait_for = wait

    def new_event(self, *, sleeps: bool) -> int:
        event = self._ask(self._cuda.Event, NO_TIMING | (SLEEPS if sleeps else 0))
        self._held[id(event)] = event
        return id(event)

    def record(self, event: int, stream: int) -> None:
        self._ask(self._held[event].record, self._held[stream])

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), THREAD_LOCAL)

    def end_capture(self, stream: int) -> int:
        recorded, graph = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(recorded))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(graph), recorded, ctypes.c_ulonglong(0))
        finally:
            self._call("cuGraphDestroy", recorded)
        return graph.value or 0

    def launch(self, graph: int, stream: int) -> None:
        self._call("cuGraphLaunch", ctypes.c_void_p(graph), ctypes.c_void_p(stream))

    def destroy(self, graph: int) -> None:
        self._call("cuGraphExecDestroy", ctypes.c_void_p(graph))

    def _call(self, name: str, *arguments: Any) -> None:
        try:
            self._library = self._library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"there is no CUDA driver library ({error})") from error
        if status := getattr(self._library, name)(*arguments):
            raise CudaError(f"{name} gives driver error {status}")

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except self._cuda.Error as error:
            raise CudaError(str(error)) from error


Driver = BindingsDriver | PycudaDriver


def _bytes_at(pointer: int, num_bytes: int) -> Any:
    return (ctypes.c_uint8 * num_bytes).from_address(pointer)
