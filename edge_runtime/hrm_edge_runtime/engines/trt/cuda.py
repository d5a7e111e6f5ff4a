"""CUDA as an engine needs it: memory, copies, one stream, graphs. `Gpu` over either of the drivers in `drivers.py`.

`Shared` tensors are what the host writes or reads: on an integrated GPU the very same pinned memory, which Orin's GPU
reads uncached and its CPU cached, so it is for small things touched once (CUDA for Tegra application note, section 3);
on a card pinned memory and its copy on the device, all of them in one transfer.

Whoever waits for a mark sleeps on an integrated GPU, where a core that spins takes power from everything else, and
spins on a card, where waking up takes longer. CUDA graphs launch a stream's work whole: on a Jetson's CPU starting a
segment's two hundred kernels one by one takes as long as they run. Ran on an H100; on no integrated GPU yet.
"""

import ctypes
import itertools
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.arrays import Shape
from hrm_edge_runtime.engines.engine import EngineLostError, EngineUnavailableError
from hrm_edge_runtime.engines.trt.drivers import INSTALL, CudaError, Driver, GpuInfo, driver_here

MEMORY_REMEDY = "use fewer --slots, leave the desktop (sudo systemctl isolate multi-user.target), or reboot"
ALIGNMENT = 256  # of every tensor's address, as TensorRT asks


@dataclass(frozen=True, kw_only=True, eq=False)
class Shared:
    """Tensors of the host's in one piece of memory, and the addresses under which the GPU sees them."""

    arrays: dict[str, NDArray[Any]]
    addresses: dict[str, int]
    memory: NDArray[Any]
    address: int


class CaptureError(RuntimeError):
    """Work that cannot be recorded; it can still be run one by one."""


def look() -> GpuInfo:
    """What the first device is, without a context on it; raises EngineUnavailableError where there is none."""
    return _started(lambda: driver_here().info())


class Gpu:
    """The first CUDA device in its primary context, which TensorRT uses as well, and one stream that orders everything.

    The thread that makes it uses and closes it. Raises EngineUnavailableError where there is no driver or no device.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        self._driver = driver or driver_here()
        self.info = _started(self._driver.info)
        self.stream = _started(self._driver.enter)
        self._held: list[tuple[Callable[[int], None], int]] = []

    def allocate(self, num_bytes: int) -> int:
        """The address of new device memory, zeroed."""
        with self._refusing_no_memory(num_bytes):
            return self._keep(self._driver.free, self._driver.allocate(max(1, num_bytes)))

    def share(self, tensors: Mapping[str, tuple[Shape, Any]]) -> Shared:
        """Tensors of these shapes and types that both sides see, zeroed."""
        formats = [np.dtype((dtype, shape)) for shape, dtype in tensors.values()]
        sizes = (-(-one.itemsize // ALIGNMENT) * ALIGNMENT for one in formats)
        *starts, num_bytes = itertools.accumulate(sizes, initial=0)
        layout = np.dtype({"names": [*tensors], "formats": formats, "offsets": starts, "itemsize": num_bytes})
        with self._refusing_no_memory(num_bytes):
            pointer, mapped = self._driver.pin(num_bytes, mapped=self.info.is_integrated)
        self._keep(self._driver.unpin, pointer)
        ctypes.memset(pointer, 0, num_bytes)
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * num_bytes).from_address(pointer)).view(layout).reshape(())
        address = mapped or self.allocate(num_bytes)
        addresses = {name: address + start for name, start in zip(tensors, starts, strict=True)}
        arrays = {name: memory[name] for name in tensors}
        return Shared(arrays=arrays, addresses=addresses, memory=memory, address=address)

    def upload(self, shared: Shared) -> None:
        """Send what the host wrote to the GPU; nothing to do where the memory is the same."""
        if not self.info.is_integrated:
            self._do(self._driver.send, shared.address, shared.memory.ctypes.data, shared.memory.nbytes, self.stream)

    def download(self, shared: Shared) -> None:
        if not self.info.is_integrated:
            self._do(self._driver.fetch, shared.memory.ctypes.data, shared.address, shared.memory.nbytes, self.stream)

    def copy(self, source: int, target: int, num_bytes: int) -> None:
        self._do(self._driver.copy, target, source, num_bytes, self.stream)

    def read(self, address: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A copy of device memory, once all work before it is done."""
        array = np.empty(shape, dtype)
        self._do(self._driver.fetch, array.ctypes.data, address, array.nbytes, self.stream)
        self.wait()
        return array

    def wait(self) -> None:
        self._do(self._driver.wait, self.stream)

    def event(self) -> int:
        event = _started(lambda: self._driver.new_event(sleeps=self.info.is_integrated))
        return self._keep(self._driver.destroy_event, event)

    def record(self, event: int) -> None:
        self._do(self._driver.record, event, self.stream)

    def wait_for(self, event: int) -> None:
        """Wait for the work before the mark, and for nothing behind it."""
        self._do(self._driver.wait_for, event)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what `work` puts on the stream; returns the replay. CaptureError also where `work` itself fails."""
        try:
            self._driver.begin_capture(self.stream)
            try:
                work()
            except BaseException:
                with suppress(CudaError):  # a broken recording has no graph, but the stream records no longer
                    self._driver.end_capture(self.stream)
                raise
            graph = self._keep(self._driver.destroy, self._driver.end_capture(self.stream))
        except (CudaError, EngineLostError) as error:
            raise CaptureError(str(error)) from error
        return partial(self._do, self._driver.launch, graph, self.stream)

    def close(self) -> None:
        """Release graphs and memory, and leave the context as it was found; no shared tensor is read afterwards."""
        with suppress(CudaError):
            self._driver.wait(self.stream)
        while self._held:
            release, one = self._held.pop()
            with suppress(CudaError):  # a lost device releases nothing
                release(one)
        self._driver.leave(self.stream)

    def _keep(self, release: Callable[[int], None], one: int) -> int:
        self._held.append((release, one))
        return one

    @contextmanager
    def _refusing_no_memory(self, num_bytes: int) -> Generator[None]:
        try:
            yield
        except CudaError as error:
            asked = f"the GPU gives no {num_bytes / 1e6:.1f} MB"
            raise EngineUnavailableError(f"{asked} ({error}): {MEMORY_REMEDY}.") from error

    def _do(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except CudaError as error:
            raise EngineLostError(f"CUDA failed ({error}): nothing on this device can be trusted any more") from error


def _started(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CudaError as error:
        raise EngineUnavailableError(f"CUDA does not start here ({error}): {INSTALL}.") from error
