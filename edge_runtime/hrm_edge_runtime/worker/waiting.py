"""The requests that wait for the engine: one future each, ended exactly once, and the age of the last progress."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from hrm_edge_runtime.batching.heap import Key
from hrm_edge_runtime.batching.task import Conclusion, SegmentEvent, Task
from hrm_edge_runtime.http.errors import ServiceError, deadline_missed, engine_failed

Watch = Callable[[SegmentEvent], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Wait:
    future: asyncio.Future[Conclusion]
    model: str
    rank: Key
    watch: Watch | None


class Waiting:
    """Waits by request id. An end for an id that is not here (any more) is no error: its client has left."""

    def __init__(self) -> None:
        self._waits: dict[int, _Wait] = {}
        self._progress_s = 0.0

    def __len__(self) -> int:
        return len(self._waits)

    @property
    def progress_age_s(self) -> float:
        """Seconds since the engine last showed progress while somebody waits for it; 0 where nobody does."""
        return time.monotonic() - self._progress_s if self._waits else 0.0

    def note_progress(self) -> None:
        self._progress_s = time.monotonic()

    @contextlib.contextmanager
    def place(
        self, request_id: int, model: str, rank: Key, watch: Watch | None = None
    ) -> Generator[asyncio.Future[Conclusion]]:
        """A future for the length of one wait; `watch` is called with every event before it ends."""
        if not self._waits:
            self.note_progress()
        future = asyncio.get_running_loop().create_future()
        self._waits[request_id] = _Wait(future=future, model=model, rank=rank, watch=watch)
        try:
            yield future
        finally:
            self._waits.pop(request_id, None)

    def num_ahead(self, model: str, rank: Key) -> int:
        """How many wait for a model with a rank before this one."""
        return sum(wait.model == model and wait.rank < rank for wait in self._waits.values())

    def show(self, event: SegmentEvent) -> None:
        wait = self._waits.get(event.task_id)
        if wait is not None and wait.watch is not None:
            wait.watch(event)

    def end(self, request_id: int, outcome: Conclusion | ServiceError) -> None:
        wait = self._waits.pop(request_id, None)
        if wait is None or wait.future.done():
            return
        if isinstance(outcome, ServiceError):
            wait.future.set_exception(outcome)
        else:
            wait.future.set_result(outcome)

    def end_all(self, error: ServiceError) -> None:
        for request_id in tuple(self._waits):
            self.end(request_id, error)


async def conclusion_of(task: Task, future: asyncio.Future[Conclusion], grace_s: float) -> Conclusion:
    """Wait for a conclusion that holds an answer; 504 at the deadline, 500 where the engine gave garbage.

    Who wants the best so far is told it shortly before the deadline, or up to `grace_s` after it where the segment
    under way took longer than was to be expected.
    """
    patience_s = grace_s if task.best_so_far else 0.0
    try:
        timeout_s = None if task.deadline_s is None else max(0.0, task.deadline_s + patience_s - time.monotonic())
        conclusion = await asyncio.wait_for(future, timeout_s)
    except asyncio.TimeoutError:
        raise deadline_missed() from None
    has_answer = conclusion.result.answer_T is not None
    if conclusion.result.halted_by == "deadline" and not (task.best_so_far and has_answer):
        raise deadline_missed()
    if not has_answer:
        raise engine_failed()
    return conclusion
