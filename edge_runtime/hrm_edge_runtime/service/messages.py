"""What crosses the pipe between the HTTP process and its engine process: plain frozen data, nothing else.

Both ends are our own two processes on one machine: pickling is safe here, and `time.monotonic` means the same to both.
Shapes: T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.counters import LaneSnapshot
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Result


@dataclass(frozen=True, kw_only=True, eq=False)
class Solve:
    """Solve these tokens; `arrival_s` and `deadline_s` are moments of `time.monotonic`."""

    request_id: int
    tokens_T: NDArray[np.int32]
    policy: HaltingPolicy
    arrival_s: float
    deadline_s: float | None = None
    puzzle_id: int = 0


@dataclass(frozen=True, kw_only=True)
class Cancel:
    """Nobody waits for this request any more."""

    request_id: int


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Leave at once; what is unfinished is dropped (the HTTP process drains before it says this)."""


@dataclass(frozen=True, kw_only=True)
class Ready:
    """The engine is loaded and has run its warm-up steps."""

    num_slots: int
    load_s: float
    warm_step_s: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Solved:
    """Everything that ended in one step, cancelled and expired requests too; a `job_id` is the request's id."""

    results: tuple[Result, ...]


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """The lane would not take a request, with its reason in one sentence."""

    request_id: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The engine process cannot go on and is leaving; `message` is one sentence for the log."""

    message: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The lane as it stood at `taken_s`, a moment of `time.monotonic`."""

    lane: LaneSnapshot
    taken_s: float


ToEngine = Solve | Cancel | Stop
FromEngine = Ready | Solved | Rejected | Failed | Snapshot
