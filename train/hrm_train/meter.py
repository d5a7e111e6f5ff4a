"""Where a training step's time goes: mean milliseconds of each phase, and samples per second.

On CUDA a phase is the time between two events on the device's own timeline, read once they have passed and never
waited for. Time in which the device waits for rows therefore shows in the phase "data", and rows made ready behind a
busy device cost nothing there. On a CPU it is the wall clock. The CUDA side was not run on a GPU.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.profiler import record_function

PHASE = "phase/"
"""Prefix of the phases' names in a torch.profiler trace."""


class Mark(Protocol):
    """One moment; torch.cuda.Event is one. `query`: has it passed? `elapsed_time`: milliseconds up to `end_event`."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any, /) -> float: ...


class HostMark:
    """A moment of the wall clock."""

    at_s: float

    def record(self) -> None:
        self.at_s = time.perf_counter()

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: HostMark, /) -> float:
        return 1000 * (end_event.at_s - self.at_s)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Means over the steps since the last reading; `step_ms` is wall time, so phases need not add up to it."""

    steps: int
    step_ms: float
    samples_per_s: float
    phase_ms: Mapping[str, float]

    def share(self, phase: str) -> float:
        """The part of a step that a phase takes, 0 where nothing was measured."""
        return self.phase_ms.get(phase, 0.0) / self.step_ms if self.step_ms else 0.0


class _Span(NamedTuple):
    phase: str
    begin: Mark
    end: Mark


class Meter:
    """Call `phase` around the parts of a step and `count` at its end; `drain` when somebody wants to know."""

    MOST_PENDING = 1000  # steps kept for a reader who never comes

    def __init__(self, device: torch.device, new_mark: Callable[[], Mark] | None = None) -> None:
        self._new_mark = new_mark or _marks_of(device)
        self._open: list[_Span] = []
        self._pending: deque[list[_Span]] = deque(maxlen=self.MOST_PENDING)
        self._restart()

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Times what runs inside; a phase entered several times in one step adds up. Phases do not nest."""
        begin, end = self._new_mark(), self._new_mark()
        with record_function(PHASE + name):
            begin.record()
            yield
            end.record()
        self._open.append(_Span(name, begin, end))

    def count(self, samples: int) -> None:
        """Ends a step that trained on `samples` samples."""
        self._steps += 1
        self._samples += samples
        self._pending.append(self._open)
        self._open = []

    @contextmanager
    def aside(self) -> Generator[None]:
        """What runs inside (a validation, a checkpoint) is no training time."""
        begin = time.perf_counter()
        yield
        self._since += time.perf_counter() - begin

    def drain(self) -> Reading:
        """Reads the steps whose marks have all passed, without waiting for the others, and begins anew."""
        wall_s = time.perf_counter() - self._since
        reading = Reading(
            steps=self._steps,
            step_ms=1000 * wall_s / max(1, self._steps),
            samples_per_s=self._samples / wall_s if wall_s > 0 else 0.0,
            phase_ms=self._passed(),
        )
        self._restart()
        return reading

    def _passed(self) -> dict[str, float]:
        total_ms: dict[str, float] = {}
        steps = 0
        while self._pending and all(span.end.query() for span in self._pending[0]):
            steps += 1
            for span in self._pending.popleft():
                total_ms[span.phase] = total_ms.get(span.phase, 0.0) + span.begin.elapsed_time(span.end)
        return {phase: ms / steps for phase, ms in total_ms.items()}

    def _restart(self) -> None:
        self._since, self._steps, self._samples = time.perf_counter(), 0, 0


def _marks_of(device: torch.device) -> Callable[[], Mark]:
    if device.type != "cuda":
        return HostMark
    return lambda: torch.cuda.Event(enable_timing=True)
