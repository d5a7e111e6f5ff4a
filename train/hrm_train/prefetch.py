"""Rows of coming steps, drawn by threads while the device works; the order never depends on their number."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """`at(step)` is `draw(step, setting(step))`, begun up to `depth` steps early on `workers` threads (0: on demand).

    Threads rather than processes: the work is numpy on a memory map, which releases the interpreter where it is heavy.
    """

    def __init__(
        self, draw: Callable[[int, int], T], setting: Callable[[int], int], *, workers: int, depth: int
    ) -> None:
        self._draw, self._setting, self._depth = draw, setting, depth
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="rows") if workers and depth else None
        self._begun: dict[int, Future[T]] = {}

    def at(self, step: int) -> T:
        if self._pool is None:
            return self._draw(step, self._setting(step))
        self._begun = {begun: future for begun, future in self._begun.items() if begun >= step}
        for coming in range(step, step + self._depth + 1):
            if coming not in self._begun:
                self._begun[coming] = self._pool.submit(self._draw, coming, self._setting(coming))
        return self._begun.pop(step).result()

    def forget(self) -> None:
        """Drops what was begun, for a trainer that goes to another step."""
        self._begun.clear()
