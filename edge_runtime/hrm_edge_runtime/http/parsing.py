"""Threads that parse, so that the event loop goes on while a puzzle's rules are checked.

Waking a thread costs more than most puzzles take to parse, so a few that come in the same turn of the event loop go to
one thread together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

NUM_THREADS = 2  # a parser holds the interpreter most of its time: more threads would only starve the event loop
TOGETHER = 8

T = TypeVar("T")
Work = tuple["asyncio.Future[Any]", Callable[[], Any]]
Done = tuple["asyncio.Future[Any]", Any, "Exception | None"]


class Parsers:
    """Does small pieces of work in threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="hrm-parser")
        self._works: list[Work] = []

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def do(self, work: Callable[[], T]) -> T:
        """What the work gives, or raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._works.append((future, work))
        if len(self._works) == 1:
            loop.call_soon(self._hand_out, loop)
        return await future

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        works, self._works = self._works, []
        for start in range(0, len(works), TOGETHER):
            self._threads.submit(_do, works[start : start + TOGETHER], loop)


def _do(works: list[Work], loop: asyncio.AbstractEventLoop) -> None:
    done = [_done(future, work) for future, work in works if not future.cancelled()]
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody is left to tell
        loop.call_soon_threadsafe(_tell, done)


def _done(future: asyncio.Future[Any], work: Callable[[], Any]) -> Done:
    try:
        return future, work(), None
    except Exception as error:  # it belongs to whoever awaits the future
        return future, None, error


def _tell(done: list[Done]) -> None:
    for future, value, error in done:
        if future.done():
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
