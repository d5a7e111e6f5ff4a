"""What the server's two processes cost: CPU for each puzzle that passes through HTTP, and time and memory of a start.

CPU seconds are those of the server's two processes; this client's own do not count, but it shares the machine.
"""

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import aiohttp
import httpx

from hrm_benchmarks.report import Row
from hrm_benchmarks.server import (
    RunningServer,
    again_and_again,
    answer_in,
    client,
    post,
    running,
    serve_command,
    stream,
)

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
    """The offered rate through batches, then the ceiling of batches, then of single requests.

    `offered_per_s` is None where as much was offered as the server takes; `per_http_cpu_second` is the ceiling of the
    HTTP process on a core of its own.
    """
    ways: list[tuple[str, float | None]] = [("/solve/batch", offered), ("/solve/batch", None), ("/solve", None)]
    passages: list[Row] = []
    async with client() as http:
        tell("warm-up")
        warm_up = again_and_again(bodies, min(2.0, seconds))
        await _streamed(http, server.url, warm_up, None)
        for route, rate in ways:
            tell(f"{route}, {'as much as it takes' if rate is None else f'{rate:.0f}/s offered'}")
            before, began = server.usage(), time.monotonic()
            if route == "/solve":
                ask, num_tasks = _asked, connections
            else:
                ask, num_tasks = partial(_streamed, rate=rate and rate / STREAMS), STREAMS
            sent = [ask(http, server.url, again_and_again(bodies, seconds)) for _ in range(num_tasks)]
            count, spent_s = sum(await asyncio.gather(*sent)), time.monotonic() - began
            cpu_us = {name: 1e6 * (one.cpu_s - before[name].cpu_s) / count for name, one in server.usage().items()}
            passages.append(
                {
                    "route": route,
                    "offered_per_s": rate,
                    "answered_per_s": count / spent_s,
                    "http_cpu_us": cpu_us["http"],
                    "engine_cpu_us": cpu_us["engine"],
                    "http_cpu_share": cpu_us["http"] * count / 1e6 / spent_s,
                    "seconds": spent_s,
                    "per_http_cpu_second": 1e6 / cpu_us["http"],
                }
            )
    return passages


def passage_shown(row: Row) -> Row:
    offered = row["offered_per_s"]
    return {**row, "offered": "all it takes" if offered is None else f"{offered:.0f}"}


async def _streamed(http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes], rate: float | None) -> int:
    count = 0
    async for said in stream(http, url, bodies, rate=rate):
        answer_in(said)
        count += 1
    return count


async def _asked(http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> int:
    return sum([(await post(http, url, body))[1] == 200 for body in bodies])


def start(arguments: Sequence[str], *, rounds: int, tell: Callable[[str], object]) -> Row:
    """Start `hrm-serve` with these arguments `rounds` times after a first one, which warms the disk.

    Memory is resident MB after some puzzles, `cpu_s` what the two processes used until ready.
    """
    ready_s: list[float] = []
    figures: dict[str, float] = {}
    for number in range(rounds + 1):
        with running(serve_command(*arguments)) as server:
            cpu_s = sum(one.cpu_s for one in server.usage().values())
            with httpx.Client(base_url=server.url, timeout=60.0) as http:
                for model in SOLVED_FIRST * http.get("/models").json()["models"]:
                    http.post("/solve", json={"puzzle": model["sample"], "model": model["name"]}).raise_for_status()
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
