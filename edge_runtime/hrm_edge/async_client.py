"""`Client` for asyncio. Its calls run in threads."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from hrm_edge.batches import Numbered, Reply
from hrm_edge.client import DEFAULT_URL, Client, Event
from hrm_edge_runtime.api.schema import ModelView, SolveAnswer

NUM_THREADS = 64  # calls at once; further ones wait for a thread
Result = TypeVar("Result")


class AsyncClient:
    """`Client` for asyncio: the same arguments and answers."""

    def __init__(self, url: str = DEFAULT_URL, **options: Any) -> None:
        self._client = Client(url, **options)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="hrm-client")

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False)
        self._client.__exit__()

    async def solve(self, puzzle: object, **fields: object) -> SolveAnswer:
        """Solve one puzzle; `fields` are the other fields of a request."""
        return await self._run(partial(self._client.solve, puzzle, **fields))

    async def solve_many(self, puzzles: Iterable[object], **fields: object) -> list[Reply]:
        """Answers or refusals in the order of the puzzles."""
        return await self._run(partial(self._client.solve_many, puzzles, **fields))

    def as_finished(
        self, puzzles: Iterable[object], **fields: object
    ) -> AsyncGenerator[Numbered, None]:
        """Yield positions and replies as they finish."""
        return _pulled(self._client.as_finished(puzzles, **fields))

    def stream(self, puzzle: object, **fields: object) -> AsyncGenerator[Event, None]:
        """Yield a view of each segment of one puzzle while it is solved, then the answer."""
        return _pulled(self._client.stream(puzzle, **fields))

    async def models(self) -> list[ModelView]:
        return await self._run(self._client.models)

    async def _run(self, call: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


async def _pulled(items: Generator[Result, None, None]) -> AsyncGenerator[Result, None]:
    """Yield the items of a blocking generator.

    One thread takes the items and closes the generator, so a cancel never closes it while it runs.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="hrm-stream")
    try:
        item = await loop.run_in_executor(thread, next, items, None)
        while item is not None:
            yield item
            item = await loop.run_in_executor(thread, next, items, None)
    finally:
        thread.submit(items.close)
        thread.shutdown(wait=False)
