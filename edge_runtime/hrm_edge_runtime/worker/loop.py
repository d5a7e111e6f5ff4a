"""The engine process: one thread that owns every lane. Messages in, one segment, results out, and again.

`EngineLoop.run` is the heart. The process sleeps only when nothing is left to step, sees cancels before it runs the
next segment, and publishes a snapshot of itself at most ten times a second, so that no reader has to ask for one. It
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

from hrm_edge_runtime import logs
from hrm_edge_runtime.batching.fair_share import DeficitRoundRobin
from hrm_edge_runtime.batching.scheduler import QueueFull
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.worker.lanes import LaneLoader, LaneSet, MakeLanes
from hrm_edge_runtime.worker.messages import (
    Cancel,
    Ended,
    Failed,
    Load,
    Loaded,
    LoadFailed,
    Ready,
    Rejected,
    Retire,
    Retired,
    Snapshot,
    Solve,
    Stop,
    Streamed,
    ToEngine,
)
from hrm_host import memory

PUBLISH_EVERY_S = 0.1
LOOK_FOR_LANES_S = 0.02  # how long an idle engine that is opening a lane sleeps

_log = logging.getLogger("hrm_edge_runtime.engine")


def process_main(make_lanes: MakeLanes, connection: Connection[Any, Any], log: logs.LogForm) -> None:
    """What the spawned process runs; its log has the form of its parent's."""
    logs.configure(log)
    _die_with_parent()
    run(make_lanes, connection)


def run(make_lanes: MakeLanes, connection: Connection[Any, Any]) -> None:
    """Load, warm up, report and loop; whatever goes wrong is reported through the pipe before it closes."""
    try:
        with connection:
            _work(make_lanes, connection)
    except (EOFError, OSError):
        _log.info("the HTTP process has gone, so the engine leaves too")


def _work(make_lanes: MakeLanes, connection: Connection[Any, Any]) -> None:
    try:
        began = time.monotonic()
        try:
            lanes = make_lanes()
            reports = lanes.warm_up()
        except ValueError as refusal:
            connection.send(Failed(message=str(refusal), is_refusal=True))
            return
        connection.send(Ready(load_s=time.monotonic() - began, reports=reports))
        loop = EngineLoop(lanes, connection)
        loop.run()
        loop.close()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # the parent decides what follows; this process only reports why it leaves
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

    def __init__(self, lanes: LaneSet, connection: Connection[Any, Any]) -> None:
        self._lanes = dict(lanes.lanes)
        self._turns = DeficitRoundRobin(self._lanes)
        self._loader = LaneLoader()
        self._connection = connection
        self._publish_at_s = 0.0
        self._is_stale = True
        self._request_of: dict[int, str] = {}

    def run(self) -> None:
        busy: list[str] = []
        while self._take_messages(may_sleep=not busy):
            if self._loader.num_under_way:
                self._take_lanes()
            busy = []
            for key, lane in self._lanes.items():
                if lane.has_work:
                    busy.append(key)
            if busy:
                self._step(busy)
            if self._is_stale and time.monotonic() >= self._publish_at_s:
                self._publish()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.engine.close()

    def _step(self, busy: list[str]) -> None:
        """Step the lane whose turn it is, and name the requests that the engine could not answer."""
        key = busy[0] if len(self._lanes) == 1 else self._turns.next(busy)
        began_s = time.monotonic()
        results, events = self._lanes[key].step()
        if len(self._lanes) > 1:
            self._turns.charge(key, time.monotonic() - began_s)
        self._is_stale = True
        if events:
            self._connection.send(Streamed(events=events))
        if results:
            self._connection.send(Ended(results=results))
        for result in results:
            request = self._request_of.pop(result.task_id, "")
            if result.halted_by == "failed":
                _log.error("%s gave no usable answer", key, extra={"request": request, "fields": {"model": key}})

    def _take_messages(self, *, may_sleep: bool) -> bool:
        """Take all messages that have come, or wait for the first; false when told to stop."""
        timeout_s: float | None = 0.0
        if may_sleep and self._loader.num_under_way:
            timeout_s = LOOK_FOR_LANES_S
        elif may_sleep:
            timeout_s = max(0.0, self._publish_at_s - time.monotonic()) if self._is_stale else None
        while self._connection.poll(timeout_s):
            messages: list[ToEngine] = self._connection.recv()
            for message in messages:
                if isinstance(message, Stop):
                    return False
                self._take(message)
            timeout_s = 0.0
        return True

    def _take(self, message: Solve | Cancel | Load | Retire) -> None:
        if isinstance(message, Solve):
            try:
                self._lanes[message.lane].submit(message.task)
                self._request_of[message.task.task_id] = message.request
            except (QueueFull, ValueError) as refusal:
                self._connection.send(Rejected(task_id=message.task.task_id, message=str(refusal)))
        elif isinstance(message, Cancel):
            self._lanes[message.lane].cancel(message.task_id)
        elif isinstance(message, Load):
            self._loader.begin(message)
        else:
            self._retire(message.lane)

    def _take_lanes(self) -> None:
        for key, outcome in self._loader.outcomes():
            if isinstance(outcome, LoadFailed):
                self._connection.send(outcome)
                continue
            self._lanes[key] = outcome.lane
            self._turns.join(key)
            self._connection.send(Loaded(lane=key, report=outcome.report))
            self._is_stale = True

    def _retire(self, key: str) -> None:
        """Close a lane; the HTTP process has waited for the last of its requests."""
        lane = self._lanes.pop(key)
        self._turns.leave(key)
        lane.engine.close()
        del lane
        memory.give_back_freed_memory()
        self._connection.send(Retired(lane=key))
        self._is_stale = True

    def _publish(self) -> None:
        now, lanes = time.monotonic(), dict[str, LaneSnapshot]()
        for key, lane in self._lanes.items():
            lanes[key] = lane.snapshot()
        self._connection.send(Snapshot(lanes=lanes, taken_s=now))
        self._publish_at_s, self._is_stale = now + PUBLISH_EVERY_S, False
