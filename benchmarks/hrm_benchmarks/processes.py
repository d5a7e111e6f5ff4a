"""What the server's two processes cost: CPU for each puzzle that passes through HTTP, and time and memory of a start.

CPU seconds are those of the server's two processes; this client's own do not count, but it shares the machine.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import aiohttp
import httpx

from hrm_benchmarks.report import Row
from hrm_benchmarks.server import RunningServer, Usage, answer_in, client, post, running, serve_command, stream

STREAMS = 4
SOLVED_FIRST = 5  # so that memory is that of a server that has worked
PASSAGE_COLUMNS = [
    ("route", "{route}"),
    ("offered/s", "{offered}"),
    ("answered/s", "{answered_per_s:.0f}"),
    ("HTTP CPU us", "{http_cpu_us:.0f}"),
    ("engine CPU us", "{engine_cpu_us:.0f}"),
    ("HTTP core", "{http_cpu_share:.0%}"),
    ("per HTTP CPU s", "{per_http_cpu_second:.0f}"),
]
START_COLUMNS = [
    ("hrm-serve", "{server}"),
    ("ready s, median", "{median_s:.2f}"),
    ("best", "{best_s:.2f}"),
    ("CPU s", "{cpu_s:.2f}"),
    ("HTTP MB", "{http_mb:.0f}"),
    ("engine MB", "{engine_mb:.0f}"),
    ("both MB", "{both_mb:.0f}"),
]


async def throughput(
    server: RunningServer,
    bodies: Sequence[bytes],
    *,
    offered: float,
    connections: int,
    seconds: float,
    tell: Callable[[str], object],
) -> list[Row]:
    """The offered rate through batches, then the ceiling of batches, then of single requests."""
    async with client() as http:
        tell("warm-up")
        await _count([_stream(http, server.url, _until(bodies, min(2.0, seconds)), None) for _ in range(STREAMS)])
        ways: list[tuple[str, float | None]] = [("/solve/batch", offered), ("/solve/batch", None), ("/solve", None)]
        passages: list[Row] = []
        for route, rate in ways:
            tell(f"{route}, {'as much as it takes' if rate is None else f'{rate:.0f}/s offered'}")
            before, began = server.usage(), time.monotonic()
            if route == "/solve":
                answers = [_ask(http, server.url, _until(bodies, seconds)) for _ in range(connections)]
            else:
                each = None if rate is None else rate / STREAMS
                answers = [_stream(http, server.url, _until(bodies, seconds), each) for _ in range(STREAMS)]
            count = await _count(answers)
            passages.append(_passage(route, rate, count, time.monotonic() - began, before, server.usage()))
    return passages


def _passage(
    route: str, rate: float | None, count: int, seconds: float, before: dict[str, Usage], after: dict[str, Usage]
) -> Row:
    """One way in; `offered_per_s` is None where as much was offered as the server takes.

    `per_http_cpu_second` is the ceiling of the HTTP process on a core of its own.
    """
    cpu_s = {name: after[name].cpu_s - before[name].cpu_s for name in after}
    http_cpu_us = 1e6 * cpu_s["http"] / count
    return {
        "route": route,
        "offered_per_s": rate,
        "answered_per_s": count / seconds,
        "http_cpu_us": http_cpu_us,
        "engine_cpu_us": 1e6 * cpu_s["engine"] / count,
        "http_cpu_share": cpu_s["http"] / seconds,
        "seconds": seconds,
        "per_http_cpu_second": 1e6 / http_cpu_us,
    }


def passage_shown(row: Row) -> Row:
    offered = row["offered_per_s"]
    return {**row, "offered": "all it takes" if offered is None else f"{offered:.0f}"}


async def _count(answers: Sequence[AsyncIterator[bool]]) -> int:
    async def count(one: AsyncIterator[bool]) -> int:
        return sum([answered async for answered in one])

    return sum(await asyncio.gather(*map(count, answers)))


async def _stream(
    http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes], rate: float | None
) -> AsyncIterator[bool]:
    async for said in stream(http, url, bodies, rate=rate):
        answer_in(said)
        yield True


async def _ask(http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> AsyncIterator[bool]:
    for body in bodies:
        _, status = await post(http, url, body)
        yield status == 200


def _until(bodies: Sequence[bytes], seconds: float) -> Iterator[bytes]:
    give_up_s = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < give_up_s, itertools.cycle(bodies))


def start(arguments: Sequence[str], *, rounds: int, tell: Callable[[str], object]) -> Row:
    """Start `hrm-serve` with these arguments `rounds` times after a first one, which warms the disk.

    Memory is resident MB after some puzzles, `cpu_s` what the two processes used until ready.
    """
    ready_s: list[float] = []
    figures: dict[str, float] = {}
    for number in range(rounds + 1):
        with running(serve_command(*arguments)) as server:
            cpu_s = sum(one.cpu_s for one in server.usage().values())
            _solve_samples(server.url)
            figures = {"cpu_s": cpu_s, **{f"{name}_mb": one.resident_mb for name, one in server.usage().items()}}
            server.stop()
        tell(f"{' '.join(arguments)}: ready after {server.ready_s:.2f} s")
        ready_s += [server.ready_s] if number else []
    return {"server": " ".join(arguments), "ready_s": ready_s, **figures}


def start_shown(row: Row) -> Row:
    return {
        **row,
        "median_s": statistics.median(row["ready_s"]),
        "best_s": min(row["ready_s"]),
        "both_mb": row["http_mb"] + row["engine_mb"],
    }


def _solve_samples(url: str) -> None:
    """Each model's own sample question, a few times."""
    with httpx.Client(base_url=url, timeout=60.0) as http:
        for model in http.get("/models").json()["models"]:
            for _ in range(SOLVED_FIRST):
                http.post("/solve", json={"puzzle": model["sample"], "model": model["name"]}).raise_for_status()
