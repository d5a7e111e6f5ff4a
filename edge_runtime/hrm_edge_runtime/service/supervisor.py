"""The HTTP process's side of the engine: it starts it, admits work to it, notices its death and starts it again.

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

from hrm_edge_runtime.batching.asks import Ask, Conclusion
from hrm_edge_runtime.batching.heap import Key
from hrm_edge_runtime.batching.scheduler import rank
from hrm_edge_runtime.service.backoff import BackOff
from hrm_edge_runtime.service.errors import ServiceError, State, UnavailableReason, unavailable
from hrm_edge_runtime.service.link import EngineLink
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
)
from hrm_edge_runtime.service.places import Places
from hrm_edge_runtime.service.processes import EngineHandle
from hrm_edge_runtime.service.waiting import Waiting, Watch, conclusion_of

LOOK_AGAIN_S = 0.05  # how long a batch that waits for its place sleeps where nobody leaves one
GRACE_S = 0.1  # how much later than its deadline, beside a segment, a best answer so far may come
STOP_S = 5.0  # how long an engine may take to leave when asked, before it is killed

_log = logging.getLogger("hrm_edge_runtime.supervisor")


class Supervisor:
    """One engine process with its lanes, kept alive: an async context manager. A request takes a `place` and `solve`s.

    `limits` says how many requests each model may hold at once. Readers may look at `state`, `loaded`, `snapshot`,
    `num_losses`, `last_error` and `backoff` at any time.
    """

    def __init__(
        self, start_engine: Callable[[], EngineHandle], limits: Mapping[str, int], *, stall_s: float = 60.0
    ) -> None:
        self._start_engine = start_engine
        self._stall_s = stall_s
        self._ids = itertools.count(1)
        self._waiting = Waiting()
        self._handle: EngineHandle | None = None
        self._link: EngineLink | None = None
        self._ready_at_s = 0.0
        self._draining = self._drained = False
        self.places = Places(limits)
        self.loaded: Ready | None = None
        self.snapshot: Snapshot | None = None
        self.backoff = BackOff()
        self.num_losses = 0
        self.last_error: str | None = None

    async def __aenter__(self) -> Supervisor:
        self._closing = asyncio.Event()
        self._runner = asyncio.create_task(self._keep_running(), name="engine-runner")
        self._watcher = asyncio.create_task(self._kill_when_stalled(), name="engine-watcher")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the engine: by asking, or by killing it where it does not leave in time."""
        self._draining = self._drained = True
        self._closing.set()
        self._watcher.cancel()
        self._waiting.end_all(self._refusal("draining"))
        if self._link is not None and self.loaded is not None:
            self._link.send(Stop())
            await asyncio.wait({self._runner}, timeout=STOP_S)
        if self._handle is not None:
            self._handle.kill()
        await asyncio.wait({self._runner}, timeout=STOP_S)

    @property
    def state(self) -> State:
        """Where the engine stands; only `ready` takes new work."""
        if self._draining:
            return "draining"
        if self.loaded is not None:
            return "ready"
        return "engine-lost" if self.num_losses else "loading"

    @property
    def engine_pid(self) -> int | None:
        return self._handle.pid if self._handle else None

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
    def place(self, model: str) -> Generator[None]:
        """Take one of a model's bounded places for the whole of a request; refuses with 503 where none is to be had."""
        if (refusal := self._why_not(model)) is not None:
            raise refusal
        with self.places.hold(model):
            yield

    async def place_for_batch(self, model: str, patience_s: float) -> None:
        """Wait until a batch may take a place; refuses with 503 where that takes longer than `patience_s`."""
        give_up_s = time.monotonic() + patience_s
        while (refusal := self._why_not(model, for_batch=True)) is not None:
            if self._draining or time.monotonic() > give_up_s:
                raise refusal
            await self.places.freed(LOOK_AGAIN_S)

    def check_deadline(self, model: str, ask: Ask) -> None:
        """Refuse with 503 what cannot even begin before its deadline, however well the lane gets on from here."""
        lane = self.snapshot.lanes.get(model) if self.snapshot else None
        if lane is None or ask.deadline_s is None:
            return
        least_wait_s = lane.least_wait_s(self._waiting.num_ahead(model, rank_of(ask)))
        if least_wait_s and time.monotonic() + least_wait_s > ask.deadline_s:
            raise self._refusal("cannot-make-deadline", model)

    async def solve(self, model: str, ask: Ask, watch: Watch | None = None) -> Conclusion:
        """Have one question answered (from within a place); refuses with 503 or 504, and cancels what nobody awaits.

        The ask gets its id here. `watch` sees every segment of every attempt.
        """
        if self._drained or self._link is None or self.loaded is None:
            raise self._refusal("draining" if self._drained else "engine-lost", model)
        link, request_id = self._link, next(self._ids)
        with self._waiting.place(request_id, model, rank_of(ask), watch) as future:
            link.send(Solve(model=model, ask=replace(ask, ask_id=request_id, watched=watch is not None)))
            try:
                return await conclusion_of(ask, future, self._grace_s(model))
            finally:
                if not future.done() or future.cancelled():
                    link.send(Cancel(model=model, request_id=request_id))

    async def drain(self, limit_s: float) -> None:
        """Take no more work and wait until what was admitted is answered; after `limit_s` the rest gets 503."""
        self._draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.places.empty(), limit_s)
        self._drained = True
        self._waiting.end_all(self._refusal("draining"))

    async def _keep_running(self) -> None:
        while not self._closing.is_set():
            self._ready_at_s = 0.0
            try:
                await self._run_engine()
            except Exception as error:  # whatever keeps an engine from starting, it is worth another try later
                _log.exception("the engine could not be started")
                self.last_error = f"the engine could not be started: {error}"
            await self._pause_after_loss()

    async def _run_engine(self) -> None:
        lost = asyncio.Event()
        self._handle = handle = await asyncio.to_thread(self._start_engine)
        if self._closing.is_set():
            handle.kill()
        self._link = EngineLink(handle, on_message=self._deliver, on_lost=lost.set)
        await lost.wait()
        self._link = self.loaded = None
        self.num_losses += not self._closing.is_set()
        self._waiting.end_all(self._refusal("draining" if self._draining else "engine-lost"))
        await asyncio.to_thread(_reap, handle)

    async def _pause_after_loss(self) -> None:
        if self._closing.is_set():
            return
        delay_s = self.backoff.after(time.monotonic() - self._ready_at_s if self._ready_at_s else 0.0)
        _log.error("engine lost (%d times so far), starting it again in %.1f s", self.num_losses, delay_s)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), delay_s)

    async def _kill_when_stalled(self) -> None:
        while True:
            await asyncio.sleep(min(1.0, self._stall_s / 4))
            if self.stalled and self._handle is not None:
                _log.error("the engine made no step for %.0f s while work waits, so it is killed", self.step_age_s)
                self._handle.kill()

    def _deliver(self, message: FromEngine) -> None:
        if isinstance(message, Ready):
            self.loaded, self._ready_at_s = message, time.monotonic()
            _log.info("engine ready after %.1f s with %s", message.load_s, ", ".join(message.warm_step_s))
        elif isinstance(message, Failed):
            self.last_error = message.message
            _log.error("engine: %s", message.message)
        elif isinstance(message, Rejected):
            _log.warning("the engine refuses a request: %s", message.message)
            self._waiting.end(message.request_id, self._refusal("queue-full"))
        elif isinstance(message, Snapshot):
            self._waiting.note_progress()
            self.snapshot = message
        elif isinstance(message, Seen):
            for glimpse in message.glimpses:
                self._waiting.show(glimpse)
        else:
            self._end(message)

    def _end(self, message: Ended) -> None:
        self._waiting.note_progress()
        for conclusion in message.conclusions:
            self._waiting.end(conclusion.ask_id, conclusion)

    def _grace_s(self, model: str) -> float:
        lane = self.snapshot.lanes.get(model) if self.snapshot else None
        return GRACE_S + (lane.mean_step_s if lane else 0.0)

    def _why_not(self, model: str, *, for_batch: bool = False) -> ServiceError | None:
        if (state := self.state) != "ready":
            return self._refusal(state, model)
        return self._refusal("queue-full", model) if self.places.is_full(model, for_batch=for_batch) else None

    def _refusal(self, reason: UnavailableReason, model: str | None = None) -> ServiceError:
        if reason not in ("queue-full", "cannot-make-deadline"):
            return unavailable(reason, self.backoff.delay_s)
        lane = self.snapshot.lanes.get(model or "") if self.snapshot else None
        return unavailable(reason, lane.expected_wait_s if lane else 0.0)


def rank_of(ask: Ask) -> Key:
    """Where the first attempt at a question stands in its lane's line."""
    return rank(ask.priority, ask.deadline_s, ask.arrival_s)


def _reap(handle: EngineHandle) -> None:
    """Wait for an engine whose pipe has ended; one that lingers is killed."""
    if not handle.join(STOP_S):
        handle.kill()
        handle.join(STOP_S)
