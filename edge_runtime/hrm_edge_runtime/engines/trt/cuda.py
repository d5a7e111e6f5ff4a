"""CUDA as an engine needs it, through PyCUDA: memory, copies, one stream, graphs.

Memory comes in two kinds. Device memory holds what stays there: the carry and scratch. A `Shared` tensor is what the
host writes or reads: on an integrated GPU the very same pinned memory, which Orin's GPU reads uncached and its CPU
cached, so it is for small things touched once (CUDA for Tegra application note, section 3); on a card a pinned array
and its copy in device memory.

CUDA graphs record a stream's work once and launch it whole ever after: a segment is some two hundred small kernels, and
on a Jetson's CPU starting them one by one takes as long as they run. PyCUDA (2026.1) has no graphs, so six functions of
the driver's C library are called by name. Not run on a GPU yet.
"""

import ctypes
import importlib
import importlib.util
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import EngineLostError, EngineUnavailableError

INSTALL_PYCUDA = "install hrm-edge[jetson] on a machine with CUDA, or choose --engine cpu"
MEMORY_REMEDY = "use fewer --slots, leave the desktop (sudo systemctl isolate multi-user.target), or reboot"
CAPTURE_THREAD_LOCAL = 1  # other threads' CUDA calls do not break the recording


@dataclass(frozen=True, kw_only=True)
class GpuInfo:
    """Which GPU this is; `compute_capability` as "8.7"."""

    name: str
    compute_capability: str
    is_integrated: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """A tensor of the host's with the address under which the GPU sees it."""

    array: NDArray[Any]
    address: int


class CaptureError(RuntimeError):
    """Work that cannot be recorded; it can still be run one by one."""


class PycudaGpu:
    """The first CUDA device through PyCUDA, in the primary context that TensorRT uses as well, and one stream.

    Everything is ordered on that stream, and `wait` waits for all of it.

    The thread that makes it holds the context, so the same thread uses and closes it. `library` is the driver's C
    library, which PyCUDA has no graphs of. Raises EngineUnavailableError where there is no PyCUDA or no device.
    """

    def __init__(self, library: Any = None) -> None:
        self._cuda = _pycuda_driver()
        try:
            self._cuda.init()
            device = self._cuda.Device(0)
            self._context = device.retain_primary_context()
        except self._cuda.Error as error:
            raise EngineUnavailableError(f"CUDA does not start here ({error}): {INSTALL_PYCUDA}.") from error
        self._context.push()
        self._stream = self._cuda.Stream()
        self._library = library
        self._held: list[Any] = []
        self.info = _info(device, self._cuda.device_attribute)

    @staticmethod
    def look() -> GpuInfo:
        """What the first device is, without a context on it."""
        cuda = _pycuda_driver()
        cuda.init()
        return _info(cuda.Device(0), cuda.device_attribute)

    @property
    def stream(self) -> int:
        return int(self._stream.handle)

    def allocate(self, num_bytes: int) -> int:
        """The address of new device memory, zeroed."""
        with self._refusing_no_memory(num_bytes):
            memory = self._cuda.mem_alloc(max(1, num_bytes))
            self._cuda.memset_d8(int(memory), 0, max(1, num_bytes))
        self._held.append(memory)
        return int(memory)

    def share(self, shape: tuple[int, ...], dtype: Any) -> Shared:
        """A tensor that both sides see, zeroed."""
        flags = self._cuda.host_alloc_flags.DEVICEMAP if self.info.is_integrated else 0
        with self._refusing_no_memory(int(np.prod(shape)) * np.dtype(dtype).itemsize):
            array = self._cuda.pagelocked_empty(shape, dtype, mem_flags=flags)
        array[...] = 0
        if self.info.is_integrated:
            return Shared(array=array, address=int(array.base.get_device_pointer()))
        return Shared(array=array, address=self.allocate(array.nbytes))

    def upload(self, tensor: Shared) -> None:
        """Send what the host wrote to the GPU; nothing to do where the memory is the same."""
        if not self.info.is_integrated:
            with self._reporting_loss():
                self._cuda.memcpy_htod_async(tensor.address, tensor.array, self._stream)

    def download(self, tensor: Shared) -> None:
        """Fetch what the GPU wrote."""
        if not self.info.is_integrated:
            with self._reporting_loss():
                self._cuda.memcpy_dtoh_async(tensor.array, tensor.address, self._stream)

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        """Copy inside device memory."""
        with self._reporting_loss():
            self._cuda.memcpy_dtod_async(target, source, num_bytes, self._stream)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A copy of device memory, once all work before it is done."""
        array = np.empty(shape, dtype)
        with self._reporting_loss():
            self._cuda.memcpy_dtoh_async(array, address, self._stream)
        self.wait()
        return array

    def wait(self) -> None:
        with self._reporting_loss():
            self._stream.synchronize()

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` puts on the stream, without running it; returns the replay. Raises CaptureError."""
        if self._library is None:
            try:
                self._library = ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                raise CaptureError(f"there is no CUDA driver library ({error})") from error
        return _capture(self._library, self.stream, work)

    def close(self) -> None:
        """Release the memory, and leave the context as it was found."""
        self._held.clear()
        self._context.pop()

    @contextmanager
    def _refusing_no_memory(self, num_bytes: int) -> Generator[None]:
        try:
            yield
        except self._cuda.Error as error:
            asked = f"the GPU gives no {num_bytes / 1e6:.1f} MB"
            raise EngineUnavailableError(f"{asked} ({error}): {MEMORY_REMEDY}.") from error

    @contextmanager
    def _reporting_loss(self) -> Generator[None]:
        try:
            yield
        except self._cuda.Error as error:
            raise EngineLostError(
                f"CUDA failed ({error}), and nothing on this device can be trusted after that"
            ) from error


def _pycuda_driver() -> Any:
    if importlib.util.find_spec("pycuda") is None:
        raise EngineUnavailableError(f"PyCUDA is not installed: {INSTALL_PYCUDA}.")
    try:
        return importlib.import_module("pycuda.driver")
    except ImportError as error:  # PyCUDA is there and libcuda is not
        raise EngineUnavailableError(f"PyCUDA does not load ({error}): {INSTALL_PYCUDA}.") from error


def _info(device: Any, attributes: Any) -> GpuInfo:
    major, minor = device.compute_capability()
    return GpuInfo(
        name=device.name(),
        compute_capability=f"{major}.{minor}",
        is_integrated=bool(device.get_attribute(attributes.INTEGRATED)),
    )


def _capture(library: Any, stream: int, work: Callable[[], None]) -> Callable[[], None]:
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
