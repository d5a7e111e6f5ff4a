"""Sends puzzles to a server and measures what its answers cost.

Latency of the open loop counts from the moment a request is due. A client that waits for one answer
before it sends the next request hides the queue that it should measure (coordinated omission).
"""

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import aiohttp
import numpy as np

from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import RunningServer
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

READ_TIMEOUT_S = 300.0  # a puzzle may wait behind a long queue
WARM_UP_S = 2.0
SHARE = 0.8  # of the measured maximum; at 1 the queue grows without limit
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
COLUMNS = {
    "route": "{route}",
    "puzzles/s": "{puzzles_per_s:.0f}",
    "of bound": "{share_of_bound:.3f}",
    "CPU ms": "{cpu_ms:.2f}",
    "HTTP CPU us": "{http_cpu_us:.0f}",
    "open p50": "{open_p50_ms:.1f}",
    "open p99": "{open_p99_ms:.1f}",
    "ready s": "{ready_s:.2f}",
    "MB": "{memory_mb:.0f}",
}
LEGEND = """\
of bound: occupancy of the slots while puzzles wait, times the engine's share of the time
CPU: of both processes per puzzle; HTTP CPU: of the one without the engine. MB: both processes
open: ms of single puzzles that arrive at random at 80 % of the maximum, from the due moment"""


class Reply(NamedTuple):
    latency_s: float
    answer: Any  # the decoded JSON


def session(url: str) -> aiohttp.ClientSession:
    """Return a session with any number of connections, all kept alive."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_S)
    return aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


async def ask(http: aiohttp.ClientSession, body: bytes, due_s: float) -> Reply:
    """Send one puzzle, due at this time of the monotonic clock.

    Raises ValueError for a refusal.
    """
    async with http.post("/solve", data=body, headers=JSON) as response:
        answer = json.loads(await response.read())
    if response.status != 200:
        raise ValueError(f"the server answered {response.status}: {answer}")
    return Reply(latency_s=time.monotonic() - due_s, answer=answer)


async def closed_loop(
    http: aiohttp.ClientSession, bodies: Iterable[bytes], num_connections: int
) -> list[Reply]:
    """Each connection sends the next puzzle as soon as its last one is answered."""
    waiting = iter(bodies)
    replies: list[Reply] = []

    async def connection() -> None:
        for body in waiting:
            replies.append(await ask(http, body, time.monotonic()))

    await asyncio.gather(*[connection() for _ in range(num_connections)])
    return replies


async def open_loop(
    http: aiohttp.ClientSession, bodies: Sequence[bytes], rate: float, seed: int
) -> list[Reply]:
    """Send each body at a random moment, `rate` per second, whether earlier ones are answered."""
    gaps_s = np.random.default_rng(seed).exponential(1 / rate, len(bodies))
    dues_s = time.monotonic() + np.cumsum(gaps_s)
    sending: list[asyncio.Task[Reply]] = []
    for body, due_s in zip(bodies, dues_s.tolist(), strict=True):
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sending.append(asyncio.create_task(ask(http, body, due_s)))
    return list(await asyncio.gather(*sending))


async def batches(
    http: aiohttp.ClientSession, bodies: Sequence[bytes], seconds: float
) -> list[bytes]:
    """Send all bodies as the lines of a batch, over and over until the time is up.

    Returns the answers. The next batch begins when the last one is answered, so that no queue of
    lines hides what the server takes.
    """
    answers: list[bytes] = []
    lines = b"\n".join(bodies)
    end_s = time.monotonic() + seconds
    while not answers or time.monotonic() < end_s:
        async with http.post("/solve/batch", data=lines, headers=NDJSON) as response:
            response.raise_for_status()
            answers += [line async for line in response.content if b'"answer"' in line]
    return answers


def cycled(bodies: Sequence[bytes], seconds: float) -> Iterator[bytes]:
    """Yield the bodies in a loop until the time is up; at least one."""
    end_s = time.monotonic() + seconds
    for body in itertools.cycle(bodies):
        yield body
        if time.monotonic() > end_s:
            return


async def spent_on(server: RunningServer, sending: Awaitable[Sized]) -> Row:
    """Wait until the puzzles are answered; return what the server spent on them meanwhile."""
    before = server.counters()
    num_answers = len(await sending)
    after = server.counters()
    spent = {name: after[name] - before[name] for name in before}
    row: dict[str, Any] = {"puzzles_per_s": num_answers / spent["at_s"]}
    row["cpu_ms"] = 1e3 * spent["cpu_s"] / num_answers
    row["http_cpu_us"] = 1e6 * spent["http_cpu_s"] / num_answers
    row["ready_s"] = server.ready_s
    row["memory_mb"] = server.usage().resident_mb
    row["share_of_bound"] = None
    if "slot_segments_offered" in spent:
        occupancy = spent["slot_segments_used"] / max(1, spent["slot_segments_offered"])
        row["share_of_bound"] = occupancy * spent["step_seconds_total"] / spent["at_s"]
    return row


def percentiles_ms(prefix: str, replies: Sequence[Reply]) -> Row:
    latencies_ms = [1e3 * reply.latency_s for reply in replies]
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99]).tolist()
    return {f"{prefix}p50_ms": p50_ms, f"{prefix}p99_ms": p99_ms}


def bodies_of(puzzle: Puzzle, questions: Questions) -> list[bytes]:
    """Return the questions as bodies of POST /solve."""
    bodies: list[bytes] = []
    for tokens_T in questions.tokens_NT:
        asked = puzzle.asked(puzzle.decode(tokens_T), "")
        bodies.append(json.dumps({"puzzle": asked}).encode())
    return bodies


async def measured(
    server: RunningServer, bodies: Sequence[bytes], *, connections: int, seconds: float, seed: int
) -> list[Row]:
    """Return a row for batches and one for single puzzles, both at full speed.

    The singles have the latencies of an open loop at `SHARE` of their speed.
    """
    async with session(server.url) as http:
        await batches(http, bodies, min(WARM_UP_S, seconds))
        tell("/solve/batch")
        lines = await spent_on(server, batches(http, bodies, seconds))
        tell("/solve")
        asking = closed_loop(http, cycled(bodies, seconds), connections)
        singles = await spent_on(server, asking)
        rate = SHARE * singles["puzzles_per_s"]
        due = itertools.islice(itertools.cycle(bodies), max(1, int(rate * seconds)))
        replies = await open_loop(http, list(due), rate, seed)
    latencies = percentiles_ms("open_", replies)
    return [
        {"route": "/solve/batch", **lines, **dict.fromkeys(latencies)},
        {"route": "/solve", **singles, **latencies},
    ]
