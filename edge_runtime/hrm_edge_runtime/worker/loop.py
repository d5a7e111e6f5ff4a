"""The engine process: one thread that owns every lane. Messages in, one segment, ends out, and again.

`EngineLoop.run` is the heart. The process sleeps only when nothing is left to step, sees cancels before it runs the
next segment, and shows a snapshot of itself at most ten times a second, so nobody has to ask the loop for one. It
leaves when it is told to, when its pipe closes, and when its parent dies in whatever way, even inside a long segment.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import select
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from hrm_edge_runtime.batching.fair_share import DeficitRoundRobin
from hrm_edge_runtime.batching.scheduler import QueueFull
from hrm_edge_runtime.batching.task import Conclusion
from hrm_edge_runtime.logs import LogForm, configure
from hrm_edge_runtime.worker.lanes import LaneSet, MakeLanes
from hrm_edge_runtime.worker.loader import Loader
from hrm_edge_runtime.worker.messages import (
    Cancel,
    Ended,
    Failed,
    FromEngine,
    Load,
    Loaded,
    LoadFailed,
    Ready,
    Rejected,
    Retire,
    Retired,
    Seen,
    Snapshot,
    Solve,
    Stop,
    ToEngine,
)
from hrm_host import memory

PUBLISH_EVERY_S = 0.1
LOOK_FOR_LANES_MS = 20  # how long an idle engine that is opening a lane sleeps

_log = logging.getLogger("hrm_edge_runtime.engine")


def process_main(make_lanes: MakeLanes, connection: Connection[Any, Any], log: LogForm) -> None:
    """What the spawned process runs; its log has the form of its parent's."""
    configure(log)
    _die_with_parent()
    run(make_lanes, connection)


def run(make_lanes: MakeLanes, connection: Connection[Any, Any]) -> None:
    """Load, warm up, report and loop; whatever goes wrong is told through the pipe before it closes."""
    try:
        with connection:
            _work(make_lanes, connection)
    except (EOFError, OSError):
        _log.info("the HTTP process has gone, so the engine leaves too")


def _work(make_lanes: MakeLanes, connection: Connection[Any, Any]) -> None:
    try:
        began = time.monotonic()
        try:
            bench = make_lanes()
            reports = bench.warm_up()
        except ValueError as refusal:
            connection.send(Failed(message=str(refusal), is_refusal=True))
            return
        connection.send(Ready(load_s=time.monotonic() - began, reports=reports))
        loop = EngineLoop(bench, connection)
        loop.run()
        loop.close()
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

    def __init__(self, bench: LaneSet, connection: Connection[Any, Any]) -> None:
        self._lanes = dict(bench.lanes)
        self._turns = DeficitRoundRobin(bench.lanes)
        self._loader = Loader()
        self._connection = connection
        self._arrivals = select.poll()  # Connection.poll would make a selector for every look
        self._arrivals.register(connection, select.POLLIN)
        self._published_s = -PUBLISH_EVERY_S
        self._stale = True
        self._request_of: dict[int, str] = {}

    def run(self) -> None:
        while self._take_messages():
            self._take_lanes()
            if (name := self._turns.next(self._busy())) is not None:
                self._step(name)
            self._publish()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.engine.close()

    def _busy(self) -> list[str]:
        return [name for name, lane in self._lanes.items() if lane.has_work]

    def _step(self, name: str) -> None:
        began = time.monotonic()
        turn = self._lanes[name].step()
        self._turns.charge(name, time.monotonic() - began)
        self._stale = True
        if turn.events:
            self._report(Seen(events=turn.events))
        if turn.conclusions:
            self._report(Ended(conclusions=turn.conclusions))
            self._log_garbage(name, turn.conclusions)

    def _log_garbage(self, lane: str, conclusions: tuple[Conclusion, ...]) -> None:
        """Name the requests that the engine could not answer."""
        for conclusion in conclusions:
            request = self._request_of.pop(conclusion.task_id, "")
            if conclusion.result.halted_by == "failed":
                _log.error("%s gave no usable answer", lane, extra={"request": request, "fields": {"model": lane}})

    def _take_messages(self) -> bool:
        """Take all that waits, sleeping only when idle; false when told to stop."""
        while self._arrivals.poll(self._patience_ms()):
            messages: tuple[ToEngine, ...] = self._connection.recv()
            for message in messages:
                if isinstance(message, Stop):
                    return False
                self._take(message)
        return True

    def _patience_ms(self) -> float | None:
        if self._busy():
            return 0.0
        if self._loader.num_under_way:
            return LOOK_FOR_LANES_MS
        return max(0.0, 1000 * (self._publish_due_s() - time.monotonic())) if self._stale else None

    def _take(self, message: Solve | Cancel | Load | Retire) -> None:
        if isinstance(message, Load):
            self._loader.begin(message)
        elif isinstance(message, Retire):
            self._retire(message.lane)
        elif isinstance(message, Cancel):
            self._lanes[message.lane].cancel(message.request_id)
        else:
            self._submit(message)

    def _submit(self, message: Solve) -> None:
        lane = self._lanes[message.lane]
        try:
            lane.submit(message.task)
            self._request_of[message.task.task_id] = message.request
        except (QueueFull, ValueError) as refusal:
            self._report(Rejected(request_id=message.task.task_id, message=str(refusal)))

    def _take_lanes(self) -> None:
        for key, outcome in self._loader.outcomes():
            if isinstance(outcome, LoadFailed):
                self._report(outcome)
                continue
            self._lanes[key] = outcome.lane
            self._turns.join(key)
            self._report(Loaded(lane=key, report=outcome.report))
            self._stale = True

    def _retire(self, key: str) -> None:
        """Close a lane; whoever asks for it has seen that nobody waits for it any more."""
        lane = self._lanes.pop(key)
        self._turns.leave(key)
        lane.engine.close()
        del lane
        memory.give_back_freed_memory()
        self._report(Retired(lane=key))
        self._stale = True

    def _publish(self) -> None:
        now = time.monotonic()
        if self._stale and now >= self._publish_due_s():
            lanes = {name: lane.snapshot() for name, lane in self._lanes.items()}
            self._report(Snapshot(lanes=lanes, taken_s=now))
            self._published_s, self._stale = now, False

    def _publish_due_s(self) -> float:
        return self._published_s + PUBLISH_EVERY_S

    def _report(self, message: FromEngine) -> None:
        """As `Connection.send`, without its preparations for passing file handles."""
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
