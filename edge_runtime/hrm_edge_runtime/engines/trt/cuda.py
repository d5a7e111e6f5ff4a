"""CUDA as an engine needs it: memory, copies, one stream, graphs. `Gpu` works over both drivers.

`Shared` tensors are what the host writes or reads. On an integrated GPU both sides use the same
pinned memory. Orin's GPU reads it uncached and its CPU cached, so it suits small data that is
touched once (CUDA for Tegra application note, section 3). On a card they are pinned memory and its
copy on the device, sent in one transfer.

The host sleeps while it waits on an integrated GPU, where a spinning core takes power from
everything else. It spins on a card, where waking up takes longer. A CUDA graph launches all of a
segment's work at once: on a Jetson's CPU, starting its two hundred kernels one by one takes as long
as they run. Ran on an H100; not on an integrated GPU yet.
"""

import ctypes
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import EngineLostError, Shape
from hrm_edge_runtime.engines.trt.causes import TensorRTError, cause_of
from hrm_edge_runtime.engines.trt.drivers import INSTALL, CudaError, Driver, GpuInfo, driver_here

ALIGNMENT = 256  # bytes; TensorRT requires this alignment of every tensor


class Shared(NamedTuple):
    """Host tensors in one block of memory, and the addresses under which the GPU sees them."""

    arrays: dict[str, NDArray[Any]]
    addresses: dict[str, int]
    memory: NDArray[Any]
    address: int


def look() -> GpuInfo:
    """The first device, without a context on it; raises EngineUnavailableError if there is none."""
    return _started(lambda: driver_here().info())


class Gpu:
    """The first CUDA device in its primary context, which TensorRT uses too, and one stream.

    Only the thread that creates it may use and close it. Raises EngineUnavailableError if there is
    no driver or device.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or driver_here()
        self.info = _started(self._driver.info)
        self.stream = _started(self._driver.enter)
        self._held: list[tuple[Callable[[int], None], int]] = []

    def allocate(self, num_bytes: int) -> int:
        """The address of new device memory, zeroed."""
        with self._checking_memory(num_bytes):
            address = self._driver.allocate(max(1, num_bytes))
        return self._keep(self._driver.free, address)

    def share(self, tensors: Mapping[str, tuple[Shape, Any]]) -> Shared:
        """Tensors of these shapes and types that both sides see, zeroed."""
        layout = _layout(tensors)
        num_bytes = layout.itemsize
        with self._checking_memory(num_bytes):
            pointer, mapped = self._driver.pin(num_bytes, mapped=self.info.is_integrated)
        self._keep(self._driver.unpin, pointer)
        ctypes.memset(pointer, 0, num_bytes)
        block = (ctypes.c_uint8 * num_bytes).from_address(pointer)
        memory = np.ctypeslib.as_array(block).view(layout).reshape(())
        address = mapped or self.allocate(num_bytes)
        arrays: dict[str, NDArray[Any]] = {}
        addresses: dict[str, int] = {}
        for name, (_, offset, *_) in (layout.fields or {}).items():
            arrays[name] = memory[name]
            addresses[name] = address + offset
        return Shared(arrays, addresses, memory, address)

    def upload(self, shared: Shared) -> None:
        """Send what the host wrote to the GPU; an integrated GPU sees it already."""
        if not self.info.is_integrated:
            memory = shared.memory
            self._do(
                self._driver.send, shared.address, memory.ctypes.data, memory.nbytes, self.stream
            )

    def download(self, shared: Shared) -> None:
        """Fetch what the GPU wrote; the host sees an integrated GPU's writes already."""
        if not self.info.is_integrated:
            memory = shared.memory
            self._do(
                self._driver.fetch, memory.ctypes.data, shared.address, memory.nbytes, self.stream
            )

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        self._do(self._driver.copy, target, source, num_bytes, self.stream)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A copy of device memory, after all work before it."""
        array = np.empty(shape, dtype)
        self._do(self._driver.fetch, array.ctypes.data, address, array.nbytes, self.stream)
        self.wait()
        return array

    def wait(self) -> None:
        self._do(self._driver.wait, self.stream)

    def event(self) -> int:
        sleeps = self.info.is_integrated
        event = _started(lambda: self._driver.new_event(sleeps=sleeps))
        return self._keep(self._driver.destroy_event, event)

    def record(self, event: int) -> None:
        self._do(self._driver.record, event, self.stream)

    def wait_for(self, event: int) -> None:
        """Wait for the work before this event, and not for later work."""
        self._do(self._driver.wait_for, event)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` puts on the stream; returns its replay.

        If this raises EngineLostError or CudaError, the work can still run call by call.
        """
        self._driver.begin_capture(self.stream)
        try:
            work()
        except BaseException:
            with suppress(CudaError):  # returns no graph, but ends the recording
                self._driver.end_capture(self.stream)
            raise
        graph = self._driver.end_capture(self.stream)
        self._keep(self._driver.destroy, graph)
        self._driver.upload_graph(graph, self.stream)  # otherwise the first launch uploads it
        return partial(self._do, self._driver.launch, graph, self.stream)

    def close(self) -> None:
        """Release graphs and memory, and leave the context; shared tensors become invalid."""
        with suppress(CudaError):
            self._driver.wait(self.stream)
        while self._held:
            release, handle = self._held.pop()
            with suppress(CudaError):  # a lost device releases nothing
                release(handle)
        self._driver.leave(self.stream)

    def _keep(self, release: Callable[[int], None], handle: int) -> int:
        self._held.append((release, handle))
        return handle

    @contextmanager
    def _checking_memory(self, num_bytes: int) -> Generator[None]:
        try:
            yield
        except CudaError as error:
            size_mb = num_bytes / 1e6
            problem = f"the GPU cannot allocate {size_mb:.1f} MB ({error})"
            desktop = "leave the desktop (sudo systemctl isolate multi-user.target)"
            remedy = f"use fewer --slots, {desktop}, or reboot"
            raise TensorRTError(problem, "memory", remedy) from error

    def _do(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except CudaError as error:
            raise EngineLostError(
                f"CUDA failed ({error}): results of this device are no longer reliable"
            ) from error


def _layout(tensors: Mapping[str, tuple[Shape, Any]]) -> np.dtype[Any]:
    """The tensors one after the other, each at an aligned offset."""
    formats: list[np.dtype[Any]] = []
    offsets: list[int] = []
    num_bytes = 0
    for shape, dtype in tensors.values():
        tensor = np.dtype((dtype, shape))
        formats.append(tensor)
        offsets.append(num_bytes)
        num_blocks = -(-tensor.itemsize // ALIGNMENT)  # rounded up
        num_bytes += num_blocks * ALIGNMENT
    names = list(tensors)
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": num_bytes})


def _started(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CudaError as error:
        problem = f"CUDA does not start here ({error})"
        if cause_of(problem) == "memory":
            raise TensorRTError(problem, "memory") from error
        raise TensorRTError(problem, "machine", INSTALL) from error
