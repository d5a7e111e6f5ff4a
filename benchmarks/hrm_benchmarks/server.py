"""A real server in processes of its own, as a user would start it: ask it, and see from outside what it does.

Latency counts from the moment a request was meant to be sent. A client that waits for its answers before it sends more
hides the very queue it should measure (coordinated omission). Memory and descriptors are read from /proc: Linux only.
"""

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx

from hrm_benchmarks import scripted
from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import Puzzle

READY_S = 120.0
LEAVE_S = 60.0
LOOK_EVERY_S = 0.005
SETTLED_S = 0.3  # the engine shows itself ten times a second
LINES_IN_A_PIECE = 64
WINDOW = 512
READ_TIMEOUT_S = 300.0
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
TOTALS = ("steps", "step_seconds_total", "slot_segments", "slot_segments_used", "slot_segments_offered")


class Target(NamedTuple):
    title: str
    command: Sequence[str]
    puzzle: Puzzle
    questions: Questions
    num_slots: int
    queue_limit: int
    max_segments: int

    def bodies(self) -> list[bytes]:
        """The questions as bodies of /solve."""
        return [json.dumps({"puzzle": question}).encode() for question in self._written(self.questions.tokens_NT)]

    def solutions(self) -> list[object]:
        """The answers known to be right, as the server writes them."""
        return self._written(self.questions.labels_NT)

    def _written(self, tokens_NT: Int32) -> list[object]:
        notation = self.puzzle.parse(self.puzzle.sample([])).notation
        return [self.puzzle.write(self.puzzle.decode(tokens_T), notation) for tokens_T in tokens_NT]


def bundle_target(
    bundle: Bundle, asked: Questions, engine: str, *, threads: int, num_slots: int, queue_limit: int
) -> Target:
    options = {"engine": engine, "threads": threads, "slots": num_slots, "queue-limit": queue_limit}
    return Target(
        title=f"{bundle.manifest.name} on {engine}, {num_slots} slots, {threads} threads, {asked.title}",
        command=serve_command(str(bundle.path), *(f"--{option}={value}" for option, value in options.items())),
        puzzle=bundle.puzzle,
        questions=asked,
        num_slots=num_slots,
        queue_limit=queue_limit,
        max_segments=bundle.manifest.max_segments,
    )


def scripted_target(one: scripted.Scripted) -> Target:
    asked = one.questions()
    return Target(
        title=f"{one.title}, {one.puzzle}, {asked.title}",
        command=[sys.executable, "-m", "hrm_benchmarks.scripted", json.dumps(vars(one))],
        puzzle=registry.get(one.puzzle),
        questions=asked,
        num_slots=one.slots,
        queue_limit=one.queue_limit,
        max_segments=scripted.MAX_SEGMENTS,
    )


def serve_command(*arguments: str) -> list[str]:
    """`hrm-serve` of the environment this runs in."""
    return [sys.executable, "-c", "from hrm_edge_runtime.cli import serve; serve()", *arguments]


@contextlib.contextmanager
def running(command: Sequence[str], headers: Mapping[str, str] | None = None) -> Generator["RunningServer"]:
    """A ready server for as long as it is needed; refuses (ValueError) one that does not leave after SIGTERM."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log, httpx.Client(base_url=url, headers=headers, timeout=60.0) as http:
        began = time.monotonic()
        process = subprocess.Popen([*command, "--port", str(port)], stderr=log, start_new_session=True)
        try:
            while not _is_ready(http):
                if process.poll() is not None or time.monotonic() - began > READY_S:
                    log.seek(0)
                    log_end = log.read()[-400:].strip() or "nothing"
                    raise ValueError(f"the server did not become ready; its log ends: {log_end}")
                time.sleep(LOOK_EVERY_S)
            yield RunningServer(process.pid, http, ready_s=time.monotonic() - began)
            process.terminate()
            process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            raise ValueError(f"the server did not leave within {LEAVE_S:.0f} s of SIGTERM.") from None
        finally:
            process.kill()
            process.wait(LEAVE_S)


def _is_ready(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/readyz").status_code == 200
    return False


class RunningServer:
    """A ready server; `ready_s` is the time from its start to the first 200 of /readyz."""

    def __init__(self, pid: int, http: httpx.Client, *, ready_s: float) -> None:
        self.url = str(http.base_url)
        self.ready_s = ready_s
        self._pid, self._http = pid, http

    def slots(self) -> Any:
        return self._http.get("/slots").json()

    def totals(self, *, since: Mapping[str, float] | None = None) -> dict[str, float]:
        """What the first lane has done until `at_s` of `time.monotonic`, or between then and `since`.

        TOTALS are those of its LaneSnapshot; `ended` counts attempts that ended in any way.
        """
        slots = self.slots()
        lane = slots["lanes"][0]["lane"]
        at_s = time.monotonic() - slots["snapshot_age_ms"] / 1e3
        totals = {"at_s": at_s, "ended": sum(lane["completed"].values()), **{name: lane[name] for name in TOTALS}}
        return {name: value - (since or {}).get(name, 0) for name, value in totals.items()}

    def resident_mb(self) -> float:
        """What the HTTP process holds now."""
        return _usage_of(self._pid)["resident_mb"]

    def usage(self) -> dict[str, dict[str, float]]:
        """What both processes hold now, from /proc; `cpu_s` is all they have ever used."""
        pids = {"http": self._pid, "engine": self.slots()["engine"]["pid"]}
        return {name: _usage_of(pid) for name, pid in pids.items()}


def _usage_of(pid: int) -> dict[str, float]:
    process = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    times = (process / "stat").read_text().rpartition(")")[2].split()
    return {
        "resident_mb": int(status["VmRSS"].split()[0]) / 1024,
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir(process / "fd")),
        "cpu_s": (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK"),
    }


def client(url: str, headers: Mapping[str, str] | None = None) -> aiohttp.ClientSession:
    """Any number of connections; every one is kept and used again."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_S)
    return aiohttp.ClientSession(url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


class Exchange(NamedTuple):
    """One request: moments in seconds from the start of its run; status 0 where no answer came."""

    intended_s: float
    sent_s: float
    done_s: float
    status: int
    answer: dict[str, Any]


async def open_loop(
    http: aiohttp.ClientSession, bodies: Iterable[bytes], arrivals_s: Iterable[float]
) -> list[Exchange]:
    """Ask for each body at its moment, whatever has become of those before."""
    began = time.monotonic()

    async def ask(body: bytes, intended_s: float) -> Exchange:
        sent_s, status, answer = time.monotonic() - began, 0, dict[str, Any]()
        with contextlib.suppress(aiohttp.ClientError):
            answer, status = await post(http, body)
        return Exchange(intended_s, sent_s, time.monotonic() - began, status, answer)

    asked: list[asyncio.Task[Exchange]] = []
    for body, intended_s in zip(bodies, arrivals_s, strict=True):
        await asyncio.sleep(max(0.0, began + intended_s - time.monotonic()))
        asked.append(asyncio.create_task(ask(body, intended_s)))
    return list(await asyncio.gather(*asked))


async def post(http: aiohttp.ClientSession, body: bytes) -> tuple[dict[str, Any], int]:
    """Ask for one puzzle: what the server says, and its status."""
    async with http.post("/solve", data=body, headers=JSON) as response:
        return json.loads(await response.read()), response.status


async def stream(
    http: aiohttp.ClientSession, bodies: Iterable[bytes], *, window: int = WINDOW, rate: float | None = None
) -> AsyncIterator[dict[str, Any]]:
    """Send lines (at most `rate` in a second) while their answers are read; what the server says, line by line.

    At most `window` lines are unanswered: the buffers of a connection hold thousands, and they would be an
    unmeasured queue.
    """
    places = asyncio.Semaphore(window)
    async with http.post("/solve/batch", data=_pieces(bodies, places, rate), headers=NDJSON) as response:
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
