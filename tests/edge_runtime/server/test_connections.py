"""Connections that dawdle, crowd or send nonsense: each is ended in its time; nobody else waits."""

import asyncio
import contextlib
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from asgi_tools import live
from cli_tools import ran
from service_tools import head, starting, wait_for
from starlette.requests import Request

from hrm_edge_server import connections
from hrm_edge_server.body import HEADER_BYTES
from hrm_edge_server.growing import CUT

SHORT_S = 0.3
AGES_S = 30.0  # nothing here takes so long, even on a busy machine
GET = head("GET /")
BUSY = head("GET /busy")
CHUNKED = head("GET /", "transfer-encoding: chunked")
BUSY_CHUNKED = head("GET /busy", "transfer-encoding: chunked")
ONE_BYTE = BUSY_CHUNKED + b"1\r\nx\r\n"
CRUMBS = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"
LARGE_BYTES = 8 << 20

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_length(size: int, path: str = "/", *headers: str) -> bytes:
    return head(f"GET {path}", f"content-length: {size}", *headers)


class House:
    """A server with nothing but connection limits.

    `/` answers with two bytes, `/large` with very many, `/echo` with the body. `/busy` waits for
    `leave`, `/slow` as well but in the middle of its answer, `/wait` until its client leaves.
    `/cut` ends the connection in the middle of its answer.
    """

    def __init__(self, limits: connections.ConnectionLimits) -> None:
        self.limits = limits
        self.port = 0
        self.leave = asyncio.Event()
        self.left = asyncio.Event()
        self.headers = []
        self.paths = []
        self.writers = []

    async def connect(self, first: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        self.writers.append(writer)
        writer.write(first)
        return reader, writer

    async def close(self) -> None:
        self.leave.set()
        for writer in self.writers:
            writer.close()
        closing = [writer.wait_closed() for writer in self.writers]
        await asyncio.gather(*closing, return_exceptions=True)

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        self.paths.append(path)
        if path == "/wait":
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        if path == "/busy":
            await self.leave.wait()
        body = b".."
        if path == "/large":
            body = b"." * LARGE_BYTES
        if path == "/echo":
            body = await Request(scope, receive).body()
            self.headers = scope["headers"]
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        if path == "/slow":
            await self.leave.wait()
        if path == "/cut":
            scope["extensions"][CUT]()
            return
        await send({"type": "http.response.body", "body": body[1:]})


@contextlib.asynccontextmanager
async def house(**changed: Any) -> AsyncIterator[House]:
    limits = {"max_connections": 100, "header_s": AGES_S, "unread_s": AGES_S, "fetch_s": AGES_S}
    limits.update(changed)
    there = House(connections.ConnectionLimits(**limits))
    async with live(there.app, there.limits) as there.port:
        try:
            with anyio.fail_after(AGES_S):
                yield there
        finally:
            await there.close()


async def is_answered(reader: asyncio.StreamReader, body: bytes = b"..") -> bool:
    """Read one answer; return whether its status is 200."""
    answer = await reader.readuntil(body)
    return answer.startswith(b"HTTP/1.1 200")


async def ended(streams: Streams, dribble: bytes = b"") -> bytes:
    """Read until the server ends the connection, while bytes are dribbled into it without end."""
    reader, writer = streams

    async def keep_on() -> None:
        with contextlib.suppress(ConnectionError):
            while dribble:
                writer.write(dribble)
                await writer.drain()
                await asyncio.sleep(SHORT_S / 10)

    answer = bytearray()
    task = asyncio.ensure_future(keep_on())
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            answer += piece
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return bytes(answer)


HALF_HEADER = b"GET / HTTP/1.1\r\nx: "


@pytest.mark.parametrize(
    ("first", "beginning", "dribble"),
    [
        (b"", b"", b""),
        (b"", HALF_HEADER, b"a"),
        (GET, b"G", b""),
        (GET, HALF_HEADER, b"a"),
        (GET, b"", b"\r\n"),
    ],
)
async def test_endless_headers_are_cut(first: bytes, beginning: bytes, dribble: bytes):
    async with house(header_s=SHORT_S) as there:
        reader, writer = await there.connect(first)
        if first:
            assert await is_answered(reader)
        writer.write(beginning)
        assert await ended((reader, writer), dribble) == b""
        assert there.limits.dropped == {"slow-header": 1}
        assert not there.limits.idle


async def test_answer_that_takes_long_is_not_cut_off():
    async with house(header_s=SHORT_S, unread_s=SHORT_S, fetch_s=SHORT_S) as there:
        reader, _ = await there.connect(BUSY)
        await asyncio.sleep(2 * SHORT_S)
        there.leave.set()
        assert await is_answered(reader)
        assert not there.limits.dropped


async def test_a_finished_body_leaves_the_connection_usable():
    async with house() as there:
        reader, writer = await there.connect(with_length(4) + b"ab")
        assert await is_answered(reader)
        writer.write(b"cd" + GET)
        assert await is_answered(reader)
        assert not there.limits.dropped
    line = b"20\r\n%s\r\n" % (b"x" * 32)
    async with house() as there:
        reader, writer = await there.connect(CHUNKED + line * 5000 + b"0\r\n\r\n" + GET)
        assert await is_answered(reader)
        assert await is_answered(reader)


async def test_an_unread_body_in_crumbs_ends_the_connection_after_the_answer():
    async with house(unread_s=SHORT_S) as there:
        reader, writer = await there.connect(CHUNKED)
        assert await is_answered(reader)
        writer.write(CRUMBS + GET)
        assert await ended((reader, writer)) == b""
        assert there.limits.dropped == {"unread-body": 1}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n" + GET,
        b"\r\n\r\n" + GET,
        head("GET http://x/"),
        head("GET http://x"),
        head("GET /?url=http://other/"),
    ],
)
async def test_unusual_requests_are_read(request_bytes: bytes):
    async with house() as there:
        reader, writer = await there.connect(request_bytes)
        assert await is_answered(reader)
        assert there.paths == ["/"]
        writer.write(with_length(2) + b"xx" + request_bytes)
        assert await is_answered(reader)
        assert await is_answered(reader)


@pytest.mark.parametrize("behind", [b"", GET * 3, b"GET / HT"])
async def test_a_leaving_client_is_seen_whatever_it_sent_ahead(behind: bytes):
    async with house() as there:
        _, writer = await there.connect(head("GET /wait") + behind)
        while not there.paths:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        await there.left.wait()


@pytest.mark.parametrize(
    ("path", "behind", "second"),
    [
        ("/busy", b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        ("/slow", b"nonsense\r\n\r\n", b"HTTP/1.1 400 "),
        ("/busy", b"x" * 2 * HEADER_BYTES, b""),
    ],
)
async def test_nonsense_ahead_never_shows_in_an_answer(path: str, behind: bytes, second: bytes):
    async with house() as there:
        streams = await there.connect(head(f"GET {path}") + behind)
        await asyncio.sleep(SHORT_S / 3)
        there.leave.set()
        answer = await ended(streams)
        first, body, rest = answer.partition(b"..")
        assert first.startswith(b"HTTP/1.1 200")
        assert body
        assert rest[: len(b"HTTP/1.1 400 ")] == second


@pytest.mark.parametrize(
    ("protocol", "length", "body"),
    [
        ("h2c", "content-length: 4", b"body"),
        ("h2c", "transfer-encoding: chunked", b"4\r\nbody\r\n0\r\n\r\n"),
        ("x", "transfer-encoding: chunked", b"4\r\nbody\r\n0\r\norigin: http://x\r\n\r\n"),
    ],
)
async def test_offer_of_another_protocol_is_passed_over_and_a_trailer_is_not_a_header(
    protocol: str, length: str, body: bytes
):
    offer = ("connection: Upgrade, HTTP2-Settings", f"upgrade: {protocol}")
    async with house() as there:
        reader, writer = await there.connect(head("POST /echo", *offer, length) + body)
        assert await is_answered(reader, b"body")
        assert b"origin" not in dict(there.headers)
        writer.write(GET)
        assert await is_answered(reader)


@pytest.mark.parametrize(("is_soon", "status_line"), [(True, b"HTTP/1.1 200"), (False, b"")])
async def test_a_half_closed_client_is_answered_if_soon(is_soon: bool, status_line: bytes):
    async with house() as there:
        reader, writer = await there.connect(BUSY)
        writer.write_eof()
        if is_soon:
            asyncio.get_running_loop().call_later(SHORT_S / 10, there.leave.set)
        answer = await ended((reader, writer))
        assert answer[:12] == status_line


async def test_client_that_does_not_fetch_its_answer_is_cut_off():
    async with house(fetch_s=SHORT_S) as there:
        reader, _ = await there.connect(head("GET /large"))
        while not there.limits.dropped:
            await asyncio.sleep(SHORT_S / 10)
        assert there.limits.dropped == {"slow-reader": 1}
        with contextlib.suppress(ConnectionError):
            while len(await reader.read(1 << 16)) > 2:
                pass


async def test_longest_idle_connection_makes_room_and_busy_ones_stay():
    async with house(max_connections=3) as there:
        busy, _ = await there.connect(BUSY)
        oldest = await there.connect(b"GET")
        while len(there.limits.idle) != 1:
            await asyncio.sleep(0.01)
        second, second_writer = await there.connect(b"GET")
        newest, _ = await there.connect(GET)
        assert await is_answered(newest)
        assert await ended(oldest) == b""
        assert there.limits.dropped == {"made-room": 1}
        second_writer.write(GET[3:])
        assert await is_answered(second)
        there.leave.set()
        assert await is_answered(busy)


async def test_the_connection_that_holds_the_most_makes_room():
    async with house(max_held_bytes=30_000) as there:
        small, _ = await there.connect(with_length(9000, "/echo") + b"x" * 8999)
        large = await there.connect(with_length(60_000, "/echo") + b"x" * 50_000)
        assert (await ended(large)).startswith(b"HTTP/1.1 503")
        there.writers[0].write(b"x")
        assert await is_answered(small, b"x" * 9000)
        assert there.limits.held_bytes == 0
        assert there.limits.dropped == {"too-many": 1}


@pytest.mark.parametrize(
    ("request_head", "status", "cause"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "illegal request line"),
        (b"GET / HTTP/1.1\r\n\r\n", 400, "Missing mandatory Host: header"),
        (GET.replace(b"\r\n", b"\r\nhost: b\r\n", 1), 400, "Found multiple Host: headers"),
        (GET[:-2] + b'yyy"\x00\r\n\r\n', 400, "illegal header line"),
        (with_length(1, "/", "content-length: 2"), 400, "conflicting Content-Length headers"),
        (GET.replace(b"\r\n", b"\n"), 400, "a line without CR"),
        (GET[:-2] + b"a:\r\n" * 101, 431, "its header is too long"),
        (with_length(3, "/", "transfer-encoding: chunked"), 400, "two lengths, a long"),
        (GET.replace(b"GET", b"P" * 21), 400, "a long method or an unknown version"),
        (GET[:-2] + b"transfer-encoding: gzip\r\n\r\n", 501, "Only Transfer-Encoding: chunked"),
        (GET.replace(b"GET /", b"CONNECT a:443"), 501, "not a proxy"),
        (b"GET /" + b"y" * 20_000, 431, "its header is too long"),
        (ONE_BYTE + b"1;" + b"y" * 2 * HEADER_BYTES, 431, "Receive buffer too long"),
    ],
)
async def test_bad_http_gets_the_error_shape_and_its_cause(
    request_head: bytes, status: int, cause: str
):
    async with house() as there:
        answer = await ended(await there.connect(request_head))
    start, _, body = answer.partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 %d" % status)
    error = json.loads(body)["error"]
    assert set(error) == {"reason", "field", "rule", "cell", "message", "remedy"}
    assert cause in error["message"]
    assert ("cookies" in error["remedy"]) == (status == 431)
    assert b"yyy" not in body


MUCH = b"x" * LARGE_BYTES


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (with_length(LARGE_BYTES).replace(b"1.1", b"1.0") + MUCH, b".."),
        (with_length(LARGE_BYTES, "/", "connection: close") + MUCH, b".."),
        (with_length(LARGE_BYTES, "/cut") + MUCH, b"\r\n\r\n."),
        (b"GET /" + MUCH, b"}\n"),
        (b"nonsense\r\n\r\n" + MUCH, b"}\n"),
        (BUSY_CHUNKED + b"nonsense\r\n" + MUCH, b"}\n"),
    ],
    ids=["1.0", "close", "cut", "long-head", "no-http", "bad-chunk"],
)
async def test_a_client_that_still_sends_reads_the_end_of_its_answer(sent: bytes, end: bytes):
    """Closing a socket with unread bytes would reset the connection."""
    async with house() as there:
        reader, writer = await there.connect(sent)
        answer = await reader.read()
        assert answer.endswith(end)
        await writer.drain()


async def test_a_client_that_sends_on_after_the_end_is_dropped():
    async with house(unread_s=SHORT_S) as there:
        streams = await there.connect(with_length(LARGE_BYTES, "/cut"))
        assert (await ended(streams, b"x")).endswith(b"\r\n\r\n.")
        while there.limits.connections:
            streams[1].write(b"x")
            await asyncio.sleep(SHORT_S / 10)
        assert there.limits.dropped == {"unread-body": 1}


async def test_no_timer_keeps_a_connection_that_its_client_reset():
    """As load balancers end their health checks."""
    async with house() as there:
        reader, writer = await there.connect(GET)
        assert await is_answered(reader)
        (connection,) = there.limits.connections
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        while there.limits.connections:
            await asyncio.sleep(SHORT_S / 10)
        assert connection.timeout_keep_alive_task is None


@pytest.mark.process
def test_open_files_go_up_to_the_hard_limit_and_leave_room_for_a_burst():
    program = """
import resource
from hrm_edge_server import server
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 1000))
fitting = server._with_descriptors_for(4096)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(fitting + server.BACKLOG + server.SPARE_FILES)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
print(server._with_descriptors_for(4096))
"""
    assert ran(sys.executable, "-c", program).stdout == "1000\n1000\n32\n"


@pytest.mark.process
def test_burst_of_connections_is_refused_in_few_words():
    """Ten times as many as it may hold, all at once; a client that tries again is answered."""
    with starting(max_connections=100) as server, contextlib.ExitStack() as burst:
        for _ in range(1000):
            connection = burst.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.port))
        wait_for(lambda: server.status("/livez") == 200)
        assert len(server.log) < 10_000
        assert "Traceback" not in server.log
