"""The engine process: one thread that owns every lane. Messages in, one segment, results out, and again.

`EngineLoop.run` is the heart. The process sees cancels before it runs the next segment, and publishes a snapshot of
itself, so that no reader has to ask for one. It leaves when it is told to, and when its pipe closes or its parent dies.
"""

import contextlib
import logging
import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from hrm_edge_runtime.batching import task_lane
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.worker import messages
from hrm_edge_runtime.worker.lanes import MakeLanes, OpenedLane, OverBudgetError
from hrm_host import memory, system

PUBLISH_EVERY_S = 0.1
LOOK_FOR_LANES_S = 0.02  # how long an idle engine that is opening a lane sleeps

_log = logging.getLogger("hrm_edge_runtime.engine")


def process_main(make_lanes: MakeLanes, connection: "Connection[Any, Any]", log: logs.LogForm) -> None:
    """What the spawned process runs; it ends when its parent ends, even while native code runs or a driver hangs."""
    system.ignore_interrupts()
    logs.configure(log)
    die_with_parent()
    run(make_lanes, connection)


def die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is for a spawned process"

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name="die-with-parent", daemon=True).start()


def run(make_lanes: MakeLanes, connection: "Connection[Any, Any]") -> None:
    """Load, warm up, report and loop; whatever goes wrong is reported through the pipe before it closes."""
    with contextlib.suppress(OSError), connection:
        try:
            began = time.monotonic()
            try:
                lanes = make_lanes()
            except ValueError as refusal:
                connection.send(messages.Failed(message=str(refusal), is_refusal=True))
                return
            reports = {key: lane.report for key, lane in lanes.items()}
            connection.send(messages.Ready(load_s=time.monotonic() - began, reports=reports))
            EngineLoop(lanes, connection).run()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            _log.info("the HTTP process has gone, so the engine leaves too")
        except Exception as error:  # the parent decides what follows; this process only reports why it leaves
            _log.exception("the engine process fails")
            connection.send(messages.Failed(message=f"{type(error).__name__}: {error}"))


class EngineLoop:
    def __init__(self, lanes: Mapping[str, OpenedLane], connection: "Connection[Any, Any]") -> None:
        self._lanes = {key: opened.lane for key, opened in lanes.items()}
        self._turns = FairTurns(self._lanes)
        self._num_loading = 0
        self._loaded: queue.SimpleQueue[tuple[messages.LaneChanged, task_lane.TaskLane | None]] = queue.SimpleQueue()
        self._connection = connection
        self._publish_at_s = 0.0
        self._is_stale = True
        self._request_of: dict[int, str] = {}

    def run(self) -> None:
        busy: list[str] = []
        while self._take_messages(may_sleep=not busy):
            while not self._loaded.empty():
                change, lane = self._loaded.get()
                self._num_loading -= 1
                if lane is not None:
                    self._lanes[change.lane] = lane
                    self._turns.join(change.lane)
                self._connection.send(change)
                self._is_stale = True
            self._is_stale |= self._num_loading > 0  # a sign of life for who waits for a lane
            if busy := [key for key, lane in self._lanes.items() if lane.has_work]:
                self._step(busy)
            if self._is_stale and (now_s := time.monotonic()) >= self._publish_at_s:
                lanes = {key: lane.snapshot() for key, lane in self._lanes.items()}
                self._connection.send(messages.Snapshot(lanes=lanes, taken_s=now_s))
                self._publish_at_s, self._is_stale = now_s + PUBLISH_EVERY_S, False
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
        if results or events:
            self._connection.send(messages.Stepped(results=results, events=events))
        for result in results:
            request = self._request_of.pop(result.task_id, "")
            if result.halted_by == "failed":
                _log.error("%s gave no usable answer", key, extra={"request": request, "fields": {"model": key}})

    def _take_messages(self, *, may_sleep: bool) -> bool:
        """Take all messages that have come, or wait for the first; false when told to stop."""
        timeout_s: float | None = 0.0
        if may_sleep and self._num_loading:
            timeout_s = LOOK_FOR_LANES_S
        elif may_sleep:
            timeout_s = max(0.0, self._publish_at_s - time.monotonic()) if self._is_stale else None
        while self._connection.poll(timeout_s):
            received: list[messages.ToEngine] = self._connection.recv()
            for message in received:
                if isinstance(message, messages.Stop):
                    return False
                self._take(message)
            timeout_s = 0.0
        return True

    def _take(self, message: messages.Solve | messages.Cancel | messages.Load | messages.Retire) -> None:
        if isinstance(message, messages.Solve):
            try:
                self._lanes[message.lane].submit(message.task)
                self._request_of[message.task.task_id] = message.request
            except ValueError as refusal:
                self._connection.send(messages.Rejected(task_id=message.task.task_id, message=str(refusal)))
        elif isinstance(message, messages.Cancel):
            self._lanes[message.lane].cancel(message.task_id)
        elif isinstance(message, messages.Load):
            self._num_loading += 1
            if message.beside:
                self._open_beside(message)
            else:  # its engine must be opened in the thread that uses it
                self._open(message)
        else:  # the HTTP process has waited for the last of its requests
            self._turns.leave(message.lane)
            self._lanes.pop(message.lane).engine.close()
            memory.give_back_freed_memory()
            self._connection.send(messages.LaneChanged(lane=message.lane))
            self._is_stale = True

    def _open_beside(self, message: messages.Load) -> None:
        loader = threading.Thread(target=self._open, args=(message,), name="lane-loader", daemon=True)
        try:
            loader.start()
        except RuntimeError as error:  # the machine starts no more threads
            change = messages.LaneChanged(lane=message.lane, refusal=f"it needs a thread ({error}): send it again.")
            self._loaded.put((change, None))

    def _open(self, message: messages.Load) -> None:
        key, lane = message.lane, None
        try:
            opened = message.make_lane()
            change, lane = messages.LaneChanged(lane=key, report=opened.report), opened.lane
        except Exception as error:  # whatever a bundle does wrong, the lanes that run must not notice
            _log.warning("the lane %s is not opened: %s", key, error)
            lacking_bytes = error.lacking_bytes if isinstance(error, OverBudgetError) else None
            change = messages.LaneChanged(lane=key, refusal=str(error), lacking_bytes=lacking_bytes)
        self._loaded.put((change, lane))


class FairTurns:
    """Whose turn it is on a device that several lanes share: that of the busy lane that stepped for the least time.

    A lane that had no work has saved nothing: it goes on from where the lane was whose turn came last.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._stepped_s = dict.fromkeys(names, 0.0)
        self._last_s = 0.0

    def join(self, name: str) -> None:
        self._stepped_s[name] = 0.0

    def leave(self, name: str) -> None:
        del self._stepped_s[name]

    def next(self, busy: Sequence[str]) -> str:
        """The lane to step next among those that have work, of which there is at least one."""
        for name in busy:
            self._stepped_s[name] = max(self._stepped_s[name], self._last_s)
        chosen = min(busy, key=self._stepped_s.__getitem__)
        self._last_s = self._stepped_s[chosen]
        return chosen

    def charge(self, name: str, seconds: float) -> None:
        self._stepped_s[name] += seconds
