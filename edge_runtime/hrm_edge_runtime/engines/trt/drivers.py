"""The CUDA driver through NVIDIA's cuda-bindings, or through PyCUDA if only that is installed.

cuda-bindings has wheels for aarch64, so nothing is compiled on a board. PyCUDA (2026.1) is compiled
on the machine and lacks graphs, so its driver calls seven functions of the CUDA C library by name.
Only cuda-bindings ran on a GPU (an H100).
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from hrm_edge_runtime.engines.trt.causes import TensorRTError

INSTALL = "install hrm-edge[jetson], use --runtime nvidia in a container, or choose --engine cpu"
THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads may call CUDA meanwhile
MAPPED = 2  # CU_MEMHOSTALLOC_DEVICEMAP
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
SLEEPS = 1  # CU_EVENT_BLOCKING_SYNC


class GpuInfo(NamedTuple):
    """Which GPU this is; `compute_capability` as "8.7"."""

    name: str
    compute_capability: str
    is_integrated: bool
    num_sms: int
    memory_bytes: int


class CudaError(RuntimeError):
    """A driver call failed; the text is the call and the driver's error."""


def is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False


def driver_here() -> Driver:
    """The driver of the installed package, cuda-bindings first.

    Raises EngineUnavailableError if neither package is installed, or if it does not load.
    """
    drivers = {"cuda.bindings": BindingsDriver, "pycuda": PycudaDriver}
    for module, driver in drivers.items():
        if not is_installed(module):
            continue
        try:
            return driver()
        except Exception as error:  # built for another NumPy it can raise any error
            problem = f"{module} does not load ({error})"
            raise TensorRTError(problem, "machine", INSTALL) from error
    raise TensorRTError("neither cuda-bindings nor PyCUDA is installed", "machine", INSTALL)


class BindingsDriver:
    """The first device through cuda-bindings, written against 12.9 and 13.5.

    Addresses and handles are plain numbers. Calls raise CudaError.
    """

    def __init__(self) -> None:
        self._cuda = importlib.import_module("cuda.bindings.driver")

        self.free = partial(self._call, "cuMemFree")
        self.unpin = partial(self._call, "cuMemFreeHost")
        self.send = partial(self._call, "cuMemcpyHtoDAsync")
        self.fetch = partial(self._call, "cuMemcpyDtoHAsync")
        self.copy = partial(self._call, "cuMemcpyDtoDAsync")
        self.wait = partial(self._call, "cuStreamSynchronize")
        self.record = partial(self._call, "cuEventRecord")
        self.wait_for = partial(self._call, "cuEventSynchronize")
        self.destroy_event = partial(self._call, "cuEventDestroy")
        self.upload_graph = partial(self._call, "cuGraphUpload")
        self.launch = partial(self._call, "cuGraphLaunch")
        self.destroy = partial(self._call, "cuGraphExecDestroy")

    def info(self) -> GpuInfo:
        """Start the driver and describe the device, without a context."""
        self._call("cuInit", 0)
        device = self._call("cuDeviceGet", 0)
        name = self._call("cuDeviceGetName", 128, device).split(b"\0")[0]
        major = self._attribute("COMPUTE_CAPABILITY_MAJOR", device)
        minor = self._attribute("COMPUTE_CAPABILITY_MINOR", device)
        return GpuInfo(
            name=name.decode(),
            compute_capability=f"{major}.{minor}",
            is_integrated=bool(self._attribute("INTEGRATED", device)),
            num_sms=self._attribute("MULTIPROCESSOR_COUNT", device),
            memory_bytes=self._call("cuDeviceTotalMem", device),
        )

    def _attribute(self, name: str, device: Any) -> int:
        attribute = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return self._call("cuDeviceGetAttribute", attribute, device)

    def enter(self) -> int:
        """Make the primary context current on this thread; returns a new stream in it."""
        device = self._call("cuDeviceGet", 0)
        context = self._call("cuDevicePrimaryCtxRetain", device)
        self._call("cuCtxPushCurrent", context)
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
        device = self._call("cuDeviceGet", 0)
        self._call("cuDevicePrimaryCtxRelease", device)

    def allocate(self, num_bytes: int) -> int:
        address = int(self._call("cuMemAlloc", num_bytes))
        self._call("cuMemsetD8", address, 0, num_bytes)
        return address

    def pin(self, num_bytes: int, *, mapped: bool) -> tuple[int, int]:
        """Pinned host memory: its pointer, and its address on the GPU (0 unless `mapped`)."""
        if not mapped:
            return self._call("cuMemHostAlloc", num_bytes, 0), 0
        pointer = self._call("cuMemHostAlloc", num_bytes, MAPPED)
        return pointer, int(self._call("cuMemHostGetDevicePointer", pointer, 0))

    def new_event(self, *, sleeps: bool) -> int:
        return int(self._call("cuEventCreate", _event_flags(sleeps)))

    def begin_capture(self, stream: int) -> None:
        mode = self._cuda.CUstreamCaptureMode(THREAD_LOCAL)
        self._call("cuStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> int:
        recorded = self._call("cuStreamEndCapture", stream)
        try:
            return int(self._call("cuGraphInstantiate", recorded, 0))
        finally:
            self._call("cuGraphDestroy", recorded)

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            status, *values = getattr(self._cuda, name)(*arguments)
        except (RuntimeError, ValueError, KeyError) as error:
            # libcuda is missing, lacks this function, or gives a status that the bindings lack
            raise CudaError(f"{name}: {error}") from error
        if status:
            raise CudaError(f"{name} gives {self._cuda.CUresult(status).name}")
        return values[0] if values else None


class PycudaDriver:
    """As `BindingsDriver`, but through PyCUDA 2026.1.

    PyCUDA frees memory with the object that owns it, so these objects are held by address.
    """

    def __init__(self, library: Any = None) -> None:
        self._cuda = importlib.import_module("pycuda.driver")
        self._library = library
        self._held: dict[int, Any] = {}

        self.upload_graph = partial(self._call, "cuGraphUpload")
        self.launch = partial(self._call, "cuGraphLaunch")
        self.destroy = partial(self._call, "cuGraphExecDestroy")

    def info(self) -> GpuInfo:
        self._ask(self._cuda.init)
        device = self._ask(self._cuda.Device, 0)
        attributes = self._cuda.device_attribute
        major, minor = self._ask(device.compute_capability)
        return GpuInfo(
            name=self._ask(device.name),
            compute_capability=f"{major}.{minor}",
            is_integrated=bool(self._ask(device.get_attribute, attributes.INTEGRATED)),
            num_sms=self._ask(device.get_attribute, attributes.MULTIPROCESSOR_COUNT),
            memory_bytes=self._ask(device.total_memory),
        )

    def enter(self) -> int:
        device = self._ask(self._cuda.Device, 0)
        self._context = self._ask(device.retain_primary_context)
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
        flags = MAPPED if mapped else 0
        array = self._ask(self._cuda.pagelocked_empty, num_bytes, "uint8", mem_flags=flags)
        pointer: int = array.ctypes.data
        self._held[pointer] = array
        if not mapped:
            return pointer, 0
        return pointer, int(self._ask(array.base.get_device_pointer))

    def send(self, address: int, pointer: int, num_bytes: int, stream: int) -> None:
        memory = _bytes_at(pointer, num_bytes)
        self._ask(self._cuda.memcpy_htod_async, address, memory, self._held[stream])

    def fetch(self, pointer: int, address: int, num_bytes: int, stream: int) -> None:
        memory = _bytes_at(pointer, num_bytes)
        self._ask(self._cuda.memcpy_dtoh_async, memory, address, self._held[stream])

    def copy(self, target: int, source: int, num_bytes: int, stream: int) -> None:
        self._ask(self._cuda.memcpy_dtod_async, target, source, num_bytes, self._held[stream])

    def wait(self, stream_or_event: int) -> None:
        self._ask(self._held[stream_or_event].synchronize)

    wait_for = wait

    def new_event(self, *, sleeps: bool) -> int:
        event = self._ask(self._cuda.Event, _event_flags(sleeps))
        self._held[id(event)] = event
        return id(event)

    def record(self, event: int, stream: int) -> None:
        self._ask(self._held[event].record, self._held[stream])

    def begin_capture(self, stream: int) -> None:
        self._call("cuStreamBeginCapture_v2", stream, ctypes.c_int(THREAD_LOCAL))

    def end_capture(self, stream: int) -> int:
        recorded = ctypes.c_void_p()
        graph = ctypes.c_void_p()
        no_flags = ctypes.c_ulonglong(0)
        self._call("cuStreamEndCapture", stream, ctypes.byref(recorded))
        try:
            self._call("cuGraphInstantiateWithFlags", ctypes.byref(graph), recorded, no_flags)
        finally:
            self._call("cuGraphDestroy", recorded)
        return graph.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library; plain numbers are handles."""
        try:
            self._library = self._library or ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"the CUDA driver library is missing ({error})") from error
        words = [ctypes.c_void_p(one) if isinstance(one, int) else one for one in arguments]
        status = getattr(self._library, name)(*words)
        if status:
            raise CudaError(f"{name} gives driver error {status}")

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except self._cuda.Error as error:
            raise CudaError(str(error)) from error


Driver = BindingsDriver | PycudaDriver


def _event_flags(sleeps: bool) -> int:
    """Flags of an event; `sleeps` says whether the host sleeps or spins while it waits for it."""
    if sleeps:
        return NO_TIMING | SLEEPS
    return NO_TIMING


def _bytes_at(pointer: int, num_bytes: int) -> Any:
    return (ctypes.c_uint8 * num_bytes).from_address(pointer)
