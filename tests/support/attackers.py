"""Hostile clients: a process of its own repeats one attack until the test has seen enough.

An attack is a kind of request. Each sender opens a connection, sends the request, reads the reply,
and starts over. Some attacks never stop sending.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from service_tools import head

from hrm_host import system

PATIENCE_S = 5.0  # timeout of a send that the server does not read
ANSWER_S = 1.0  # seconds that a sender waits for a reply
DWELL_S = 3.0  # seconds that silent connections stay open
SPARE_FILES = 100  # descriptors besides the senders' sockets
RECEIVE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Attack:
    """Sends `first` once per connection, then repeats `rest` until the server stops reading."""

    first: bytes
    rest: bytes = b""


def request(path: str, body: bytes = b"", *headers: str, method: str = "POST") -> bytes:
    """Return a complete request."""
    length = f"content-length: {len(body)}"
    return head(f"{method} {path}", length, *headers) + body


def endless(path: str, *headers: str) -> bytes:
    """Return the head of a batch; its body follows without end."""
    return head(f"POST {path}", "content-type: application/x-ndjson", *headers)


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


AS_JSON = "content-type: application/json"
CHUNKED = "transfer-encoding: chunked"
VERY_LONG = "content-length: 99999999999"
UPGRADE = (
    "connection: Upgrade, HTTP2-Settings",
    "upgrade: h2c",
    "http2-settings: AAMAAABkAAQAAP__",
)
MANY_VALUES = b'{"puzzle":[' + b"{}," * 21_000 + b"0]}"
LONG_ROWS = json.dumps({"puzzle": ["-\n" * 2300] * 9}).encode()
ONE_BYTE_CHUNK = b"1\r\n\n\r\n"
LAST_CHUNK = b"0\r\n"
TRAILER = b"x: " + b"y" * 999 + b"\r\n"
BATCH = "/solve/batch"

ATTACKS = {
    "crumbs": Attack(first=endless(BATCH, CHUNKED), rest=ONE_BYTE_CHUNK * 20_000),
    "lines": Attack(first=endless(BATCH, VERY_LONG), rest=b"x\n" * 20_000),
    "trailers": Attack(
        first=endless(BATCH, CHUNKED) + ONE_BYTE_CHUNK + LAST_CHUNK, rest=TRAILER * 100
    ),
    "upgrades": Attack(first=request("/solve", b'{"puzzle":0}', *UPGRADE, AS_JSON)),
    "values": Attack(first=request("/solve", MANY_VALUES, AS_JSON)),
    "long-lines": Attack(first=endless(BATCH, VERY_LONG), rest=MANY_VALUES + b"\n"),
    "rows": Attack(first=request("/solve", LONG_ROWS, AS_JSON)),
    "puzzles": Attack(first=request("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET")),
    "labels": Attack(first=request("/puzzle", _city_of_one_color(), AS_JSON)),
}
CONNECTIONS = "connections"  # many idle connections at once


class Attackers:
    """The attack that runs: `num_sent` counts the requests, pieces or connections until now."""

    def __init__(self, port: int, name: str, num_senders: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._sent = context.Value("q", 0)
        self._over = context.Event()
        arguments = (port, name, num_senders, self._sent, self._over)
        self._process = context.Process(target=_send_all, args=arguments)
        self._process.start()

    @property
    def num_sent(self) -> int:
        return self._sent.value

    def stop(self) -> None:
        self._over.set()
        self._process.join()


@contextlib.contextmanager
def attacking(port: int, name: str, num_senders: int) -> Iterator[Attackers]:
    """Attack a server until the block ends."""
    attackers = Attackers(port, name, num_senders)
    try:
        yield attackers
    finally:
        attackers.stop()


def _send_all(port: int, name: str, num_senders: int, sent: Any, over: Any) -> None:
    system.most_open_files(num_senders + SPARE_FILES)
    if name == CONNECTIONS:
        _connect_all(port, num_senders, sent, over)
        return
    with ThreadPoolExecutor(num_senders) as threads:
        for _ in range(num_senders):
            threads.submit(_send, port, ATTACKS[name], sent, over)


def _send(port: int, attack: Attack, sent: Any, over: Any) -> None:
    while not over.is_set():
        with contextlib.suppress(OSError):
            _send_once(port, attack, sent, over)


def _send_once(port: int, attack: Attack, sent: Any, over: Any) -> None:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as connection:
        _count(sent)
        connection.sendall(attack.first)
        if not attack.rest:
            connection.recv(RECEIVE_BYTES)
            return
        connection.settimeout(PATIENCE_S)
        while not over.is_set() and _is_open(connection):
            connection.sendall(attack.rest)
            _count(sent)


def _count(sent: Any) -> None:
    with sent.get_lock():
        sent.value += 1


def _is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed; discard replies, since unread ones block it."""
    while _has_input(connection):
        if not connection.recv(RECEIVE_BYTES):
            return False
    return True


def _has_input(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable)


def _connect_all(port: int, num_connections: int, sent: Any, over: Any) -> None:
    while not over.is_set():
        with contextlib.ExitStack() as stack:
            for _ in range(num_connections):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port))
                _count(sent)
            over.wait(DWELL_S)
