"""The HTTP process's side of the engine: it admits work to it, waits for its answers, and changes its lanes.

Everything here runs in the event loop. A request takes a place (bounded, checked before anything is queued), sends its
question and waits for one future. Whatever ends the wait early, an answer that is no longer wanted is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace

from hrm_edge_runtime import logs
from hrm_edge_runtime.batching.heap import Key
from hrm_edge_runtime.batching.scheduler import rank
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Conclusion, Task
from hrm_edge_runtime.http.errors import ServiceError, State, UnavailableReason, unavailable
from hrm_edge_runtime.worker.admission import AdmissionLimits
from hrm_edge_runtime.worker.backoff import BackOff
from hrm_edge_runtime.worker.handles import EngineHandle
from hrm_edge_runtime.worker.lane_manager import LaneManager
from hrm_edge_runtime.worker.messages import Cancel, Ended, FromEngine, Ready, Rejected, Seen, Snapshot, Solve
from hrm_edge_runtime.worker.process import EngineProcess
from hrm_edge_runtime.worker.waiting import Waiting, Watch, conclusion_of

LOOK_AGAIN_S = 0.05  # how long a batch that waits for its place sleeps where nobody leaves one
GRACE_S = 0.1  # how much later than its deadline, beside a segment, a best answer so far may come

_log = logging.getLogger("hrm_edge_runtime.worker")


class EngineClient:
    """One engine process with its lanes, kept alive: an async context manager. A request takes a `place` and `solve`s.

    `limits` says how many requests each lane may hold at once, until the engine tells. Readers may look at `state`,
    `snapshot` (by the names of models), `num_losses`, `last_error` and `backoff` at any time.
    """

    def __init__(
        self, start_engine: Callable[[], EngineHandle], limits: Mapping[str, int], *, stall_s: float = 60.0
    ) -> None:
        self._stall_s = stall_s
        self._ids = itertools.count(1)
        self._waiting = Waiting()
        self._keeper = EngineProcess(start_engine, on_message=self._deliver, on_lost=self._note_loss)
        self._draining = self._drained = False
        self.places = AdmissionLimits(limits)
        self.lane_manager = LaneManager(self._keeper.send, self.places)
        self.snapshot: Snapshot | None = None

    async def __aenter__(self) -> EngineClient:
        self._keeper.start()
        self._watcher = asyncio.create_task(self._kill_when_stalled(), name="engine-watcher")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._draining = self._drained = True
        self._watcher.cancel()
        self._waiting.end_all(self._refusal("draining"))
        await self._keeper.stop()

    @property
    def state(self) -> State:
        """Where the engine stands; only `ready` takes new work."""
        if self._draining:
            return "draining"
        if self._keeper.is_ready:
            return "ready"
        return "engine-lost" if self.num_losses else "loading"

    @property
    def engine_pid(self) -> int | None:
        return self._keeper.pid

    @property
    def num_losses(self) -> int:
        return self._keeper.num_losses

    @property
    def last_error(self) -> str | None:
        return self._keeper.last_error

    @property
    def refusal(self) -> str | None:
        """Why the engine cannot be had at all, so that waiting for it is in vain."""
        return self._keeper.refusal

    @property
    def backoff(self) -> BackOff:
        return self._keeper.backoff

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def step_age_s(self) -> float:
        """Seconds since the last sign of a step while work waits; 0 where none waits."""
        return self._waiting.progress_age_s

    @property
    def stalled(self) -> bool:
        return self.step_age_s > self._stall_s

    @contextlib.contextmanager
    def place(self, lane: str) -> Generator[None]:
        """Take one of a lane's bounded places for the whole of a request; refuses with 503 where none is to be had."""
        if (refusal := self._why_not(lane)) is not None:
            raise refusal
        self.places.take(lane)
        try:
            yield
        finally:
            self.places.leave(lane)

    async def take_place_for_batch(self, lane: str, patience_s: float) -> None:
        """Wait for a place that a batch may take, and take it; the caller leaves it. 503 after `patience_s`."""
        give_up_s = time.monotonic() + patience_s
        while (refusal := self._why_not(lane, for_batch=True)) is not None:
            if self._draining or lane not in self.places.limits or time.monotonic() > give_up_s:
                raise refusal
            await self.places.freed(LOOK_AGAIN_S)
        self.places.take(lane)  # at once: many lines come in one turn of the event loop

    def check_deadline(self, lane: str, task: Task) -> None:
        """Refuse with 503 what cannot even begin before its deadline, however well the lane gets on from here."""
        seen = self._seen(lane)
        if seen is None or task.deadline_s is None:
            return
        least_wait_s = seen.least_wait_s(self._waiting.num_ahead(lane, rank_of(task)))
        if least_wait_s and time.monotonic() + least_wait_s > task.deadline_s:
            raise self._refusal("cannot-make-deadline", lane)

    async def solve(self, lane: str, task: Task, watch: Watch | None = None) -> Conclusion:
        """Have one question answered (from within a place); refuses with 503 or 504, and cancels what nobody awaits.

        The task gets its id here. `watch` sees every segment of every attempt.
        """
        link = self._keeper.link
        if self._drained or link is None or lane not in self.lane_manager.reports:
            raise self._refusal("draining" if self._drained else "engine-lost", lane)
        request_id = next(self._ids)
        with self._waiting.place(request_id, lane, rank_of(task), watch) as future:
            numbered = replace(task, task_id=request_id, streamed=watch is not None)
            context = logs.request.get()
            link.send(Solve(lane=lane, task=numbered, request=context.request_id if context else ""))
            try:
                return await conclusion_of(task, future, self._grace_s(lane))
            finally:
                if not future.done() or future.cancelled():
                    link.send(Cancel(lane=lane, request_id=request_id))

    async def drain(self, limit_s: float) -> None:
        """Take no more work and wait until what was admitted is answered; after `limit_s` the rest gets 503."""
        self._draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.places.empty(), limit_s)
        self._drained = True
        self._waiting.end_all(self._refusal("draining"))

    async def _kill_when_stalled(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._stall_s / 4))
            if self.stalled:
                _log.error("the engine made no step for %.0f s while work waits, so it is killed", self.step_age_s)
                self._keeper.kill()

    def _note_loss(self) -> None:
        self._waiting.end_all(self._refusal("draining" if self._draining else "engine-lost"))
        self.lane_manager.note_loss(self._refusal("engine-lost"))

    def _deliver(self, message: FromEngine) -> None:
        if isinstance(message, Ready):
            self.lane_manager.note_ready(message.reports)
        elif isinstance(message, Rejected):
            _log.warning("the engine refuses a request: %s", message.message)
            self._waiting.end(message.request_id, self._refusal("queue-full"))
        elif isinstance(message, Snapshot):
            self._waiting.note_progress()
            self.snapshot = replace(message, lanes=self.lane_manager.by_model(message.lanes))
        elif isinstance(message, Seen):
            for event in message.events:
                self._waiting.show(event)
        elif isinstance(message, Ended):
            self._waiting.note_progress()
            for conclusion in message.conclusions:
                self._waiting.end(conclusion.task_id, conclusion)
        else:
            self.lane_manager.take(message)

    def _seen(self, lane: str) -> LaneSnapshot | None:
        return self.snapshot.lanes.get(self.lane_manager.model_of(lane)) if self.snapshot else None

    def _grace_s(self, lane: str) -> float:
        seen = self._seen(lane)
        return GRACE_S + (seen.mean_step_s if seen else 0.0)

    def _why_not(self, lane: str, *, for_batch: bool = False) -> ServiceError | None:
        if (state := self.state) != "ready":
            return self._refusal(state, lane)
        return self._refusal("queue-full", lane) if self.places.is_full(lane, for_batch=for_batch) else None

    def _refusal(self, reason: UnavailableReason, lane: str | None = None) -> ServiceError:
        if reason not in ("queue-full", "cannot-make-deadline"):
            return unavailable(reason, self.backoff.delay_s)
        seen = self._seen(lane) if lane else None
        return unavailable(reason, seen.expected_wait_s if seen else 0.0)


def rank_of(task: Task) -> Key:
    """Where the first attempt at a question stands in its lane's line."""
    return rank(task.priority, task.deadline_s, task.arrival_s)
