"""A running server keeps every bound on an input that docs/promises.md states."""

import contextlib
import functools
import json
import re
import select
import selectors
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from files import text_of
from scripted_server import MAX_ATTEMPTS, QUESTION
from service_tools import (
    ADMIN,
    PATIENCE_S,
    Server,
    ask_and_stay,
    asking,
    head,
    resident_bytes,
    running,
    upload_server,
    wait_for,
)

from hrm_host import system

pytestmark = pytest.mark.process
CHUNKED = "transfer-encoding: chunked"
KIB = 1024
NUM_MAKERS = 60
SLOW = "/puzzle?kind=logistics-30x30&difficulty=hard"


INPUTS = text_of("docs/promises.md").partition("\n## Inputs\n")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| `([\w-]+)` \|.*\|([^|]*)\|([^|]*)\|$", INPUTS, re.MULTILINE)
STATED = {probe: beyond.strip(" `") for probe, _, beyond in ROWS}
"""What the page says happens past each bound, by the name of its probe."""
STATED_KIB = {probe: int(memory.split()[0]) for probe, memory, _ in ROWS if " KiB" in memory}
"""What the page says that one connection holds within each bound, by the name of its probe."""


@contextlib.contextmanager
def connected(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        yield connection


def ask(route: str, *headers: str) -> bytes:
    """The head of a request, after whose answer the server closes."""
    return head(route, "connection: close", *headers)


def solving(body: bytes) -> bytes:
    return ask("POST /solve", f"content-length: {len(body)}") + body


def with_field(**fields: object) -> bytes:
    return solving(json.dumps({"puzzle": QUESTION, **fields}).encode())


def with_line(line: bytes) -> bytes:
    return ask("POST /solve/batch", f"content-length: {len(line)}") + line


def outcome_of(server: Server, sent: bytes) -> str:
    """The answer to these bytes as `status rule-or-reason`, or `no answer`."""
    with connected(server) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        answer = everything(connection)
    return outcome(answer) if answer else "no answer"


def everything(connection: socket.socket) -> bytes:
    """Read until the server closes."""
    answer = b""
    with contextlib.suppress(ConnectionError):
        while received := connection.recv(1 << 16):
            answer += received
    return answer


def outcome(answer: bytes) -> str:
    """The status and what is wrong, or only what is wrong with a line of a batch."""
    header, _, body = answer.partition(b"\r\n\r\n")
    (line,) = [line for line in body.splitlines() if line.startswith(b"{")]
    error = json.loads(line)["error"]
    status = header.split()[1].decode()
    wrong = error["rule"] or error["reason"]
    return wrong if status == "200" else f"{status} {wrong}"


def of_requests_ahead(server: Server) -> str:
    with connected(server) as connection:
        with contextlib.suppress(ConnectionError):
            first = head("GET /puzzle?kind=sudoku&difficulty=hard")
            connection.sendall(first + head("GET /livez") * 1000)
        answer = everything(connection)
    return f"{answer.count(b'HTTP/1.1 ')} answer"


def of_unread_body(server: Server) -> str:
    """A body that is refused for its type, and dribbles on."""
    is_open = True
    with connected(server) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(head("POST /solve", "content-type: a/b", "content-length: 1000000"))
        connection.settimeout(0.1)
        while is_open:
            connection.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                is_open = connection.recv(1 << 16) != b""
    return "closed"


def of_full_queue(server: Server) -> str:
    with asking(server, [QUESTION] * 2):
        return outcome_of(server, with_field())


def of_makers(server: Server) -> str:
    """One of many is refused; the line is free again soon after all have left."""
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(connected(server)) for _ in range(NUM_MAKERS)]
        for connection in connections:
            connection.sendall(ask(f"GET {SLOW}"))
        refused = b""
        while not refused.startswith(b"HTTP/1.1 503"):
            assert connections, "every request was answered, none refused"
            (answered, *_), _, _ = select.select(connections, [], [], PATIENCE_S)
            connections.remove(answered)
            refused = everything(answered)
    wait_for(lambda: server.status("/puzzle?kind=sudoku-4x4") == 200)
    return outcome(refused)


def of_connections(server: Server) -> str:
    """It needs a server of its own."""
    del server
    with running(max_connections=2, step_s=1.0) as small, contextlib.ExitStack() as held:
        small.http.close()
        for _ in range(2):
            connection = held.enter_context(ask_and_stay(small, QUESTION, "/solve/stream"))
            assert connection.recv(1 << 16)
        return outcome_of(small, b"")


def of_upload(server: Server) -> str:
    """It needs a server of its own, with an admin's key and a folder of uploads."""
    del server
    with TemporaryDirectory() as folder:
        headers = ("content-type: application/x-tar", f"x-api-key: {ADMIN}")
        length = f"content-length: {KIB**5}"
        with upload_server(Path(folder), "sudoku-6x6") as board:
            return outcome_of(board, head("PUT /models/sudoku", *headers, length))


def of_held_bytes(server: Server) -> str:
    """More connections than the budget has room for begin a body each."""
    system.most_open_files(4000)
    begun = head("POST /solve", f"content-length: {64 * KIB}") + b" " * 62 * KIB
    answer = b""
    with contextlib.ExitStack() as held:
        waiting = held.enter_context(selectors.DefaultSelector())
        while not answer.startswith(b"HTTP/1.1 503"):  # else a busy machine took the body's time
            assert len(waiting.get_map()) < 2000, "none was refused"
            connection = held.enter_context(connected(server))
            connection.sendall(begun)
            waiting.register(connection, selectors.EVENT_READ)
            for answered, _ in waiting.select(0):
                waiting.unregister(answered.fileobj)
                answer = everything(answered.fileobj)
    wait_for(lambda: server.status("/livez") == 200)
    return outcome(answer)


CHUNKS = ask("POST /solve", CHUNKED)
PROBES = {
    "header-bytes": head("GET /", "x: " + "y" * 17 * KIB),
    "header-time": b"GET / HT",
    "trailer-bytes": CHUNKS + b"1\r\nx\r\n0\r\nx: " + b"y" * 21 * KIB,
    "crumbs": CHUNKS + b"1\r\n \r\n" * 2000,
    "requests-ahead": of_requests_ahead,
    "body-bytes": CHUNKS + b"10001\r\n" + b"." * 64 * KIB + b".\r\n",
    "body-time": ask("POST /solve", "content-length: 9") + b"{",
    "body-values": solving(b'{"puzzle":[' + b"0," * 5000 + b"0]}"),
    "body-depth": solving(b'{"puzzle":' + b"[" * 9 + b"]" * 9 + b"}"),
    "body-digits": solving(b'{"puzzle":' + b"1" * 19 + b"}"),
    "unread-body": of_unread_body,
    "text": with_field(puzzle=["-\n" * 3500] * 4),
    "blank-lines": with_line(b"\n" * 1001),
    "line-bytes": with_line(b'{"puzzle":"' + b"." * 64 * KIB + b'"}'),
    "line-values": with_line(b'{"puzzle":[' + b"{}," * 2500 + b"0]}"),
    "name": with_field(model="m" * 201),
    "attempts": with_field(attempts=MAX_ATTEMPTS + 1),
    "segments": with_field(max_segments=999_999),
    "deadline": with_field(deadline_ms=3_600_001),
    "queue": of_full_queue,
    "making": of_makers,
    "upload-bytes": of_upload,
    "path": ask(f"GET /models/{'m' * 201}/tasks"),
    "connections": of_connections,
    "held": of_held_bytes,
}
"""What is sent beyond each bound, or a function that goes beyond it."""
# They run beside the others.
WAITING = ("header-time", "body-time", "unread-body", "connections", "upload-bytes")


LINE = json.dumps({"puzzle": QUESTION}).encode()
BATCH = head("POST /solve/batch", CHUNKED)
WITHIN = {
    "header-bytes": head("GET /")[:-2] + b"x: " + b"y" * 16_000,
    "header-time": b"GET / HT",
    "trailer-bytes": head("POST /solve", CHUNKED) + b"1\r\n \r\n0\r\nx: " + b"y" * 16_000,
    "crumbs": head("POST /solve", CHUNKED) + b"18\r\n" + (b" " * 24 + b"\r\n18\r\n") * 2600,
    "requests-ahead": head("POST /solve/batch", f"content-length: {len(LINE)}")
    + LINE
    + head("GET /livez") * 400,
    "body-bytes": head("POST /solve", f"content-length: {64 * KIB}") + b" " * (64 * KIB - 1),
    "body-time": head("POST /solve", "content-length: 9"),
    "unread-body": head("POST /solve", "content-type: a/b", "content-length: 99999")
    + b" " * 90_000,
    "blank-lines": BATCH + b"3e8\r\n" + b"\n" * 1000 + b"\r\n",
    "line-bytes": BATCH + b"10000\r\n" + b" " * (64 * KIB - 1),
    "connections": head("GET /livez"),
    "unread-answer": head("GET /openapi.json") * 10,
}
"""The most that a connection may send within a bound, and unfinished."""
UNREAD_ANSWER_KIB = 64
NUM_HOLDING = 200
SETTLE_S = 0.5


def settled_kib(server: Server) -> float:
    """The server's memory when it no longer grows."""
    before_kib = 0.0
    grown_kib = resident_bytes(server.process.pid) / KIB
    while grown_kib > before_kib:
        time.sleep(SETTLE_S)
        before_kib = grown_kib
        grown_kib = resident_bytes(server.process.pid) / KIB
    return grown_kib


@contextlib.contextmanager
def holding(server: Server, sent: bytes, count: int) -> Iterator[None]:
    """Open connections that send within a bound and read nothing."""
    with contextlib.ExitStack() as held:
        for _ in range(count):
            connection = held.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.settimeout(1.0)
            with contextlib.suppress(OSError):
                connection.sendall(sent)
        wait_for(lambda: server.status("/livez") == 200)
        yield


def held_kib(sent: bytes) -> float:
    """What each connection holds that sends this. A server of its own: what it freed stays."""
    with running(step_s=0.2, segments=100) as server:
        with holding(server, sent, 10):
            before_kib = settled_kib(server)
        with holding(server, sent, NUM_HOLDING):
            grown_kib = settled_kib(server) - before_kib
        assert "Traceback" not in server.log
    return grown_kib / NUM_HOLDING


@pytest.fixture(scope="module")
def held() -> Iterator[dict[str, Future[float]]]:
    with ThreadPoolExecutor(4) as pool:  # they mostly wait until their memory settles
        yield {name: pool.submit(held_kib, sent) for name, sent in WITHIN.items()}


@pytest.mark.parametrize("name", WITHIN)
def test_a_connection_holds_no_more_than_the_page_states(held: dict[str, Future[float]], name: str):
    stated = {**STATED_KIB, "unread-answer": UNREAD_ANSWER_KIB}
    assert set(stated) == set(WITHIN)
    assert held[name].result() <= stated[name]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(slots=1, queue_limit=1, step_s=0.1, segments=10) as server:
        yield server


@pytest.fixture(scope="module")
def outcomes(server: Server) -> Iterator[dict[str, Future[str]]]:
    with ThreadPoolExecutor(len(WAITING)) as waiting, ThreadPoolExecutor(1) as in_turn:
        started = {}
        for name, probe in PROBES.items():
            pool = waiting if name in WAITING else in_turn
            beyond = probe if callable(probe) else functools.partial(outcome_of, sent=probe)
            started[name] = pool.submit(beyond, server)
        yield started


def test_each_stated_bound_has_a_probe():
    assert list(STATED) == list(PROBES)


@pytest.mark.parametrize("name", PROBES)
def test_stated_bounds_hold(server: Server, outcomes: dict[str, Future[str]], name: str):
    assert outcomes[name].result() == STATED[name]
    assert server.status("/livez") == 200
    assert "Traceback" not in server.log
