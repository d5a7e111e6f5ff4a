"""The engine process: one thread that owns every lane. Read `EngineLoop.run`.

The loop takes messages, steps a lane and sends results. It sees a cancel before the next segment.
It publishes snapshots, so no reader has to request one. It ends on a Stop message, and when its
pipe closes or its parent dies.
"""

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from hrm_edge_runtime.batching import task_lane
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.worker import messages
from hrm_edge_runtime.worker.lanes import LaneKey, MakeLanes, OpenedLane, OverBudgetError
from hrm_host import memory, system
from hrm_host.workers import end_with_parent

PUBLISH_EVERY_S = 0.1
LOOK_FOR_LANES_S = 0.02  # an idle engine checks this often whether a lane has opened

_log = logging.getLogger("hrm_edge_runtime.engine")


def process_main(
    make_lanes: MakeLanes, connection: "Connection[Any, Any]", log: logs.LogForm
) -> None:
    """Run the engine process; it ends with its parent, even if native code or a driver hangs."""
    system.ignore_interrupts()
    try:
        logs.configure(log)
        end_with_parent()
    except RuntimeError as error:  # the machine cannot start another thread
        remedy = system.remedy_at_limit(error)
        if remedy is None:
            raise
        connection.send(messages.Failed(message=f"{error}; {remedy}"))
        return
    run(make_lanes, connection)


def run(make_lanes: MakeLanes, connection: "Connection[Any, Any]") -> None:
    """Open the lanes, report and loop; any failure is sent through the pipe before it closes."""
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
            _log.info("the HTTP process has ended, so the engine ends too")
        except Exception as error:  # the parent decides what follows
            _log.exception("the engine process fails")
            connection.send(messages.Failed(message=f"{type(error).__name__}: {error}"))


Loaded = tuple[messages.LaneChanged, task_lane.TaskLane | None]
"""The answer to a Load message, and the lane if it has opened."""


class EngineLoop:
    """Steps the lanes of the engine process in turn and takes messages between steps."""

    def __init__(
        self, lanes: Mapping[LaneKey, OpenedLane], connection: "Connection[Any, Any]"
    ) -> None:
        self._lanes = {key: opened.lane for key, opened in lanes.items()}
        self._turns = FairTurns(self._lanes)
        self._num_loading = 0
        self._loaded: queue.SimpleQueue[Loaded] = queue.SimpleQueue()
        self._connection = connection
        self._publish_at_s = 0.0
        self._is_stale = True
        self._request_of: dict[int, str] = {}

    def run(self) -> None:
        """Take messages, step a lane and send its results; repeat until a Stop message."""
        busy: list[LaneKey] = []
        while self._take_messages(may_sleep=not busy):
            while not self._loaded.empty():
                self._install(*self._loaded.get())
            if self._num_loading:
                self._is_stale = True  # snapshots show the waiting client a living engine
            busy = []
            for key, lane in self._lanes.items():
                if lane.has_work:
                    busy.append(key)
            if busy:
                self._step(busy)
            if self._is_stale and time.monotonic() >= self._publish_at_s:
                self._publish()
        for lane in self._lanes.values():
            lane.engine.close()

    def _install(self, change: messages.LaneChanged, lane: task_lane.TaskLane | None) -> None:
        """Add a lane that has opened, or report that it has not."""
        self._num_loading -= 1
        if lane is not None:
            self._lanes[change.lane] = lane
            self._turns.join(change.lane)
        self._connection.send(change)
        self._is_stale = True

    def _publish(self) -> None:
        now_s = time.monotonic()
        lanes: dict[LaneKey, LaneSnapshot] = {}
        for key, lane in self._lanes.items():
            lanes[key] = lane.snapshot()
        self._connection.send(messages.Snapshot(lanes=lanes, taken_s=now_s))
        self._publish_at_s = now_s + PUBLISH_EVERY_S
        self._is_stale = False

    def _step(self, busy: list[LaneKey]) -> None:
        """Step the lane whose turn it is, and log the requests that the engine could not answer."""
        key = busy[0]
        if len(self._lanes) > 1:
            key = self._turns.next(busy)
        began_s = time.monotonic()
        results, events = self._lanes[key].step()
        if len(self._lanes) > 1:
            self._turns.charge(key, time.monotonic() - began_s)
        self._is_stale = True
        if results or events:
            self._connection.send(messages.Stepped(results, events))
        for result in results:
            request = self._request_of.pop(result.task_id, "")
            if result.halted_by == "failed":
                extra = {"request": request, "fields": {"model": key.model}}
                _log.error("%s gave no usable answer", key.model, extra=extra)

    def _take_messages(self, *, may_sleep: bool) -> bool:
        """Take all messages that have come, or sleep until the first; False on a Stop message."""
        timeout_s: float | None = 0.0
        if may_sleep:
            timeout_s = None
            if self._num_loading:
                timeout_s = LOOK_FOR_LANES_S
            elif self._is_stale:
                timeout_s = max(0.0, self._publish_at_s - time.monotonic())
        while self._connection.poll(timeout_s):
            received: list[messages.ToEngine] = self._connection.recv()
            for message in received:
                if isinstance(message, messages.Stop):
                    return False
                self._take(message)
            timeout_s = 0.0
        return True

    def _take(
        self, message: messages.Solve | messages.Cancel | messages.Load | messages.Retire
    ) -> None:
        if isinstance(message, messages.Solve):
            try:
                self._lanes[message.lane].submit(message.task)
                self._request_of[message.task.task_id] = message.request
            except ValueError as refusal:
                self._connection.send(
                    messages.Rejected(task_id=message.task.task_id, message=str(refusal))
                )
        elif isinstance(message, messages.Cancel):
            self._lanes[message.lane].cancel(message.task_id)
        elif isinstance(message, messages.Load):
            self._num_loading += 1
            if message.beside:
                self._open_beside(message)
            else:  # its engine must be opened in the thread that uses it
                self._open(message)
        else:
            self._retire(message.lane)

    def _retire(self, key: LaneKey) -> None:
        """Close a lane; the HTTP process has waited for the last of its requests."""
        self._turns.leave(key)
        self._lanes.pop(key).engine.close()
        memory.give_back_freed_memory()
        self._connection.send(messages.LaneChanged(lane=key))
        self._is_stale = True

    def _open_beside(self, message: messages.Load) -> None:
        loader = threading.Thread(
            target=self._open, args=(message,), name="lane-loader", daemon=True
        )
        try:
            loader.start()
        except RuntimeError as error:  # the machine cannot start another thread
            refusal = f"it needs a thread ({error}): send it again."
            change = messages.LaneChanged(lane=message.lane, refusal=refusal)
            self._loaded.put((change, None))

    def _open(self, message: messages.Load) -> None:
        key = message.lane
        lane = None
        try:
            lane, report = message.make_lane()
            change = messages.LaneChanged(lane=key, report=report)
        except Exception as error:  # whatever a bundle does wrong, the running lanes go on
            _log.warning("the lane %s is not opened: %s", key, str(error))
            is_over_budget = isinstance(error, OverBudgetError)
            change = messages.LaneChanged(
                lane=key, refusal=str(error), is_over_budget=is_over_budget
            )
        self._loaded.put((change, lane))


class FairTurns:
    """Whose turn it is on a device that several lanes share: the busy lane with the least time.

    A lane without work saves up no time: it continues from the time of the lane that had the last
    turn.
    """

    def __init__(self, lanes: Iterable[LaneKey]) -> None:
        self._stepped_s = dict.fromkeys(lanes, 0.0)
        self._last_s = 0.0

    def join(self, lane: LaneKey) -> None:
        self._stepped_s[lane] = 0.0

    def leave(self, lane: LaneKey) -> None:
        del self._stepped_s[lane]

    def next(self, busy: Sequence[LaneKey]) -> LaneKey:
        """The lane to step next among those that have work, at least one."""
        for lane in busy:
            self._stepped_s[lane] = max(self._stepped_s[lane], self._last_s)
        chosen = min(busy, key=self._stepped_s.__getitem__)
        self._last_s = self._stepped_s[chosen]
        return chosen

    def charge(self, lane: LaneKey, seconds: float) -> None:
        self._stepped_s[lane] += seconds
