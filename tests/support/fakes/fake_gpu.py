"""A GPU without a GPU, under both stand-ins for the driver's Python modules.

Device memory is host memory at real addresses, full of garbage. Work put on a stream waits there
until somebody synchronizes, so a missing wait shows. While a stream is recorded, nothing runs and
the work goes into the graph. FAKE_CUDA_INTEGRATED=0 makes it a card with memory of its own: pinned
arrays and device memory are then different places, and a missing copy shows. FAKE_CUDA_FAILS names
what gives an error: init, wait, capture (a copy in a recorded stream), crash (memory ends the
process), or a driver function. Releasing twice, or what was never made, is an assertion.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable

import numpy as np

GARBAGE = 0xA5
THREAD_LOCAL = 1
MAPPED = 2
NO_TIMING = 2
SLEEPS = 1
ALIGNMENT = 256
NO_DEVICE = 100
OUT_OF_MEMORY = 2
ILLEGAL_ADDRESS = 700
CAPTURE_INVALIDATED = 901
UNSUPPORTED = 900
INTEGRATED = 18
ATTRIBUTES = {
    75: 8,
    76: 7,
    16: 8,
    INTEGRATED: int(os.environ.get("FAKE_CUDA_INTEGRATED", "1")),
}
depth = 0  # contexts on this thread's stack
launches = 0
copies = []  # target, source and size of each that has run
streams = {}
memory = {}
pinned = {}
graphs = {}
uploaded = set()
executables = {}
events = {}
event_handles = itertools.count(9000)


class RefusedError(Exception):
    """A driver function's status that is not success."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class OutOfMemoryError(RefusedError):
    """Device memory does not suffice."""


def is_set_to_fail(call: str) -> bool:
    return os.environ.get("FAKE_CUDA_FAILS") == call


def refuse(call: str, status: int) -> None:
    if is_set_to_fail(call):
        raise RefusedError(status)


def name() -> str:
    return os.environ.get("FAKE_CUDA_NAME", "Orin")


def memory_bytes() -> int:
    return int(os.environ.get("FAKE_CUDA_GIB", "8")) << 30


def attribute(number: int) -> int:
    return ATTRIBUTES[number]


def push() -> None:
    global depth
    depth += 1


def pop() -> None:
    global depth
    depth -= 1


class Stream:
    def __init__(self) -> None:
        refuse("cuStreamCreate", OUT_OF_MEMORY)
        self.handle = 1000 + len(streams)
        self.waiting = []
        self.recording = None
        self.is_broken = False
        streams[self.handle] = self

    def put(self, work: Callable[[], None]) -> None:
        works = self.waiting if self.recording is None else self.recording
        works.append(work)

    def put_copy(self, target: int, source: int, num_bytes: int) -> None:
        if self.recording is not None and is_set_to_fail("capture"):
            self.is_broken = True
            raise RefusedError(UNSUPPORTED)
        self.put(lambda: self._copy(target, source, num_bytes))

    def _copy(self, target: int, source: int, num_bytes: int) -> None:
        copies.append((target, source, num_bytes))
        ctypes.memmove(target, source, num_bytes)

    def synchronize(self) -> None:
        self.advance(len(self.waiting))

    def advance(self, num_works: int) -> None:
        assert self.recording is None, "a recorded stream cannot be waited for"
        refuse("wait", ILLEGAL_ADDRESS)
        works = self.waiting[:num_works]
        del self.waiting[:num_works]
        for work in works:
            work()


class Event:
    """Waiting for it runs the stream up to its last record, and no further."""

    def __init__(self, flags: int) -> None:
        expected = NO_TIMING | SLEEPS if attribute(INTEGRATED) else NO_TIMING
        assert flags == expected, "a board's cores sleep, a desktop's spin"
        self.handle = next(event_handles)
        self.stream = None
        self.is_reached = lambda: None
        events[self.handle] = self

    def record(self, stream: Stream) -> None:
        self.stream = stream
        self.is_reached = lambda: None  # a new mark: the one before no longer counts
        stream.put(self.is_reached)

    def synchronize(self) -> None:
        assert self.stream is not None, "an event that was never recorded never comes"
        if self.is_reached in self.stream.waiting:
            self.stream.advance(self.stream.waiting.index(self.is_reached) + 1)
        else:
            refuse("wait", ILLEGAL_ADDRESS)


def allocate(num_bytes: int) -> int:
    if is_set_to_fail("crash"):
        os._exit(3)
    if num_bytes > int(os.environ.get("FAKE_CUDA_BYTES", str(1 << 30))):
        raise OutOfMemoryError(OUT_OF_MEMORY)
    return _aligned(num_bytes, memory)


def pin(num_bytes: int) -> int:
    return _aligned(num_bytes, pinned)


def _aligned(num_bytes: int, held: dict[int, np.ndarray]) -> int:
    room = np.full(num_bytes + ALIGNMENT, GARBAGE, np.uint8)
    array = room[-room.ctypes.data % ALIGNMENT :][:num_bytes]
    held[array.ctypes.data] = array
    return array.ctypes.data


def begin_capture(stream: int, mode: int) -> None:
    assert mode == THREAD_LOCAL
    refuse("cuStreamBeginCapture", UNSUPPORTED)
    streams[stream].recording = []
    streams[stream].is_broken = False


def end_capture(stream: int) -> int:
    recorded = streams[stream].recording
    streams[stream].recording = None
    assert recorded is not None
    if streams[stream].is_broken:
        raise RefusedError(CAPTURE_INVALIDATED)
    refuse("cuStreamEndCapture", CAPTURE_INVALIDATED)
    graphs[len(graphs) + 1] = recorded
    return len(graphs)


def instantiate(graph: int, flags: int) -> int:
    assert flags == 0
    refuse("cuGraphInstantiate", OUT_OF_MEMORY)
    number = 5000 + len(executables)
    executables[number] = graphs[graph]
    return number


def upload(executable: int, stream: int) -> None:
    """Send a graph to the device, which its first launch would do otherwise."""
    refuse("cuGraphUpload", UNSUPPORTED)
    assert stream in streams
    uploaded.add(executable)


def launch(executable: int, stream: int) -> None:
    global launches
    refuse("cuGraphLaunch", ILLEGAL_ADDRESS)
    launches += 1
    for work in executables[executable]:
        streams[stream].put(work)
