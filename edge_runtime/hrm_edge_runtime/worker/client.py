"""The HTTP process's side of the engine, in the event loop: admits requests and awaits answers."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from hrm_edge_runtime.batching.scheduler import place_of
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.worker import lane_manager, messages, process
from hrm_edge_runtime.worker.lanes import LaneKey

LOADING_RETRY_S = 10.0  # building a model takes minutes
GRACE_S = 0.1  # a best-effort answer may come this much, plus a segment, after its deadline

EngineState = Literal["loading", "ready", "draining", "engine-lost"]
NoAnswerReason = Literal[
    "queue-full",
    "loading",
    "model-loading",
    "draining",
    "engine-lost",
    "cannot-make-deadline",
    "deadline-missed",
    "engine-failed",
]
OnEvent = Callable[[SegmentEvent], None]

_log = logging.getLogger("hrm_edge_runtime.worker")


class NoAnswerError(Exception):
    """The engine does not answer a request: a machine-readable reason, and when to retry."""

    def __init__(self, reason: NoAnswerReason, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.reason: NoAnswerReason = reason
        self.retry_after_s = retry_after_s


class _Pending(NamedTuple):
    """A task that the engine has not answered yet."""

    future: asyncio.Future[Result]
    lane: LaneKey
    task: Task
    on_event: OnEvent | None


class EngineClient:
    """One engine process with its lanes, kept alive; an async context manager.

    A request takes a place first, then it is solved.
    """

    def __init__(
        self,
        start_engine: Callable[[], process.SpawnedEngine],
        limits: Mapping[LaneKey, int],
        *,
        stall_s: float = 60.0,
    ) -> None:
        self._stall_s = stall_s
        self._tick_s = min(1.0, stall_s / 4)
        self._ticked_s = 0.0
        self._pending: dict[int, _Pending] = {}
        self._progress_s = 0.0
        self._is_draining = False
        self._is_drained = False
        self.task_ids = itertools.count(1)
        self.process = process.EngineProcess(
            start_engine, on_message=self._deliver, on_lost=self._note_loss
        )
        self.places = lane_manager.Places(limits)
        self.lane_manager = lane_manager.LaneManager(self.process.send, self.places)
        self.lost_s = time.monotonic()
        """Since when the engine does not run, unless it does."""
        self.snapshot: messages.Snapshot | None = None

    async def __aenter__(self) -> "EngineClient":
        self.process.start()
        self._ticked_s = time.monotonic()
        self._watchdog = asyncio.create_task(self._kill_when_stalled(), name="engine-watchdog")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_draining = True
        self._is_drained = True
        self.places.stop()
        self._watchdog.cancel()
        self._refuse_all("draining")
        await self.process.stop()

    @property
    def state(self) -> EngineState:
        if self._is_draining:
            return "draining"
        if self.process.link is not None:
            return "ready"
        return "engine-lost" if self.process.num_losses else "loading"

    @property
    def num_waiting(self) -> int:
        return len(self._pending)

    @property
    def step_age_s(self) -> float:
        """Seconds since the last sign of a step while a request or a change of lanes waits, else 0.

        Time in which this process could not run does not count: a paused container, a stopped
        machine.
        """
        if not self._pending and not self.lane_manager.changes:
            return 0.0
        awake_s = min(time.monotonic(), self._ticked_s + 2 * self._tick_s)
        return max(0.0, awake_s - self._progress_s)

    @property
    def lanes_by_model(self) -> dict[str, LaneSnapshot]:
        """The lanes of the last snapshot; of a model's two lanes, the one that opened last."""
        lanes: dict[str, LaneSnapshot] = {}
        if self.snapshot is not None:
            for lane, seen in self.snapshot.lanes.items():
                lanes[lane.model] = seen
        return lanes

    @property
    def stalled(self) -> bool:
        return self.step_age_s > self._stall_s

    def problem_of(self, lane: LaneKey) -> NoAnswerError | None:
        """Why the engine does not run the lane; None if it does."""
        state = self.state
        if state != "ready":
            return NoAnswerError(state, self.process.retry_after_s)
        if lane not in self.lane_manager.reports:
            return NoAnswerError("model-loading", LOADING_RETRY_S)
        return None

    def take_place(self, lane: LaneKey) -> None:
        """Take a place; raises NoAnswerError unless the engine runs the lane and it has one."""
        problem = self.problem_of(lane)
        if problem is not None:
            raise problem
        if not self.places[lane].take():
            raise self._queue_full(lane)

    def check_deadline(self, lane: LaneKey, task: Task) -> None:
        """Raise NoAnswerError if the task cannot begin before its deadline."""
        seen = self._seen(lane)
        if seen is None or task.deadline_s is None:
            return
        place = place_of(task)
        num_ahead = 0
        for other in self._pending.values():
            if other.lane == lane and place_of(other.task) < place:
                num_ahead += 1
        least_wait_s = seen.least_wait_s(num_ahead)
        if least_wait_s and time.monotonic() + least_wait_s > task.deadline_s:
            raise NoAnswerError("cannot-make-deadline", seen.expected_wait_s)

    async def solve(self, lane: LaneKey, task: Task, on_event: OnEvent | None = None) -> Result:
        """Solve a task whose admission is held; raises NoAnswerError.

        If the caller is canceled, the engine drops the task.
        """
        link = self.process.link
        if self._is_drained:
            raise NoAnswerError("draining")
        if link is None or lane not in self.lane_manager.reports:
            raise NoAnswerError("engine-lost", self.process.retry_after_s)
        if not self._pending:
            self._progress_s = time.monotonic()
        future = asyncio.get_running_loop().create_future()
        pending = _Pending(future, lane, task, on_event)
        self._pending[task.task_id] = pending
        context = logs.request.get()
        request_id = context.request_id if context else ""
        link.send(messages.Solve(lane=lane, task=task, request=request_id))
        timeout_s = None
        if task.deadline_s is not None:
            timeout_s = self._timeout_s(lane, task, task.deadline_s)
        try:
            result = await asyncio.wait_for(future, timeout_s)
        except asyncio.TimeoutError:
            raise NoAnswerError("deadline-missed") from None
        finally:
            unanswered = self._pending.pop(task.task_id, None)
            if unanswered is not None:
                link.send(messages.Cancel(lane=lane, task_id=task.task_id))
        has_answer = result.answer_T is not None
        is_partial = task.best_effort and has_answer
        if result.halted_by == "deadline" and not is_partial:
            raise NoAnswerError("deadline-missed")
        if not has_answer:
            raise NoAnswerError("engine-failed")
        return result

    def _timeout_s(self, lane: LaneKey, task: Task, deadline_s: float) -> float:
        """How long to wait for the result of a task with a deadline."""
        if task.best_effort:
            deadline_s += GRACE_S
            seen = self._seen(lane)
            if seen is not None:
                deadline_s += seen.mean_step_s
        return max(0.0, deadline_s - time.monotonic())

    async def drain(self, limit_s: float) -> None:
        """Admit nothing more and wait for pending answers; after `limit_s` the rest fails."""
        self._is_draining = True
        self.places.stop()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.places.vacant(), limit_s)
        self._is_drained = True
        self._refuse_all("draining")

    def _queue_full(self, lane: LaneKey) -> NoAnswerError:
        seen = self._seen(lane)
        return NoAnswerError("queue-full", seen.expected_wait_s if seen else 0.0)

    def _seen(self, lane: LaneKey) -> LaneSnapshot | None:
        """The last snapshot of the lane's model."""
        return self.lanes_by_model.get(lane.model)

    async def _kill_when_stalled(self) -> None:
        while True:
            self._ticked_s = time.monotonic()
            await asyncio.sleep(self._tick_s)
            is_late = time.monotonic() > self._ticked_s + 2 * self._tick_s
            if is_late or not self.step_age_s:
                self._progress_s = time.monotonic()
            if self.stalled:
                _log.error(
                    "the engine made no step for %.0f s while work waits: killing it",
                    self.step_age_s,
                )
                self.process.kill()

    def _note_loss(self) -> None:
        reason: NoAnswerReason = "draining" if self._is_draining else "engine-lost"
        self.lost_s = time.monotonic()
        self._refuse_all(reason)
        self.lane_manager.note_loss(NoAnswerError("engine-lost", self.process.retry_after_s))

    def _deliver(self, message: messages.FromEngine) -> None:
        if isinstance(message, messages.Stepped):
            self._progress_s = time.monotonic()
            for event in message.events:
                pending = self._pending.get(event.task_id)
                if pending is not None and pending.on_event is not None:
                    pending.on_event(event)
            for result in message.results:
                pending = self._pending.pop(result.task_id, None)
                if pending is not None and not pending.future.done():  # else its client has left
                    pending.future.set_result(result)
        elif isinstance(message, messages.Snapshot):
            self._progress_s = time.monotonic()
            self.snapshot = message
        elif isinstance(message, messages.Rejected):
            _log.warning("the engine rejects a request: %s", message.message)
            pending = self._pending.get(message.task_id)
            if pending is not None:
                self._refuse(message.task_id, self._queue_full(pending.lane))
        elif isinstance(message, messages.LaneChanged):
            self.lane_manager.take(message)
        elif isinstance(message, messages.Ready):
            self.process.note_ready(message.load_s)
            self.lane_manager.note_ready(message.reports)
        else:
            self.process.note_failure(message.message, is_refusal=message.is_refusal)

    def _refuse(self, task_id: int, error: NoAnswerError) -> None:
        pending = self._pending.pop(task_id)
        if not pending.future.done():
            pending.future.set_exception(error)

    def _refuse_all(self, reason: NoAnswerReason) -> None:
        for task_id in tuple(self._pending):
            self._refuse(task_id, NoAnswerError(reason, self.process.retry_after_s))
