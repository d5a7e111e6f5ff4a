"""The engine process: one thread that owns every lane. Messages in, one segment, ends out, and again.

`EngineLoop.run` is the heart. The process sleeps only when nothing is left to step, sees cancels before it runs the
next segment, and shows a snapshot of itself at most ten times a second, so nobody has to ask the loop for one. It
leaves when it is told to, when its pipe closes, and when its parent dies in whatever way, even inside a long segment.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from hrm_edge_runtime.batching.scheduler import QueueFull
from hrm_edge_runtime.batching.turns import Turns
from hrm_edge_runtime.service.messages import (
    Cancel,
    Ended,
    Failed,
    FromEngine,
    Ready,
    Rejected,
    Seen,
    Snapshot,
    Solve,
    Stop,
    ToEngine,
)
from hrm_edge_runtime.service.workbench import MakeWorkbench, Workbench

PUBLISH_EVERY_S = 0.1

_log = logging.getLogger("hrm_edge_runtime.engine")


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
        warm_step_s = bench.warm_up()
        connection.send(Ready(load_s=time.monotonic() - began, warm_step_s=warm_step_s))
        EngineLoop(bench, connection).run()
        bench.close()
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


class EngineLoop:
    """The loop and what it remembers between two turns."""

    def __init__(self, bench: Workbench, connection: Connection[Any, Any]) -> None:
        self._lanes = bench.lanes
        self._turns = Turns(bench.lanes)
        self._connection = connection
        self._published_s = -PUBLISH_EVERY_S
        self._stale = True

    def run(self) -> None:
        while self._take_messages():
            if (name := self._turns.next(self._busy())) is not None:
                self._step(name)
            self._publish()

    def _busy(self) -> list[str]:
        return [name for name, lane in self._lanes.items() if lane.has_work]

    def _step(self, name: str) -> None:
        began = time.monotonic()
        turn = self._lanes[name].step()
        self._turns.charge(name, time.monotonic() - began)
        self._stale = True
        if turn.glimpses:
            self._report(Seen(glimpses=turn.glimpses))
        if turn.conclusions:
            self._report(Ended(conclusions=turn.conclusions))

    def _take_messages(self) -> bool:
        """Take all that waits, sleeping only when idle; false when told to stop."""
        while self._connection.poll(self._patience_s()):
            messages: tuple[ToEngine, ...] = self._connection.recv()
            for message in messages:
                if isinstance(message, Stop):
                    return False
                self._take(message)
        return True

    def _patience_s(self) -> float | None:
        if self._busy():
            return 0.0
        return max(0.0, self._publish_due_s() - time.monotonic()) if self._stale else None

    def _take(self, message: Solve | Cancel) -> None:
        lane = self._lanes[message.model]
        if isinstance(message, Cancel):
            lane.cancel(message.request_id)
            return
        try:
            lane.submit(message.ask)
        except (QueueFull, ValueError) as refusal:
            self._report(Rejected(request_id=message.ask.ask_id, message=str(refusal)))

    def _publish(self) -> None:
        now = time.monotonic()
        if self._stale and now >= self._publish_due_s():
            lanes = {name: lane.snapshot() for name, lane in self._lanes.items()}
            self._report(Snapshot(lanes=lanes, taken_s=now))
            self._published_s, self._stale = now, False

    def _publish_due_s(self) -> float:
        return self._published_s + PUBLISH_EVERY_S

    def _report(self, message: FromEngine) -> None:
        self._connection.send(message)
