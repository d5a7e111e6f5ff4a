"""What a watcher of one question is told: events as they come, in the notation of the question.

Shapes: T tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np

from hrm_edge_runtime.batching.task import SegmentEvent
from hrm_edge_runtime.http.parse_task import Question, solution_of
from hrm_edge_runtime.http.schema import SegmentView
from hrm_puzzles.puzzle import Grid

MAILBOX_SIZE = 256  # more than a reader falls behind; past it the oldest segments are left out, never the answer


class Mailbox:
    """Glimpses on their way from the engine's messages to one reader; iterates until it is closed and empty."""

    def __init__(self) -> None:
        self._glimpses: deque[SegmentEvent] = deque(maxlen=MAILBOX_SIZE)
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, event: SegmentEvent) -> None:
        self._glimpses.append(event)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> SegmentEvent:
        while not self._glimpses:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._glimpses.popleft()


class Watcher:
    """Turns events into views, and knows what it showed last of each attempt."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._shown: dict[int, Grid] = {}

    def view(self, event: SegmentEvent) -> SegmentView:
        grid = self._question.model.puzzle.decode(event.answer_T)
        before = self._shown.get(event.attempt, self._question.parsed.grid)
        self._shown[event.attempt] = grid
        return SegmentView(
            segment=event.segment,
            attempt=event.attempt,
            solution=solution_of(self._question, event.answer_T),
            changed=_changed(before, grid),
            margin=event.margin,
            verified=event.verified,
        )


def _changed(before: Grid, now: Grid) -> list[int]:
    """The cells of `now` that differ; all of them where the board has another shape."""
    if before.shape != now.shape:
        return list(range(now.size))
    return np.flatnonzero(before.reshape(-1) != now.reshape(-1)).tolist()
