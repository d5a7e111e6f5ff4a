"""Measure puzzles per second through HTTP, CPU time, and latency at 80 % of the maximum rate.

CPU seconds are those of the server's two processes. The client's own are not counted, but it shares
the machine.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from hrm_benchmarks import client, echo
from hrm_benchmarks.client import Exchange
from hrm_benchmarks.report import Row, tell
from hrm_benchmarks.server import SETTLED_S, RunningServer, Target, running, usage_of

STREAMS = 4  # connections that send batches
WARM_UP_S = 2.0
ECHO_S = 5.0
SHARE = 0.8  # share of the measured maximum; at 1 the queue grows without limit
COLUMNS = {
    "route": "{route}",
    "offered/s": "{offered}",
    "answered/s": "{answered_per_s:.0f}",
    "of bound": "{share_of_bound:.3f}",
    "HTTP CPU us": "{http_cpu_us:.0f}",
    "engine CPU us": "{engine_cpu_us:.0f}",
    "HTTP core": "{http_cpu_share:.0%}",
    "in echoes": "{echoes:.1f}",
    "host": "{host_share:.0%}",
    "p50 ms": "{p50_ms:.1f}",
    "p99 ms": "{p99_ms:.1f}",
}
LEGEND = """\
of bound: occupancy of the slots while puzzles wait, times the engine's share of the time
in echoes: HTTP CPU time over that of a bare JSON echo on the same server stack
host: share of both processes' CPU time outside the engine's steps; for a quiet machine
p50, p99: requests that arrive at random moments; latency counts from the moment a request is due"""


async def measure(
    server: RunningServer,
    target: Target,
    offered_per_s: float,
    *,
    connections: int,
    seconds: float,
    seed: int,
) -> list[Row]:
    """Measure batches and single puzzles, and return a row for each of four loads.

    They are batches at the offered rate, batches at full speed, single puzzles at full speed, and
    single puzzles that arrive at random at `SHARE` of that speed.

    Each row also gets its HTTP CPU time in bare echoes, see `echo`.
    """
    rng = np.random.default_rng(seed)
    async with client.session(server.url) as http:
        sender = _Sender(http, target.bodies(), seconds, target.window)
        tell("warm-up")
        await sender.warm_up()
        batches = await _batches(server, sender, offered_per_s)
        batch_ceiling = await _batches(server, sender, None)
        single_ceiling = await _singles(server, sender, connections)
        rate = SHARE * single_ceiling["answered_per_s"]
        arrivals = await _arrivals(server, sender, rate, rng)
    echo_us = await _echo_us(target, connections, min(ECHO_S, seconds))
    rows = [batches, batch_ceiling, single_ceiling, arrivals]
    return [{**row, "echoes": row["http_cpu_us"] / echo_us} for row in rows]


@dataclass(frozen=True)
class _Sender:
    """Ways to send puzzles for `seconds`; each returns the number of its answers."""

    http: aiohttp.ClientSession
    bodies: Sequence[bytes]
    seconds: float
    window: int

    async def warm_up(self) -> None:
        seconds = min(WARM_UP_S, self.seconds)
        bodies = client.cycled(self.bodies, seconds)
        async for line in client.stream(self.http, bodies, window=self.window):
            client.require_answer(line)

    async def stream(self, rate: float | None) -> int:
        num_answers = 0
        bodies = client.cycled(self.bodies, self.seconds)
        async for line in client.stream(self.http, bodies, rate=rate, window=self.window):
            client.require_answer(line)
            num_answers += 1
        return num_answers

    async def ask(self) -> int:
        num_answers = 0
        for body in client.cycled(self.bodies, self.seconds):
            _, status = await client.post(self.http, body)
            num_answers += status == 200
        return num_answers

    async def arrive(self, rate: float, rng: np.random.Generator) -> list[Exchange]:
        num_requests = max(1, int(rate * self.seconds))
        gaps_s = rng.exponential(1 / rate, size=num_requests)
        chosen = rng.integers(len(self.bodies), size=num_requests)
        bodies = [self.bodies[number] for number in chosen]
        return await client.open_loop(self.http, bodies, np.cumsum(gaps_s))


async def _batches(server: RunningServer, sender: _Sender, rate: float | None) -> Row:
    rate_of_stream = None
    if rate is not None:
        rate_of_stream = rate / STREAMS
    streams = [sender.stream(rate_of_stream) for _ in range(STREAMS)]
    passage = _Passage(server, "/solve/batch", rate)
    return await passage.measured(_total(streams))


async def _singles(server: RunningServer, sender: _Sender, connections: int) -> Row:
    asking = [sender.ask() for _ in range(connections)]
    passage = _Passage(server, "/solve", None)
    return await passage.measured(_total(asking))


async def _arrivals(
    server: RunningServer, sender: _Sender, rate: float, rng: np.random.Generator
) -> Row:
    exchanges: list[Exchange] = []

    async def arrive() -> int:
        exchanges.extend(await sender.arrive(rate, rng))
        return len(_latencies_ms(exchanges))

    passage = _Passage(server, "/solve", rate)
    row = await passage.measured(arrive())
    latencies_ms = _latencies_ms(exchanges)
    if not len(latencies_ms):
        return row
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99]).tolist()
    return {**row, "p50_ms": p50_ms, "p99_ms": p99_ms}


def _latencies_ms(exchanges: Sequence[Exchange]) -> NDArray[np.float64]:
    latencies_ms = [1e3 * one.latency_s for one in exchanges if one.status == 200]
    return np.array(latencies_ms)


async def _echo_us(target: Target, connections: int, seconds: float) -> float:
    """CPU microseconds that a bare echo of the same bodies takes, with the same connections."""
    tell("a bare echo")
    with running(echo.COMMAND) as server:
        async with client.session(server.url) as http:
            sender = _Sender(http, target.bodies(), seconds, target.window)
            before = usage_of(server.pid)["cpu_s"]
            num_answers = await _total([sender.ask() for _ in range(connections)])
            spent_s = usage_of(server.pid)["cpu_s"] - before
    return 1e6 * spent_s / num_answers


async def _total(counting: Sequence[Awaitable[int]]) -> int:
    counts = await asyncio.gather(*counting)
    return sum(counts)


class _Passage:
    """One way into the server; `rate` is None if the client offers as much as the server takes."""

    def __init__(self, server: RunningServer, route: str, rate: float | None) -> None:
        self._server = server
        self._route = route
        self._rate = rate
        self._offered = "all it takes"
        if rate is not None:
            self._offered = f"{rate:.0f}"

    async def measured(self, counting: Awaitable[int]) -> Row:
        """Wait for the number of answers; return it with the server's usage in that time."""
        tell(f"{self._route}, offered per second: {self._offered}")
        usage_before = self._server.usage()
        totals_before = self._server.totals()
        began_s = time.monotonic()
        num_answers = await counting
        spent_s = time.monotonic() - began_s
        usage = self._server.usage()
        totals = self._server.totals().since(totals_before)
        http_cpu_s = usage["http"]["cpu_s"] - usage_before["http"]["cpu_s"]
        engine_cpu_s = usage["engine"]["cpu_s"] - usage_before["engine"]["cpu_s"]
        await asyncio.sleep(SETTLED_S)
        row: dict[str, Any] = {"route": self._route, "offered": self._offered}
        row["offered_per_s"] = self._rate
        row["answered_per_s"] = num_answers / spent_s
        row["share_of_bound"] = totals.share_of_bound
        row["http_cpu_us"] = 1e6 * http_cpu_s / num_answers
        row["engine_cpu_us"] = 1e6 * engine_cpu_s / num_answers
        row["http_cpu_share"] = http_cpu_s / spent_s
        row["seconds"] = spent_s
        row["host_share"] = 1 - totals.step_s / (http_cpu_s + engine_cpu_s)
        row["per_http_cpu_second"] = num_answers / http_cpu_s
        row["p50_ms"] = None  # only a row of the open loop has latencies
        row["p99_ms"] = None
        return row
