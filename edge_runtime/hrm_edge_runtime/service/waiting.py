"""The requests that wait for the engine: one future each, ended exactly once, and the age of the last progress."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Generator

from hrm_edge_runtime.batching.asks import Conclusion, Glimpse
from hrm_edge_runtime.service.errors import ServiceError, deadline_missed, engine_failed

Watch = Callable[[Glimpse], None]


class Waiting:
    """Futures by request id. An end for an id that is not here (any more) is no error: its client has left."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[Conclusion]] = {}
        self._watches: dict[int, Watch] = {}
        self._progress_s = 0.0

    def __len__(self) -> int:
        return len(self._futures)

    @property
    def progress_age_s(self) -> float:
        """Seconds since the engine last showed progress while somebody waits for it; 0 where nobody does."""
        return time.monotonic() - self._progress_s if self._futures else 0.0

    def note_progress(self) -> None:
        self._progress_s = time.monotonic()

    @contextlib.contextmanager
    def place(self, request_id: int, watch: Watch | None = None) -> Generator[asyncio.Future[Conclusion]]:
        """A future for the length of one wait; `watch` is called with every glimpse before it ends."""
        if not self._futures:
            self.note_progress()
        self._futures[request_id] = asyncio.get_running_loop().create_future()
        if watch is not None:
            self._watches[request_id] = watch
        try:
            yield self._futures[request_id]
        finally:
            self._futures.pop(request_id, None)
            self._watches.pop(request_id, None)

    def show(self, glimpse: Glimpse) -> None:
        if (watch := self._watches.get(glimpse.ask_id)) is not None:
            watch(glimpse)

    def end(self, request_id: int, outcome: Conclusion | ServiceError) -> None:
        future = self._futures.pop(request_id, None)
        if future is None or future.done():
            return
        if isinstance(outcome, ServiceError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def end_all(self, error: ServiceError) -> None:
        for request_id in tuple(self._futures):
            self.end(request_id, error)


async def conclusion_before(deadline_s: float | None, future: asyncio.Future[Conclusion]) -> Conclusion:
    """Wait for a conclusion that holds an answer; 504 at the deadline, 500 where the engine gave garbage."""
    try:
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        conclusion = await asyncio.wait_for(future, timeout_s)
    except asyncio.TimeoutError:
        raise deadline_missed() from None
    if conclusion.result.halted_by == "deadline":
        raise deadline_missed()
    if conclusion.result.answer_T is None:
        raise engine_failed()
    return conclusion
