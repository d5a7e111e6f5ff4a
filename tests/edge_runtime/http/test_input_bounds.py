"""Every bound on an input that docs/promises.md states: a running server keeps it, and answers as the page says."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripted_server import MAX_ATTEMPTS, examples
from service_tools import PATIENCE_S, Server, asking, running

pytestmark = pytest.mark.process
PAGE = Path(__file__).parents[3] / "docs" / "promises.md"
GOOD = next(iter(examples()))
JSON_TYPE = "content-type: application/json"
NDJSON_TYPE = "content-type: application/x-ndjson"
KIB = 1024


def stated() -> dict[str, str]:
    """What the page says happens past each bound, by the name of its probe."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Inputs\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {row[0].strip("`"): row[-1].strip("`") for row in rows}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(slots=1, queue_limit=1, step_s=0.2, segments=10) as server:
        server.wait_until_ready()
        yield server


def head(path: str, *headers: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: x", *headers, "", ""]).encode()


def said(server: Server, *pieces: bytes, is_closing: bool = False) -> str:
    """The first answer to these bytes as `status reason-or-rule`, or that there is none."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while is_closing or not answer.endswith(b"}"):
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                answer += piece
    return outcome(answer)


def outcome(answer: bytes) -> str:
    if not answer:
        return "no answer"
    status_line, _, rest = answer.partition(b"\r\n")
    error = json.loads(rest.partition(b"\r\n\r\n")[2])["error"]
    return f"{status_line.split()[1].decode()} {error['rule'] or error['reason']}"


def solve_said(server: Server, body: bytes) -> str:
    return said(server, head("/solve", JSON_TYPE, f"content-length: {len(body)}") + body)


def field_said(server: Server, **fields: object) -> str:
    return solve_said(server, json.dumps({"puzzle": GOOD, **fields}).encode())


def line_said(server: Server, line: bytes) -> str:
    response = server.http.post(
        "/solve/batch", content=line, headers={"content-type": "application/x-ndjson"}
    )
    error = json.loads(response.text)["error"]
    return error["rule"] or error["reason"]


def chunked_said(server: Server, *chunks: bytes) -> str:
    return said(server, head("/solve", JSON_TYPE, "transfer-encoding: chunked"), *chunks)


def ahead_said(server: Server) -> str:
    request = head("/puzzle?kind=sudoku&difficulty=hard", method="GET")
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(request + head("/livez", method="GET") * 1000)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(1 << 16):
                answer += piece
    return f"{answer.count(b'HTTP/1.1 ')} answer"


def unread_said(server: Server) -> str:
    """A body that is refused for its type, and dribbles on."""
    done = threading.Event()
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as connection:
        connection.sendall(head("/solve", "content-type: text/plain", "content-length: 1000000"))

        def dribble() -> None:
            with contextlib.suppress(OSError):
                while not done.wait(0.1):
                    connection.sendall(b"x")

        thread = threading.Thread(target=dribble)
        thread.start()
        with contextlib.suppress(ConnectionError):
            while connection.recv(1 << 16):
                pass
        done.set()
        thread.join()
    return "closed"


def queue_said(server: Server) -> str:
    with asking(server, [GOOD] * 2):
        return field_said(server)


def making_said(server: Server) -> str:
    """The refusal of one among many."""
    with ThreadPoolExecutor(30) as pool:
        request = head("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET")
        answers = list(pool.map(lambda _: _status_and_reason(server, request), range(30)))
    assert 200 in [status for status, _ in answers]
    return next(f"{status} {reason}" for status, reason in answers if status != 200)


def _status_and_reason(server: Server, request: bytes) -> tuple[int, str]:
    response = server.http.get(request.split()[1].decode())
    reason = "" if response.status_code == 200 else response.json()["error"]["reason"]
    return response.status_code, reason


def connections_said(_: Server) -> str:
    with running(max_connections=2, step_s=1.0) as small, contextlib.ExitStack() as held:
        small.wait_until_ready()
        small.http.close()
        body = json.dumps({"puzzle": GOOD}).encode()
        for _ in range(2):
            connection = held.enter_context(socket.create_connection(("127.0.0.1", small.port)))
            connection.sendall(
                head("/solve/stream", JSON_TYPE, f"content-length: {len(body)}") + body
            )
            assert connection.recv(1 << 16)
        return said(small)


PROBES: dict[str, Callable[[Server], str]] = {
    "header-bytes": lambda server: said(server, head("/", "x: " + "y" * 17 * KIB, method="GET")),
    "header-time": lambda server: said(server, b"GET / HT"),
    "trailer-bytes": lambda server: chunked_said(server, b"1\r\nx\r\n0\r\nx: ", b"y" * 21 * KIB),
    "crumbs": lambda server: chunked_said(server, b"1\r\n \r\n" * 2000),
    "requests-ahead": ahead_said,
    "body-bytes": lambda server: solve_said(server, b'{"puzzle":"' + b"." * 64 * KIB + b'"}'),
    "body-time": lambda server: said(server, head("/solve", JSON_TYPE, "content-length: 9"), b"{"),
    "body-values": lambda server: solve_said(server, b'{"puzzle":[' + b"0," * 5000 + b"0]}"),
    "body-depth": lambda server: solve_said(server, b'{"puzzle":' + b"[" * 9 + b"]" * 9 + b"}"),
    "body-digits": lambda server: solve_said(server, b'{"puzzle":' + b"1" * 19 + b"}"),
    "unread-body": unread_said,
    "text": lambda server: field_said(server, puzzle=["-\n" * 3500] * 4),
    "line-bytes": lambda server: line_said(server, b'{"puzzle":"' + b"." * 64 * KIB + b'"}'),
    "line-values": lambda server: line_said(server, b'{"puzzle":[' + b"{}," * 2500 + b"0]}"),
    "name": lambda server: field_said(server, model="m" * 201),
    "attempts": lambda server: field_said(server, attempts=MAX_ATTEMPTS + 1),
    "segments": lambda server: field_said(server, max_segments=999_999),
    "deadline": lambda server: field_said(server, deadline_ms=3_600_001),
    "queue": queue_said,
    "making": making_said,
    "path": lambda server: said(server, head(f"/models/{'m' * 201}/tasks", method="GET")),
    "connections": connections_said,
}


def test_each_stated_bound_has_a_probe() -> None:
    assert list(stated()) == list(PROBES)


@pytest.mark.parametrize("probe", PROBES)
def test_a_bound_is_kept_as_the_page_says(server: Server, probe: str) -> None:
    assert PROBES[probe](server) == stated()[probe]
    assert server.status("/livez") == 200
    assert "Traceback" not in server.log
