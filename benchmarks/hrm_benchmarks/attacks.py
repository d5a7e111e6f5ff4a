"""Clients that mean harm: each attack is sent over and over by a process of its own, while `/livez` is probed.

An attack is a kind of request. Its senders open a connection, send the request, and perhaps more of it without end,
take what is answered, and begin again.
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

from hrm_benchmarks import server as serving
from hrm_benchmarks.report import Row
from hrm_benchmarks.server import RunningServer
from hrm_edge_runtime.http import auth
from hrm_host import system

PROBE_EVERY_S = 0.02
PATIENCE_S = 5.0  # for an answer of /livez
ANSWER_S = 1.0  # that a sender waits for an answer
DWELL_S = 3.0  # how long connections that say nothing stay
SETTLE_S = 60.0  # after which the memory has to be back


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What a sender sends: `first` once on each connection, then `rest` as long as the server takes it."""

    first: bytes
    rest: bytes = b""
    is_at_the_door: bool = False  # sent without a key to a server that asks for one


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    """A whole request."""
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _endless(path: str, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/x-ndjson", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def _city_of_one_color() -> bytes:
    """A 30x30 city with a label that marks every road."""
    rows = [["."] * 30 for _ in range(30)]
    stops = [(0, 0), (0, 29), (29, 0), (29, 29), (15, 15), (3, 20), (20, 3), (25, 25), (10, 10)]
    for (row, col), stop in zip(stops, "DCCCCCCCC", strict=True):
        rows[row][col] = stop
    puzzle = "\n".join("".join(row) for row in rows)
    label = {"kind": "logistics-30x30", "puzzle": puzzle, "solution": puzzle.replace(".", "o")}
    return json.dumps(label).encode()


_MANY_VALUES = b'{"puzzle":[' + b"{}," * 21_000 + b"0]}"
_LONG_ROWS = json.dumps({"puzzle": ["-\n" * 2300] * 9}).encode()
_CHUNKED = "transfer-encoding: chunked"
_AS_JSON = "content-type: application/json"
_OFFER = ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__", _AS_JSON)

ATTACKS = {
    "crumbs": Attack(first=_endless("/solve/batch", _CHUNKED), rest=b"1\r\n\n\r\n" * 20_000, is_at_the_door=True),
    "lines": Attack(first=_endless("/solve/batch", "content-length: 99999999999"), rest=b"x\n" * 20_000),
    "trailers": Attack(
        first=_endless("/solve/batch", _CHUNKED) + b"1\r\n\n\r\n0\r\n", rest=(b"x: " + b"y" * 999 + b"\r\n") * 100
    ),
    "upgrades": Attack(first=request("/solve", b'{"puzzle":0}', *_OFFER)),
    "values": Attack(first=request("/solve", _MANY_VALUES, _AS_JSON)),
    "long-lines": Attack(first=_endless("/solve/batch", "content-length: 99999999999"), rest=_MANY_VALUES + b"\n"),
    "rows": Attack(first=request("/solve", _LONG_ROWS, _AS_JSON)),
    "puzzles": Attack(first=request("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET")),
    "labels": Attack(first=request("/puzzle", _city_of_one_color(), _AS_JSON)),
}
CONNECTIONS = "connections"  # many of them at once that say nothing
NAMES = [*ATTACKS, CONNECTIONS]


def attacked(command: Sequence[str], name: str, *, senders: int, seconds: float, settle_s: float = SETTLE_S) -> Row:
    """`/livez` and the memory of a server beside so many senders of an attack, and its memory a while after it."""
    key = auth.new_secret()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        auth.write_keys(keys, [auth.Key(label="attacked", sha256=auth.hash_of(key))])
        has_keys = name == CONNECTIONS or ATTACKS[name].is_at_the_door
        options = [f"--keys={keys}"] if has_keys else []
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
    """A process that attacks a server; join it."""
    port = httpx.URL(url).port
    process = multiprocessing.get_context("spawn").Process(target=_send_all, args=(port, name, senders, seconds))
    process.start()
    return process


@dataclass(kw_only=True)
class _Watch:
    times_s: list[float]
    peak_mb: float = 0.0


async def _watched(server: RunningServer, end_s: float) -> _Watch:
    watch = _Watch(times_s=[])

    async def look_at_memory() -> None:
        while True:
            watch.peak_mb = max(watch.peak_mb, server.resident_mb())
            await asyncio.sleep(0.1)

    looking = asyncio.ensure_future(look_at_memory())
    watch.times_s = await probe(server.url, end_s)
    looking.cancel()
    return watch


async def probe(url: str, end_s: float) -> list[float]:
    """How long `/livez` took, over a connection that is kept."""
    times_s: list[float] = []
    async with serving.client(url) as http:
        while (began_s := time.monotonic()) < end_s:
            with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError):  # longer counts as PATIENCE_S
                async with http.get("/livez", timeout=aiohttp.ClientTimeout(PATIENCE_S)) as response:
                    await response.read()
            times_s.append(time.monotonic() - began_s)
            await asyncio.sleep(PROBE_EVERY_S)
    return times_s


def livez_row(times_s: list[float]) -> Row:
    p50_ms, p99_ms, worst_ms = (1e3 * np.percentile(times_s, [50, 99, 100])).tolist()
    return {"probes": len(times_s), "p50_ms": p50_ms, "p99_ms": p99_ms, "worst_ms": worst_ms}


def _send_all(port: int, name: str, senders: int, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    system.most_open_files(senders + 100)
    if name == CONNECTIONS:
        _connect_all(port, senders, end_s)
        return
    with ThreadPoolExecutor(senders) as threads:
        for _ in range(senders):
            threads.submit(_send, port, ATTACKS[name], end_s)


def _send(port: int, attack: Attack, end_s: float) -> None:
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
            connection.sendall(attack.first)
            if not attack.rest:
                connection.recv(1 << 20)
            connection.settimeout(PATIENCE_S)
            while attack.rest and time.monotonic() < end_s and _takes_what_is_there(connection):
                connection.sendall(attack.rest)


def _takes_what_is_there(connection: socket.socket) -> bool:
    """Whether the connection still stands; an answer that nobody reads would hold the sender up."""
    while select.select([connection], [], [], 0)[0]:
        if not connection.recv(1 << 20):
            return False
    return True


def _connect_all(port: int, senders: int, end_s: float) -> None:
    while time.monotonic() < end_s:
        with contextlib.ExitStack() as held:
            for _ in range(senders):
                connection = held.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port))
            time.sleep(DWELL_S)
