"""Two ways to ask a server: single puzzles at moments fixed beforehand, and a stream of lines over one connection.

Latency counts from the moment a request was meant to be sent. A client that waits for its answers before it sends more
hides the very queue it should measure (coordinated omission).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

NDJSON = {"content-type": "application/x-ndjson"}
LINES_IN_A_PIECE = 64
WINDOW = 512
PATIENCE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One request: moments in seconds from the start of its run; status 0 where no answer came."""

    question: int
    intended_s: float
    sent_s: float
    done_s: float
    status: int
    answer: dict[str, Any]

    @property
    def latency_s(self) -> float:
        return self.done_s - self.intended_s


def client() -> aiohttp.ClientSession:
    """Connections without number; every one is kept and used again."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=PATIENCE_S)
    )


async def open_loop(
    http: aiohttp.ClientSession,
    url: str,
    bodies: Sequence[bytes],
    questions: Sequence[int],
    arrivals_s: Sequence[float],
) -> list[Outcome]:
    """Ask `bodies[questions[i]]` at `arrivals_s[i]`, whatever has become of those before."""
    began = time.monotonic()
    asked: list[asyncio.Task[Outcome]] = []
    for question, intended_s in zip(questions, arrivals_s, strict=True):
        await asyncio.sleep(max(0.0, began + intended_s - time.monotonic()))
        asked.append(asyncio.create_task(_ask(http, url, question, bodies[question], began, intended_s)))
    return list(await asyncio.gather(*asked))


async def _ask(
    http: aiohttp.ClientSession, url: str, question: int, body: bytes, began: float, intended_s: float
) -> Outcome:
    sent_s, status, answer = time.monotonic() - began, 0, dict[str, Any]()
    try:
        async with http.post(f"{url}/solve", data=body, headers={"content-type": "application/json"}) as response:
            answer = json.loads(await response.read())
            status = response.status
    except aiohttp.ClientError:
        pass
    return Outcome(
        question=question,
        intended_s=intended_s,
        sent_s=sent_s,
        done_s=time.monotonic() - began,
        status=status,
        answer=answer,
    )


async def stream(
    http: aiohttp.ClientSession, url: str, bodies: Iterable[bytes], *, window: int = WINDOW, rate: float | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Send lines (at most `rate` in a second) while their answers are read; what the server says, line by line.

    At most `window` lines are unanswered: the buffers of a connection hold thousands, and they would be an
    unmeasured queue.
    """
    places = asyncio.Semaphore(window)
    async with http.post(f"{url}/solve/batch", data=_pieces(bodies, places, rate), headers=NDJSON) as response:
        response.raise_for_status()
        async for line in response.content:
            places.release()
            yield json.loads(line)


def answer_in(said: dict[str, Any]) -> dict[str, Any]:
    """The answer of a line; refuses (ValueError) a line that holds an error."""
    if "answer" not in said:
        raise ValueError(f"line {said['line']} was refused ({said['error']['message']}): ask what this server takes.")
    return said["answer"]


async def _pieces(bodies: Iterable[bytes], places: asyncio.Semaphore, rate: float | None) -> AsyncIterator[bytes]:
    lines: list[bytes] = []
    began = time.monotonic()
    for number, body in enumerate(bodies):
        if lines and (places.locked() or len(lines) == LINES_IN_A_PIECE):
            yield b"\n".join(lines) + b"\n"
            lines = []
            if rate is not None:
                await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        await places.acquire()
        lines.append(body)
    yield b"\n".join(lines) + b"\n"
