"""What a watcher of one question is told: glimpses as they come, in the notation of the question.

Shapes: T tokens.
"""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np

from hrm_edge_runtime.batching.task import Glimpse
from hrm_edge_runtime.http.parse_task import Question, solution_of
from hrm_edge_runtime.http.schema import SegmentView
from hrm_puzzles.puzzle import Grid

MAILBOX_SIZE = 256  # more than a reader falls behind; past it the oldest segments are left out, never the answer


class Mailbox:
    """Glimpses on their way from the engine's messages to one reader; iterates until it is closed and empty."""

    def __init__(self) -> None:
        self._glimpses: deque[Glimpse] = deque(maxlen=MAILBOX_SIZE)
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, glimpse: Glimpse) -> None:
        self._glimpses.append(glimpse)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    def __aiter__(self) -> Mailbox:
        return self

    async def __anext__(self) -> Glimpse:
        while not self._glimpses:
            if self._closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._glimpses.popleft()


class Watcher:
    """Turns glimpses into views, and knows what it showed last of each attempt."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._shown: dict[int, Grid] = {}

    def view(self, glimpse: Glimpse) -> SegmentView:
        grid = self._question.model.puzzle.decode(glimpse.answer_T)
        before = self._shown.get(glimpse.attempt, self._question.parsed.grid)
        self._shown[glimpse.attempt] = grid
        return SegmentView(
            segment=glimpse.segment,
            attempt=glimpse.attempt,
            solution=solution_of(self._question, glimpse.answer_T),
            changed=_changed(before, grid),
            margin=glimpse.margin,
            verified=glimpse.verified,
        )


def _changed(before: Grid, now: Grid) -> list[int]:
    """The cells of `now` that differ; all of them where the board has another shape."""
    if before.shape != now.shape:
        return list(range(now.size))
    return np.flatnonzero(before.reshape(-1) != now.reshape(-1)).tolist()
