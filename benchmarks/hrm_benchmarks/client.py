"""The client of all benchmarks: single requests, an open loop, streamed batches.

Latency counts from the moment a request is due. A client that waits for one answer before it sends
the next request hides the queue that it should measure (coordinated omission).
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import aiohttp

READ_TIMEOUT_S = 300.0  # seconds; a puzzle may wait behind a long queue
WINDOW = 512  # lines; unlimited, a connection's buffers hold thousands and hide the queue
LINES_PER_PIECE = 64
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}

Reply = dict[str, Any]
"""A decoded JSON object of the server."""


def session(url: str, headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Return a session with any number of connections, all kept alive."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(url, headers=headers, connector=connector, timeout=timeout)


async def post(http: aiohttp.ClientSession, body: bytes) -> tuple[Reply, int]:
    """Send one puzzle; return the reply and its HTTP status."""
    async with http.post("/solve", data=body, headers=JSON) as response:
        content = await response.read()
        return json.loads(content), response.status


class Exchange(NamedTuple):
    """One request of an open loop; `status` is 0 if the connection broke."""

    latency_s: float  # from the moment the request was due
    status: int


async def open_loop(
    http: aiohttp.ClientSession, bodies: Iterable[bytes], due_s: Iterable[float]
) -> list[Exchange]:
    """Send each body at its moment (seconds from now), whether or not earlier ones are answered."""
    began_s = time.monotonic()

    async def exchange(body: bytes, at_s: float) -> Exchange:
        status = 0
        with contextlib.suppress(aiohttp.ClientError):
            _, status = await post(http, body)
        return Exchange(time.monotonic() - at_s, status)

    sending: list[asyncio.Task[Exchange]] = []
    for body, after_s in zip(bodies, due_s, strict=True):
        at_s = began_s + after_s
        await asyncio.sleep(max(0.0, at_s - time.monotonic()))
        sending.append(asyncio.create_task(exchange(body, at_s)))
    return list(await asyncio.gather(*sending))


async def stream(
    http: aiohttp.ClientSession,
    bodies: Iterable[bytes],
    *,
    rate: float | None = None,
    window: int = WINDOW,
) -> AsyncIterator[Reply]:
    """Send lines of a batch, at most `rate` per second, and yield the replies as they arrive.

    At most `window` lines are unanswered.
    """
    places = asyncio.Semaphore(window)
    pieces = _pieces(bodies, places, rate)
    async with http.post("/solve/batch", data=pieces, headers=NDJSON) as response:
        response.raise_for_status()
        async for line in response.content:
            places.release()
            yield json.loads(line)


async def _pieces(
    bodies: Iterable[bytes], places: asyncio.Semaphore, rate: float | None
) -> AsyncIterator[bytes]:
    lines: list[bytes] = []
    began_s = time.monotonic()
    for number, body in enumerate(bodies):
        is_full = places.locked() or len(lines) == LINES_PER_PIECE
        if lines and is_full:
            yield _joined(lines)
            lines = []
            if rate is not None:
                due_s = began_s + number / rate
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        await places.acquire()
        lines.append(body)
    yield _joined(lines)


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines) + b"\n"


def cycled(bodies: Sequence[bytes], seconds: float) -> Iterator[bytes]:
    """Yield the bodies in a loop until the time is up; at least one."""
    end_s = time.monotonic() + seconds
    for body in itertools.cycle(bodies):
        yield body
        if time.monotonic() > end_s:
            return


def require_answer(line: Reply) -> None:
    """Raise ValueError if a line of a batch holds an error."""
    if "answer" not in line:
        message = line["error"]["message"]
        raise ValueError(f"line {line['line']} was rejected ({message}): send a valid puzzle.")
