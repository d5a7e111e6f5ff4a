"""A real server in processes of its own, as a user would start it: ask it, and see from outside what it does.

Latency counts from the moment a request was meant to be sent. A client that waits for its answers before it sends more
hides the very queue it should measure (coordinated omission). Memory and descriptors are read from /proc, so this part
knows Linux only. Shapes: B rows of a step.
"""

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np
from numpy.typing import NDArray

READY_S = 120.0
LEAVE_S = 60.0
LOOK_EVERY_S = 0.005
SETTLED_S = 0.3  # the engine shows itself ten times a second
MEASURE_S = 0.5
LINES_IN_A_PIECE = 64
WINDOW = 512
READ_TIMEOUT_S = 300.0
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one process holds at a moment; `cpu_s` is all it has ever used."""

    resident_mb: float
    threads: int
    descriptors: int
    cpu_s: float


@contextlib.contextmanager
def running(command: Sequence[str]) -> Generator["RunningServer"]:
    """A ready server for as long as it is needed."""
    server = RunningServer(command, free_port())
    try:
        yield server
    finally:
        server.close()


class RunningServer:
    """A started server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the server
        self._http = httpx.Client(base_url=self.url, timeout=60.0)
        began = time.monotonic()
        self._process = subprocess.Popen([*command, "--port", str(port)], stderr=self._log, start_new_session=True)
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() - began > READY_S:
                self._log.seek(0)
                log_end = self._log.read()[-400:].strip() or "nothing"
                raise ValueError(f"the server {command[0]} did not become ready; its log ends: {log_end}")
            time.sleep(LOOK_EVERY_S)
        self.ready_s = time.monotonic() - began

    def slots(self) -> Any:
        """The answer of GET /slots."""
        return self._http.get("/slots").json()

    def counts(self) -> "LaneCounts":
        """What the first lane has done so far."""
        slots = self.slots()
        lane = slots["lanes"][0]["lane"]
        return LaneCounts(
            at_s=time.monotonic() - slots["snapshot_age_ms"] / 1e3,
            num_ended=sum(lane["completed"].values()),
            steps=lane["steps"],
            rows=lane["slot_segments"],
            step_s=lane["step_seconds_total"],
            rows_used=lane["slot_segments_used"],
            rows_offered=lane["slot_segments_offered"],
        )

    def pids(self) -> dict[str, int]:
        return {"http": self._process.pid, "engine": self.slots()["engine"]["pid"]}

    def usage(self) -> dict[str, Usage]:
        """Of both processes."""
        return {name: usage_of(pid) for name, pid in self.pids().items()}

    def stop(self) -> int:
        """Send SIGTERM; returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            raise ValueError(f"the server did not leave within {LEAVE_S:.0f} s of SIGTERM.") from None

    def close(self) -> None:
        self._http.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(LEAVE_S)
        self._log.close()

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return self._http.get("/readyz").status_code == 200
        return False


def serve_command(*arguments: str) -> list[str]:
    """`hrm-serve` of the environment this runs in."""
    beside = Path(sys.executable).with_name("hrm-serve")
    found = str(beside) if beside.exists() else shutil.which("hrm-serve")
    if found is None:
        raise ValueError("hrm-serve is not installed beside this Python: run pip install 'hrm-edge[serve]'.")
    return [found, *arguments]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def usage_of(pid: int) -> Usage:
    """From /proc."""
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    times = (process / "stat").read_text().rpartition(")")[2].split()
    return Usage(
        resident_mb=int(status["VmRSS"].split()[0]) / 1024,
        threads=int(status["Threads"]),
        descriptors=len(os.listdir(process / "fd")),
        cpu_s=(int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
    )


@dataclass(frozen=True, kw_only=True)
class LaneCounts:
    """What a lane has done until `at_s` of `time.monotonic`; a difference of two says what it did between them.

    `rows_used` and `rows_offered` count while puzzles waited, `num_ended` attempts that ended in any way.
    """

    at_s: float
    num_ended: int
    steps: int
    rows: int
    step_s: float
    rows_used: int
    rows_offered: int

    def __sub__(self, earlier: "LaneCounts") -> "LaneCounts":
        return LaneCounts(**{name: value - getattr(earlier, name) for name, value in vars(self).items()})

    @property
    def occupancy(self) -> float:
        return self.rows_used / max(1, self.rows_offered)

    @property
    def engine_share(self) -> float:
        return self.step_s / self.at_s

    @property
    def overhead_s(self) -> float:
        """Of one step: everything that is not the engine's, between steps that follow each other at once."""
        return (self.at_s - self.step_s) / self.steps


def client() -> aiohttp.ClientSession:
    """A session with any number of connections; every one is kept and used again."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_S)
    )


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One request: moments in seconds from the start of its run; status 0 where no answer came."""

    intended_s: float
    sent_s: float
    done_s: float
    status: int
    answer: dict[str, Any]

    @property
    def latency_s(self) -> float:
        return self.done_s - self.intended_s


async def open_loop(
    http: aiohttp.ClientSession,
    url: str,
    bodies: Sequence[bytes],
    questions: Sequence[int],
    arrivals_s: Sequence[float],
) -> list[Exchange]:
    """Ask `bodies[questions[i]]` at `arrivals_s[i]`, whatever has become of those before."""
    began = time.monotonic()

    async def ask(question: int, intended_s: float) -> Exchange:
        sent_s, status, answer = time.monotonic() - began, 0, dict[str, Any]()
        with contextlib.suppress(aiohttp.ClientError):
            answer, status = await post(http, url, bodies[question])
        done_s = time.monotonic() - began
        return Exchange(intended_s=intended_s, sent_s=sent_s, done_s=done_s, status=status, answer=answer)

    asked: list[asyncio.Task[Exchange]] = []
    for question, intended_s in zip(questions, arrivals_s, strict=True):
        await asyncio.sleep(max(0.0, began + intended_s - time.monotonic()))
        asked.append(asyncio.create_task(ask(question, intended_s)))
    return list(await asyncio.gather(*asked))


async def post(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[dict[str, Any], int]:
    """Ask for one puzzle: what the server says, and its status."""
    async with http.post(f"{url}/solve", data=body, headers=JSON) as response:
        return json.loads(await response.read()), response.status


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


def again_and_again(bodies: Sequence[bytes], seconds: float, *, num_least: int = 0) -> Iterator[bytes]:
    """The bodies in turn until the time is over, but at least so many."""
    give_up_s = time.monotonic() + seconds
    for number, body in enumerate(itertools.cycle(bodies)):
        if number >= num_least and time.monotonic() > give_up_s:
            return
        yield body


def answer_in(said: dict[str, Any]) -> dict[str, Any]:
    """The answer of a line; refuses (ValueError) a line that holds an error."""
    if "answer" not in said:
        raise ValueError(f"line {said['line']} was refused ({said['error']['message']}): ask what this server takes.")
    return said["answer"]


async def step_costs(
    server: RunningServer, http: aiohttp.ClientSession, body: bytes, *, num_slots: int, num_segments: int
) -> NDArray[np.float64]:
    """Seconds of a step of 1, 2, ... rows, as the server's own engine counts them while nothing else is asked.

    Batches of B lines that all run the same number of segments keep B rows busy from their first step to their last.
    """
    line = json.dumps({**json.loads(body), "policy": "fixed", "max_segments": num_segments}).encode()
    costs_s: list[float] = []
    for num_rows in range(1, num_slots + 1):
        before = await asyncio.to_thread(server.counts)
        began = time.monotonic()
        while time.monotonic() - began < MEASURE_S:
            async for said in stream(http, server.url, [line] * num_rows):
                answer_in(said)
        await asyncio.sleep(SETTLED_S)
        seen = await asyncio.to_thread(server.counts) - before
        mean_s, short = seen.step_s / seen.steps, min(num_rows - seen.rows / seen.steps, 0.9)
        if costs_s and short > 0:  # some steps had one row less
            mean_s = (mean_s - short * costs_s[-1]) / (1 - short)
        costs_s.append(mean_s)
    return np.array(costs_s)
