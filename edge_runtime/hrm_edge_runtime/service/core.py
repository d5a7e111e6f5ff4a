"""The engine process: one thread that owns the lane. Messages in, one segment, results out, and again.

`EngineLoop.run` is the heart. The process sleeps only when nothing is left to step, sees cancels before it runs the
next segment, and shows a snapshot of itself at most ten times a second, so nobody has to ask the loop for one. It
leaves when it is told to, when its pipe closes, and when its parent dies in whatever way, even inside a long segment.

Shapes: E puzzle-vector size, T tokens, and P rows of the puzzle table.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.scheduler import Job, QueueFull
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.service.messages import (
    Cancel,
    Failed,
    FromEngine,
    Ready,
    Rejected,
    Snapshot,
    Solve,
    Solved,
    Stop,
    ToEngine,
)

if TYPE_CHECKING:
    from hrm_edge_runtime.engines.factory import Choice

PUBLISH_EVERY_S = 0.1

_log = logging.getLogger("hrm_edge_runtime.engine")


@dataclass(frozen=True, kw_only=True, eq=False)
class Workbench:
    """What the engine process works with; `puzzle_table_PE` holds the vector of each puzzle id."""

    engine: Engine
    lane: Lane
    puzzle_table_PE: NDArray[np.float32]


MakeWorkbench = Callable[[], Workbench]


def bundle_workbench(
    *, bundle_path: Path, choice: Choice, num_slots: int, num_threads: int | None, queue_limit: int
) -> Workbench:
    """Open a bundle on the chosen engine; refuses what `Bundle.open` and `engine_for` refuse."""
    from hrm_edge_runtime.bundle import Bundle
    from hrm_edge_runtime.engines.factory import engine_for

    bundle = Bundle.open(bundle_path)
    engine = engine_for(
        bundle, engine=choice.engine, precision=choice.precision, num_slots=num_slots, num_threads=num_threads
    )
    lane = Lane(engine, bundle.puzzle, queue_limit=queue_limit)
    return Workbench(engine=engine, lane=lane, puzzle_table_PE=bundle.puzzle_table)


def process_main(make_workbench: MakeWorkbench, connection: Connection[Any, Any]) -> None:
    """What the spawned process runs."""
    _die_with_parent()
    run(make_workbench, connection)


def run(make_workbench: MakeWorkbench, connection: Connection[Any, Any]) -> None:
    """Load, warm up, report and loop; whatever goes wrong is told through the pipe before it closes."""
    try:
        with connection:
            _work(make_workbench, connection)
    except (EOFError, OSError):
        _log.info("the HTTP process has gone, so the engine leaves too")


def _work(make_workbench: MakeWorkbench, connection: Connection[Any, Any]) -> None:
    try:
        began = time.monotonic()
        bench = make_workbench()
        warm_step_s = _warm_up(bench)
        load_s = time.monotonic() - began
        connection.send(Ready(num_slots=bench.engine.num_slots, load_s=load_s, warm_step_s=warm_step_s))
        EngineLoop(bench, connection).run()
        bench.engine.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # the parent decides what follows; this process only says why it leaves
        _log.exception("the engine process fails")
        connection.send(Failed(message=f"{type(error).__name__}: {error}"))


def _die_with_parent() -> None:
    """End this process when its parent ends, even while native code runs a segment or a driver hangs."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is for a spawned process"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="die-with-parent", daemon=True).start()


def _warm_up(bench: Workbench) -> float:
    """Run the smallest and the largest step once, so that no client pays for it; seconds of the larger."""
    num_slots, seq_len = bench.engine.num_slots, bench.engine.seq_len
    blank_T = np.zeros(seq_len, np.int32)
    for slot in range(num_slots):
        bench.engine.load(slot, blank_T, bench.puzzle_table_PE[0])
    bench.engine.step(1)
    began = time.monotonic()
    bench.engine.step(num_slots)
    return time.monotonic() - began


class EngineLoop:
    """The loop and what it remembers between two turns."""

    def __init__(self, bench: Workbench, connection: Connection[Any, Any]) -> None:
        self._lane = bench.lane
        self._puzzle_table_PE = bench.puzzle_table_PE
        self._connection = connection
        self._published_s = -PUBLISH_EVERY_S
        self._stale = True

    def run(self) -> None:
        while self._take_messages():
            if self._lane.has_work:
                self._step()
            self._publish()

    def _step(self) -> None:
        results = self._lane.step()
        self._stale = True
        if results:
            self._report(Solved(results=tuple(results)))

    def _take_messages(self) -> bool:
        """Take all that waits, sleeping only when idle; false when told to stop."""
        while self._connection.poll(self._patience_s()):
            message: ToEngine = self._connection.recv()
            if isinstance(message, Stop):
                return False
            self._take(message)
        return True

    def _patience_s(self) -> float | None:
        if self._lane.has_work:
            return 0.0
        return max(0.0, self._publish_due_s() - time.monotonic()) if self._stale else None

    def _take(self, message: Solve | Cancel) -> None:
        if isinstance(message, Cancel):
            self._lane.cancel(message.request_id)
            return
        try:
            self._lane.submit(self._job(message))
        except (QueueFull, ValueError) as refusal:
            self._report(Rejected(request_id=message.request_id, message=str(refusal)))

    def _job(self, message: Solve) -> Job:
        return Job(
            job_id=message.request_id,
            tokens_T=message.tokens_T,
            puzzle_vector_E=self._puzzle_table_PE[message.puzzle_id],
            policy=message.policy,
            arrival_s=message.arrival_s,
            deadline_s=message.deadline_s,
        )

    def _publish(self) -> None:
        now = time.monotonic()
        if self._stale and now >= self._publish_due_s():
            self._report(Snapshot(lane=self._lane.snapshot(), taken_s=now))
            self._published_s, self._stale = now, False

    def _publish_due_s(self) -> float:
        return self._published_s + PUBLISH_EVERY_S

    def _report(self, message: FromEngine) -> None:
        self._connection.send(message)
