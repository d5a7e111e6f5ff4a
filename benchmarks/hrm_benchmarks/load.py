"""Starts a real server as a user starts it, sends it puzzles, and measures what its answers cost.

Latency of the open loop counts from the moment a request is due. A client that waits for one answer
before it sends the next request hides the queue that it should measure (coordinated omission).
CPU time and memory come from /proc, so this module needs Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Generator, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import aiohttp
import httpx
import numpy as np

from hrm_benchmarks.command import ServingOptions
from hrm_benchmarks.report import Row, tell
from hrm_host.machine import cpu_seconds
from hrm_host.memory import MIB, resident_bytes

READY_S = 120.0  # seconds; a start takes 2 s, but building a TensorRT engine takes longer
LEAVE_S = 60.0  # seconds; a server drains its requests before it ends

OF_LANE = ("step_seconds_total", "slot_segments_used", "slot_segments_offered")
PARENT = 1  # its position in /proc/PID/stat after the name of the process
READ_TIMEOUT_S = 300.0  # a puzzle may wait behind a long queue
WARM_UP_S = 2.0
SHARE = 0.8  # of the measured maximum; at 1 the queue grows without limit
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


def serve_command(*arguments: str) -> list[str]:
    """Return the command line of `hrm-serve` in this Python environment."""
    program = "from hrm_edge_server.cli import serve; serve()"
    return [sys.executable, "-c", program, *arguments]


@contextlib.contextmanager
def running(command: Sequence[str]) -> Generator[RunningServer]:
    """Start a server, yield it when it is ready, and end it with SIGTERM.

    Raises ValueError if the server does not become ready or does not end.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    arguments = [*command, "--port", str(port)]
    with (
        tempfile.TemporaryFile("w+") as log,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        began_s = time.monotonic()
        process = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        try:
            _wait_until_ready(process, http, log, began_s + READY_S)
            ready_s = time.monotonic() - began_s
            yield RunningServer(process.pid, http, ready_s=ready_s)
            process.terminate()
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            message = f"the server did not end within {LEAVE_S:.0f} s of SIGTERM."
            raise ValueError(message) from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers too, if it left some
            process.wait(LEAVE_S)


def _wait_until_ready(
    process: subprocess.Popen[bytes], http: httpx.Client, log: TextIO, give_up_s: float
) -> None:
    while True:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").status_code == 200:
                return
        has_ended = process.poll() is not None
        if has_ended or time.monotonic() > give_up_s:
            log.seek(0)
            log_tail = log.read()[-400:].strip() or "nothing"
            raise ValueError(f"the server did not become ready; its log ends: {log_tail}")
        time.sleep(0.005)


class RunningServer:
    """A ready server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, pid: int, http: httpx.Client, *, ready_s: float) -> None:
        self.url = str(http.base_url)
        self.ready_s = ready_s
        self._pid = pid
        self._http = http

    def counters(self) -> dict[str, float]:
        """Return totals since the start: seconds (`at_s`), CPU seconds, and those of HTTP alone.

        An `hrm-serve` adds the counters of its first lane.
        """
        cpu_s = sum(map(cpu_seconds, self._pids()))
        totals = {"cpu_s": cpu_s, "http_cpu_s": cpu_seconds(self._pid)}
        answer = self._http.get("/slots")
        if answer.status_code != 200:
            return {**totals, "at_s": time.monotonic()}
        slots = answer.json()
        age_s = slots["snapshot_age_ms"] / 1e3
        for name in OF_LANE:
            totals[name] = slots["lanes"][0]["lane"][name]
        return {**totals, "at_s": time.monotonic() - age_s}

    def resident_mb(self) -> float:
        """Return the memory of the process and all its descendants."""
        return sum(map(resident_bytes, self._pids())) / MIB

    def _pids(self) -> list[int]:
        """Return the process and all its descendants."""
        parents: dict[int, int] = {}
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = file.read_text().rpartition(")")[2].split()
                parents[int(file.parent.name)] = int(fields[PARENT])
        tree = [self._pid]
        for pid in tree:  # the loop appends to `tree`
            tree += [child for child, parent in parents.items() if parent == pid]
        return tree


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
    headers = {"content-type": "application/json"}
    async with http.post("/solve", data=body, headers=headers) as response:
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
    headers = {"content-type": "application/x-ndjson"}
    answers: list[bytes] = []
    lines = b"\n".join(bodies)
    end_s = time.monotonic() + seconds
    while not answers or time.monotonic() < end_s:
        async with http.post("/solve/batch", data=lines, headers=headers) as response:
            response.raise_for_status()
            async for line in response.content:
                if b'"answer"' in line:
                    answers.append(line)
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
    share_of_bound = None
    if "slot_segments_offered" in spent:
        occupancy = spent["slot_segments_used"] / max(1, spent["slot_segments_offered"])
        share_of_bound = occupancy * spent["step_seconds_total"] / spent["at_s"]
    return {
        "puzzles_per_s": num_answers / spent["at_s"],
        "cpu_ms": 1e3 * spent["cpu_s"] / num_answers,
        "http_cpu_us": 1e6 * spent["http_cpu_s"] / num_answers,
        "ready_s": server.ready_s,
        "memory_mb": server.resident_mb(),
        "share_of_bound": share_of_bound,
    }


def percentiles_ms(prefix: str, replies: Sequence[Reply]) -> Row:
    latencies_ms = [1e3 * reply.latency_s for reply in replies]
    p50_ms, p99_ms = np.percentile(latencies_ms, [50, 99]).tolist()
    return {f"{prefix}p50_ms": p50_ms, f"{prefix}p99_ms": p99_ms}


async def measured(
    server: RunningServer, texts: Iterable[object], options: ServingOptions
) -> list[Row]:
    """Return a row for batches and one for single puzzles, both at full speed.

    The singles have the latencies of an open loop at `SHARE` of their speed.
    """
    seconds = options.seconds
    bodies = [json.dumps({"puzzle": text}).encode() for text in texts]
    async with session(server.url) as http:
        await batches(http, bodies, min(WARM_UP_S, seconds))
        tell("/solve/batch")
        lines = await spent_on(server, batches(http, bodies, seconds))
        tell("/solve")
        asking = closed_loop(http, cycled(bodies, seconds), options.connections)
        singles = await spent_on(server, asking)
        rate = SHARE * singles["puzzles_per_s"]
        due = itertools.islice(itertools.cycle(bodies), max(1, int(rate * seconds)))
        replies = await open_loop(http, list(due), rate, options.seed)
    latencies = percentiles_ms("open_", replies)
    return [
        {"route": "/solve/batch", **lines, **dict.fromkeys(latencies)},
        {"route": "/solve", **singles, **latencies},
    ]
