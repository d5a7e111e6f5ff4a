"""Hostile clients: a process of its own repeats one attack while this one probes `/livez`.

An attack is a kind of request. Each sender opens a connection, sends the request, reads the reply,
and starts over. Some attacks never stop sending.
"""

import asyncio
import contextlib
import json
import multiprocessing
import select
import socket
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import numpy as np

from hrm_benchmarks import client
from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row
from hrm_benchmarks.server import RunningServer
from hrm_edge_runtime.http import auth
from hrm_host import system

PROBE_EVERY_S = 0.02
SAMPLE_MEMORY_EVERY_S = 0.1
PATIENCE_S = 5.0  # timeout of a /livez probe, and of a send that the server does not read
ANSWER_S = 1.0  # seconds that a sender waits for a reply
DWELL_S = 3.0  # seconds that silent connections stay open
SETTLE_S = 60.0  # seconds until the memory must be released
SPARE_FILES = 100  # descriptors besides the senders' sockets
RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Sends `first` once per connection, then repeats `rest` until the server stops reading."""

    first: bytes
    rest: bytes = b""
    lacks_key: bool = False  # sent without a key to a server that requires one


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    """Return a complete request."""
    length = f"content-length: {len(body)}"
    return _head(f"{method} {path}", length, *headers) + body


def _endless(path: str, length: str) -> bytes:
    """Return the head of a batch whose body never ends."""
    return _head(f"POST {path}", "content-type: application/x-ndjson", length)


def _head(route: str, *headers: str) -> bytes:
    lines = [f"{route} HTTP/1.1", "host: x", *headers]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n"


def _city_of_one_color() -> bytes:
    """Return a 30x30 city with a label that marks every road."""
    rows = [["."] * 30 for _ in range(30)]
    rows[0][0] = "D"
    customers = [
        (0, 29), (29, 0), (29, 29), (15, 15), (3, 20), (20, 3), (25, 25), (10, 10),
    ]  # fmt: skip
    for row, col in customers:
        rows[row][col] = "C"
    puzzle = "\n".join("".join(row) for row in rows)
    solution = puzzle.replace(".", "o")
    label = {"kind": "logistics-30x30", "puzzle": puzzle, "solution": solution}
    return json.dumps(label).encode()


_AS_JSON = "content-type: application/json"
_CHUNKED = "transfer-encoding: chunked"
_VERY_LONG = "content-length: 99999999999"
_UPGRADE = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAMAAABkAAQAAP__",
)
_MANY_VALUES = b'{"puzzle":[' + b"{}," * 21_000 + b"0]}"
_LONG_ROWS = json.dumps({"puzzle": ["-\n" * 2300] * 9}).encode()
_ONE_BYTE_CHUNK = b"1\r\n\n\r\n"
_LAST_CHUNK = b"0\r\n"
_TRAILER = b"x: " + b"y" * 999 + b"\r\n"

ATTACKS = {
    "crumbs": Attack(
        first=_endless("/solve/batch", _CHUNKED),
        rest=_ONE_BYTE_CHUNK * 20_000,
        lacks_key=True,
    ),
    "lines": Attack(first=_endless("/solve/batch", _VERY_LONG), rest=b"x\n" * 20_000),
    "trailers": Attack(
        first=_endless("/solve/batch", _CHUNKED) + _ONE_BYTE_CHUNK + _LAST_CHUNK,
        rest=_TRAILER * 100,
    ),
    "upgrades": Attack(first=request("/solve", b'{"puzzle":0}', *_UPGRADE, _AS_JSON)),
    "values": Attack(first=request("/solve", _MANY_VALUES, _AS_JSON)),
    "long-lines": Attack(first=_endless("/solve/batch", _VERY_LONG), rest=_MANY_VALUES + b"\n"),
    "rows": Attack(first=request("/solve", _LONG_ROWS, _AS_JSON)),
    "puzzles": Attack(first=request("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET")),
    "labels": Attack(first=request("/puzzle", _city_of_one_color(), _AS_JSON)),
}
CONNECTIONS = "connections"  # many idle connections at once
NAMES = [*ATTACKS, CONNECTIONS]


def attacked(
    command: Sequence[str],
    name: str,
    *,
    senders: int,
    seconds: float,
    settle_s: float = SETTLE_S,
) -> Row:
    """Attack a server; return how fast `/livez` answered, and the memory before, at its peak and
    after."""
    key = auth.new_secret()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        auth.write_keys(keys, [auth.Key(label="attacked", sha256=auth.hash_of(key))])
        requires_key = name == CONNECTIONS or ATTACKS[name].lacks_key
        options = [f"--keys={keys}"] if requires_key else []
        with serving.running([*command, *options], {"x-api-key": key}) as server:
            before_mb = server.resident_mb()
            sending = sender_process(server.url, name, senders=senders, seconds=seconds)
            watch = asyncio.run(_watched(server, time.monotonic() + seconds))
            sending.join()
            time.sleep(settle_s)
            after_mb = server.resident_mb()
    memory = {"before": before_mb, "peak": watch.peak_mb, f"after {settle_s:g} s": after_mb}
    return {"livez": livez_row(watch.times_s), "memory_mb": memory, "faults": []}


def sender_process(url: str, name: str, *, senders: int, seconds: float) -> Any:
    """Start a process that attacks a server; the caller joins it."""
    port = httpx.URL(url).port
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_send_all, args=(port, name, senders, seconds))
    process.start()
    return process


@dataclass(frozen=True, kw_only=True)
class _Watch:
    times_s: list[float]
    peak_mb: float


async def _watched(server: RunningServer, end_s: float) -> _Watch:
    peak_mb = 0.0

    async def sample_memory() -> None:
        nonlocal peak_mb
        while True:
            peak_mb = max(peak_mb, server.resident_mb())
            await asyncio.sleep(SAMPLE_MEMORY_EVERY_S)

    sampling = asyncio.ensure_future(sample_memory())
    times_s = await probe(server.url, end_s)
    sampling.cancel()
    return _Watch(times_s=times_s, peak_mb=peak_mb)


async def probe(url: str, end_s: float) -> list[float]:
    """Return the seconds of each GET of `/livez` over one connection until `end_s`.

    A probe without an answer counts with the time until it failed, at most `PATIENCE_S`.
    """
    times_s: list[float] = []
    timeout = aiohttp.ClientTimeout(PATIENCE_S)
    async with client.session(url) as http:
        began_s = time.monotonic()
        while began_s < end_s:
            with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):
                async with http.get("/livez", timeout=timeout) as response:
                    await response.read()
            times_s.append(time.monotonic() - began_s)
            await asyncio.sleep(PROBE_EVERY_S)
            began_s = time.monotonic()
    return times_s


def livez_row(times_s: list[float]) -> Row:
    p50_s, p99_s, worst_s = np.percentile(times_s, [50, 99, 100]).tolist()
    return {
        "probes": len(times_s),
        "p50_ms": 1e3 * p50_s,
        "p99_ms": 1e3 * p99_s,
        "worst_ms": 1e3 * worst_s,
    }


def _send_all(port: int, name: str, senders: int, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    system.most_open_files(senders + SPARE_FILES)
    if name == CONNECTIONS:
        _connect_all(port, senders, end_s)
        return
    with ThreadPoolExecutor(senders) as threads:
        for _ in range(senders):
            threads.submit(_send, port, ATTACKS[name], end_s)


def _send(port: int, attack: Attack, end_s: float) -> None:
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            _send_once(port, attack, end_s)


def _send_once(port: int, attack: Attack, end_s: float) -> None:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        connection.sendall(attack.first)
        if not attack.rest:
            connection.recv(RECEIVE_BYTES)
            return
        connection.settimeout(PATIENCE_S)
        while time.monotonic() < end_s and _is_open(connection):
            connection.sendall(attack.rest)


def _is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed; discard replies, since unread ones block it."""
    while _has_input(connection):
        if not connection.recv(RECEIVE_BYTES):
            return False
    return True


def _has_input(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


def _connect_all(port: int, senders: int, end_s: float) -> None:
    while time.monotonic() < end_s:
        with contextlib.ExitStack() as stack:
            for _ in range(senders):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port))
            time.sleep(DWELL_S)
