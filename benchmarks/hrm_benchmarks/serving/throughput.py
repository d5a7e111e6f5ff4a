"""How many puzzles pass through HTTP and the two processes when the engine costs nothing, and what each costs in CPU.

CPU seconds are those of the server's two processes; this client's own do not count, but it shares the machine.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import aiohttp
from rich.console import Console
from rich.table import Table

from hrm_benchmarks.report import environment
from hrm_benchmarks.serving.asking import answer_in, client, stream
from hrm_benchmarks.serving.running import Running, Usage

STREAMS = 4
Tell = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Passage:
    """One way in; `offered_per_s` is None where as much was offered as the server takes."""

    route: str
    offered_per_s: float | None
    answered_per_s: float
    http_cpu_us: float
    engine_cpu_us: float
    http_cpu_share: float
    seconds: float

    @property
    def per_http_cpu_second(self) -> float:
        """Puzzles for each second of CPU of the HTTP process: its ceiling on a core of its own."""
        return 1e6 / self.http_cpu_us


async def measure(
    server: Running, bodies: Sequence[bytes], *, offered: float, connections: int, seconds: float, tell: Tell
) -> list[Passage]:
    """The offered rate through batches, then the ceiling of batches, then of single requests."""
    async with client() as http:
        tell("warm-up")
        await _counted(_streams(http, server.url, bodies, min(2.0, seconds), None))
        ways: list[tuple[str, float | None]] = [("/solve/batch", offered), ("/solve/batch", None), ("/solve", None)]
        passages: list[Passage] = []
        for route, rate in ways:
            tell(f"{route}, {'as much as it takes' if rate is None else f'{rate:.0f}/s offered'}")
            before, began = server.usage(), time.monotonic()
            if route == "/solve":
                count = await _counted(_singles(http, server.url, bodies, seconds, connections))
            else:
                count = await _counted(_streams(http, server.url, bodies, seconds, rate))
            passages.append(_passage(route, rate, count, time.monotonic() - began, before, server.usage()))
    return passages


def _passage(
    route: str, rate: float | None, count: int, seconds: float, before: dict[str, Usage], after: dict[str, Usage]
) -> Passage:
    cpu_s = {name: after[name].cpu_s - before[name].cpu_s for name in after}
    return Passage(
        route=route,
        offered_per_s=rate,
        answered_per_s=count / seconds,
        http_cpu_us=1e6 * cpu_s["http"] / count,
        engine_cpu_us=1e6 * cpu_s["engine"] / count,
        http_cpu_share=cpu_s["http"] / seconds,
        seconds=seconds,
    )


async def _counted(ways: Sequence[AsyncIterator[int]]) -> int:
    return sum(await asyncio.gather(*(_count(way) for way in ways)))


async def _count(way: AsyncIterator[int]) -> int:
    return sum([one async for one in way])


def _streams(
    http: aiohttp.ClientSession, url: str, bodies: Sequence[bytes], seconds: float, rate: float | None
) -> list[AsyncIterator[int]]:
    each = None if rate is None else rate / STREAMS
    return [_stream(http, url, _until(bodies, seconds), each) for _ in range(STREAMS)]


async def _stream(
    http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes], rate: float | None
) -> AsyncIterator[int]:
    async for said in stream(http, url, bodies, rate=rate):
        answer_in(said)
        yield 1


def _singles(
    http: aiohttp.ClientSession, url: str, bodies: Sequence[bytes], seconds: float, connections: int
) -> list[AsyncIterator[int]]:
    return [_ask(http, url, _until(bodies, seconds)) for _ in range(connections)]


async def _ask(http: aiohttp.ClientSession, url: str, bodies: Iterator[bytes]) -> AsyncIterator[int]:
    for body in bodies:
        async with http.post(f"{url}/solve", data=body, headers={"content-type": "application/json"}) as response:
            await response.read()
            yield response.status == 200


def _until(bodies: Sequence[bytes], seconds: float) -> Iterator[bytes]:
    give_up_s = time.monotonic() + seconds
    return itertools.takewhile(lambda _: time.monotonic() < give_up_s, itertools.cycle(bodies))


def as_json(settings: dict[str, object], passages: Sequence[Passage]) -> str:
    found = [{**asdict(one), "per_http_cpu_second": one.per_http_cpu_second} for one in passages]
    return json.dumps({"environment": environment(), "settings": settings, "passages": found}, indent=2, default=str)


def print_passages(title: str, passages: Sequence[Passage], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("route", "offered/s", "answered/s", "HTTP CPU us", "engine CPU us", "HTTP core", "per HTTP CPU s"):
        table.add_column(column, justify="right")
    for one in passages:
        table.add_row(
            one.route,
            "all it takes" if one.offered_per_s is None else f"{one.offered_per_s:.0f}",
            f"{one.answered_per_s:.0f}",
            f"{one.http_cpu_us:.0f}",
            f"{one.engine_cpu_us:.0f}",
            f"{one.http_cpu_share:.0%}",
            f"{one.per_http_cpu_second:.0f}",
        )
    console.print(table)
