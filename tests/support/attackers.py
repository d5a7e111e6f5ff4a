"""Hostile clients: a process of its own repeats one attack until the test has seen enough.

An attack is a kind of request. Each sender opens a connection, sends the request, reads the reply,
and starts over. Some attacks never stop sending.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import multiprocessing
import select
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from service_tools import head

from hrm_host import system

PATIENCE_S = 5.0  # timeout of a send that the server does not read, and of a reply
DWELL_S = 3.0  # seconds that silent connections stay open
SPARE_FILES = 100  # descriptors besides the senders' sockets
RECEIVE_BYTES = 1 << 20


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
CRUMBS = ONE_BYTE_CHUNK * 20_000
LAST_CHUNK = b"0\r\n"
TRAILERS = (b"x: " + b"y" * 999 + b"\r\n") * 100
BATCH = "/solve/batch"

ENDLESS = {
    "crumbs": (endless(BATCH, CHUNKED), CRUMBS),
    "lines": (endless(BATCH, VERY_LONG), b"x\n" * 20_000),
    "trailers": (endless(BATCH, CHUNKED) + ONE_BYTE_CHUNK + LAST_CHUNK, TRAILERS),
    "long-lines": (endless(BATCH, VERY_LONG), MANY_VALUES + b"\n"),
}
"""What a connection sends first, and then again and again until the server stops reading."""
REQUESTS = {
    "upgrades": request("/solve", b'{"puzzle":0}', *UPGRADE, AS_JSON),
    "values": request("/solve", MANY_VALUES, AS_JSON),
    "rows": request("/solve", LONG_ROWS, AS_JSON),
    "puzzles": request("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET"),
    "labels": request("/puzzle", _city_of_one_color(), AS_JSON),
}
CONNECTIONS = "connections"  # many idle connections at once
ATTACKS = (*ENDLESS, *REQUESTS, CONNECTIONS)


@contextlib.contextmanager
def attacking(port: int, name: str, num_senders: int) -> Iterator[Any]:
    """Attack a server until the block ends.

    Yields a shared number: `value` counts the requests, pieces or connections until now.
    """
    context = multiprocessing.get_context("spawn")
    sent = context.Value("q", 0)
    over = context.Event()
    process = context.Process(target=_send_all, args=(port, name, num_senders, sent, over))
    process.start()
    try:
        yield sent
    finally:
        over.set()
        process.join()
    assert process.exitcode == 0, "a reply was not what a server may answer"


def _send_all(port: int, name: str, num_senders: int, sent: Any, over: Any) -> None:
    system.most_open_files(num_senders + SPARE_FILES)
    if name == CONNECTIONS:
        _connect_all(port, num_senders, sent, over)
        return
    send = _send_endlessly if name in ENDLESS else _send_request
    with ThreadPoolExecutor(num_senders) as threads:
        sending = [threads.submit(send, port, name, sent, over) for _ in range(num_senders)]
    for one in sending:
        one.result()


def _connect_all(port: int, num_connections: int, sent: Any, over: Any) -> None:
    while not over.is_set():
        with contextlib.ExitStack() as stack:
            for _ in range(num_connections):
                connection = stack.enter_context(socket.socket())
                connection.setblocking(False)
                connection.connect_ex(("127.0.0.1", port))
                _count(sent)
            over.wait(DWELL_S)


def _send_request(port: int, name: str, sent: Any, over: Any) -> None:
    while not over.is_set():
        with (
            contextlib.suppress(OSError, http.client.RemoteDisconnected),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        ):
            _count(sent)
            connection.sendall(REQUESTS[name])
            reply = http.client.HTTPResponse(connection)
            reply.begin()
            reply.read()
            assert reply.status < 500 or reply.status == 503, reply.status


def _send_endlessly(port: int, name: str, sent: Any, over: Any) -> None:
    first, rest = ENDLESS[name]
    while not over.is_set():
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection,
        ):
            _count(sent)
            connection.sendall(first)
            while not over.is_set() and _is_open(connection):
                connection.sendall(rest)
                _count(sent)


def _count(sent: Any) -> None:
    with sent.get_lock():
        sent.value += 1


def _is_open(connection: socket.socket) -> bool:
    """Return whether the server has not closed; discard replies, since unread ones block it."""
    while select.select([connection], [], [], 0)[0]:
        if not connection.recv(RECEIVE_BYTES):
            return False
    return True
