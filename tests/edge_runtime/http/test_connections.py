"""Connections of clients that dawdle, crowd or talk nonsense: each is ended in its time, and nobody waits for it."""

import asyncio
import contextlib
import functools
import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest
import uvicorn
from scripted_server import examples
from service_tools import PATIENCE_S, running, wait_for
from uvicorn.server import ServerState

from hrm_edge_runtime.http.connections import (
    HEADER_BYTES,
    MAX_AHEAD_BYTES,
    READ_BYTES,
    ConnectionLimits,
    GuardedProtocol,
)
from hrm_edge_runtime.http.server import DrainingServer, ServerOptions
from hrm_edge_runtime.worker.client import EngineClient

SHORT_S = 0.3
AGES_S = 30.0  # nothing here takes so long, even on a busy machine
GET = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n"
LARGE = 8 << 20
GOOD = next(iter(examples()))
CHUNKED = GET.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
CRUMBS = b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"


@dataclass(kw_only=True, eq=False)
class House:
    """A server with nothing but connection limits.

    `/` answers, `/large` says much, `/busy` waits for `leave`, `/slow` as well in the middle of its answer, `/told`
    until its client leaves, and `/echo` answers with the body.
    """

    limits: ConnectionLimits
    port: int = 0
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    waiting: int = 0
    departures: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def connect(
        self, first: bytes = b""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        self.writers.append(writer)
        writer.write(first)
        return reader, writer

    async def close(self) -> None:
        self.leave.set()
        for writer in self.writers:
            writer.close()
        await asyncio.gather(
            *(writer.wait_closed() for writer in self.writers), return_exceptions=True
        )


@contextlib.asynccontextmanager
async def house(**limits: Any) -> AsyncIterator[House]:
    enforced = {
        "max_connections": 100,
        "header_s": AGES_S,
        "unread_s": AGES_S,
        "fetch_s": AGES_S,
        **limits,
    }
    there = House(limits=ConnectionLimits(**enforced))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        there.headers += scope["headers"]
        path = scope["path"]
        if path == "/busy":
            await there.leave.wait()
        if path == "/told":
            there.waiting += 1
            while (await receive())["type"] != "http.disconnect":
                pass
            there.waiting -= 1
            there.departures += 1
            return
        body = b"." * (LARGE if path == "/large" else 2)
        if path == "/echo":
            body = await whole_body(receive)
        length = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        if path == "/slow":
            await there.leave.wait()
        await send({"type": "http.response.body", "body": body[1:]})

    state = ServerState()
    config = uvicorn.Config(
        app, log_config=None, lifespan="off", ws="none", timeout_keep_alive=int(AGES_S)
    )
    make = functools.partial(
        GuardedProtocol, limits=there.limits, config=config, server_state=state, app_state={}
    )
    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server:
        there.port = server.sockets[0].getsockname()[1]
        try:
            with anyio.fail_after(AGES_S):
                yield there
        finally:
            await there.close()
            while state.connections:
                await asyncio.sleep(0.01)


async def whole_body(receive: Any) -> bytes:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    return body


async def ended(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dribble: bytes = b""
) -> bytes:
    """All that comes until the server ends the connection, while bytes are dribbled into it without end."""

    async def keep_on() -> None:
        with contextlib.suppress(ConnectionError):
            while dribble:
                writer.write(dribble)
                await writer.drain()
                await asyncio.sleep(SHORT_S / 10)

    said = bytearray()
    task = asyncio.ensure_future(keep_on())
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(1 << 16):
            said += piece
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return bytes(said)


@pytest.mark.parametrize(
    ("beginning", "dribble"),
    [
        (b"", b""),
        (b"GET / HT", b""),
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nx: ", b""),
        (b"GET / HTTP/1.1\r\nx: ", b"a"),
    ],
)
async def test_header_that_does_not_end_is_cut_off(beginning: bytes, dribble: bytes) -> None:
    async with house(header_s=SHORT_S) as there:
        assert await ended(*await there.connect(beginning), dribble) == b""
        assert there.limits.dropped == {"slow-header": 1}
        assert not there.limits.idle


async def test_second_header_has_no_more_time_than_the_first() -> None:
    async with house(header_s=SHORT_S) as there:
        reader, writer = await there.connect(GET)
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET /")
        assert await ended(reader, writer, b"a") == b""
        assert there.limits.dropped == {"slow-header": 1}


async def test_answer_that_takes_long_is_not_cut_off() -> None:
    async with house(header_s=SHORT_S, unread_s=SHORT_S, fetch_s=SHORT_S) as there:
        reader, _ = await there.connect(GET.replace(b"/ ", b"/busy "))
        await asyncio.sleep(3 * SHORT_S)
        there.leave.set()
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        assert not there.limits.dropped


async def test_body_that_nobody_reads_is_cut_off_after_the_answer() -> None:
    async with house(unread_s=SHORT_S) as there:
        head = GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 1000000\r\n\r\n")
        said = await ended(*await there.connect(head), b"x")
        assert said.startswith(b"HTTP/1.1 200")
        assert there.limits.dropped == {"unread-body": 1}


async def test_body_that_ends_in_time_leaves_the_connection_usable() -> None:
    async with house() as there:
        reader, writer = await there.connect(
            GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 4\r\n\r\nab")
        )
        await reader.readuntil(b"..")
        writer.write(b"cd" + GET)
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        assert not there.limits.dropped


async def test_no_client_has_more_than_a_small_read_in_one_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turn, reads, take = 0, list[tuple[int, int]](), GuardedProtocol.data_received

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def noted(protocol: GuardedProtocol, data: bytes) -> None:
        reads.append((turn, len(data)))
        take(protocol, data)

    monkeypatch.setattr(GuardedProtocol, "data_received", noted)
    async with house() as there:
        counter = asyncio.ensure_future(count_turns())
        head = GET.replace(b"\r\n\r\n", b"\r\ncontent-length: 200000\r\n\r\n")
        _, writer = await there.connect(head + b"x" * 200_000)
        await writer.drain()
        while sum(size for _, size in reads) < len(head) + 200_000:
            await asyncio.sleep(0.01)
        counter.cancel()
    assert max(size for _, size in reads) <= READ_BYTES
    assert len({turn for turn, _ in reads}) == len(reads)


async def test_body_in_crumbs_is_not_read_to_its_end() -> None:
    async with house() as there:
        said = await ended(*await there.connect(CHUNKED.replace(b"/ ", b"/busy ") + CRUMBS))
        assert said.startswith(b"HTTP/1.1 400")


async def test_body_in_crumbs_behind_its_answer_ends_the_connection_and_the_answer_is_seen() -> (
    None
):
    async with house(unread_s=SHORT_S) as there:
        reader, writer = await there.connect(CHUNKED)
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        writer.write(CRUMBS + GET)
        assert await ended(reader, writer) == b""
        assert there.limits.dropped == {"unread-body": 1}


async def test_body_in_small_lines_is_read() -> None:
    async with house() as there:
        reader, writer = await there.connect(
            CHUNKED + b"20\r\n%s\r\n" % (b"x" * 32) * 5000 + b"0\r\n\r\n" + GET
        )
        for _ in range(2):
            assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        writer.close()


async def test_requests_sent_far_ahead_are_not_kept_and_the_first_is_answered() -> None:
    async with house() as there:
        reader, writer = await there.connect(
            GET.replace(b"/ ", b"/busy ") + GET * (MAX_AHEAD_BYTES // len(GET))
        )
        writer.write(GET * 1000)
        await asyncio.sleep(SHORT_S)
        there.leave.set()
        said = await ended(reader, writer)
        assert said.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in said


@pytest.mark.parametrize("behind", [b"", GET, GET * 3, b"GET / HT"])
async def test_client_that_leaves_is_seen_whatever_it_sent_behind_its_request(
    behind: bytes,
) -> None:
    async with house() as there:
        _, writer = await there.connect(GET.replace(b"/ ", b"/told ") + behind)
        while not there.waiting:
            await asyncio.sleep(0.01)
        writer.transport.abort()
        while there.waiting:
            await asyncio.sleep(0.01)
        assert there.departures == 1


@pytest.mark.parametrize(
    "behind", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 2 * HEADER_BYTES]
)
@pytest.mark.parametrize("path", [b"/busy ", b"/slow "])
async def test_nonsense_behind_a_request_never_shows_in_its_answer(
    path: bytes, behind: bytes
) -> None:
    async with house() as there:
        reader, writer = await there.connect(GET.replace(b"/ ", path) + behind)
        await asyncio.sleep(SHORT_S / 3)
        there.leave.set()
        said = await ended(reader, writer)
        assert said.startswith(b"HTTP/1.1 200")
        assert said.count(b"HTTP/1.1") == 1
        assert said.endswith(b"..")


@pytest.mark.parametrize(
    "behind",
    [
        b"0\r\n" + b"x: y\r\n" * HEADER_BYTES,
        b"0\r\nx: " + b"y" * 2 * HEADER_BYTES,
        b"1;" + b"y" * 2 * HEADER_BYTES,
    ],
)
async def test_trailers_are_bounded_as_headers_are(behind: bytes) -> None:
    async with house() as there:
        said = await ended(
            *await there.connect(CHUNKED.replace(b"/ ", b"/busy ") + b"1\r\nx\r\n" + behind)
        )
        assert said.startswith(b"HTTP/1.1 431")


async def test_trailers_are_no_headers() -> None:
    async with house() as there:
        trailers = b"1\r\nx\r\n0\r\norigin: http://elsewhere\r\nhost: two\r\n\r\n"
        reader, _ = await there.connect(CHUNKED + trailers + GET)
        for _ in range(2):
            assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        assert [name for name, _ in there.headers] == [b"host", b"transfer-encoding", b"host"]


@pytest.mark.parametrize("is_in_one_piece", [True, False])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"x"])
@pytest.mark.parametrize(
    "body",
    [b"content-length: 4\r\n\r\nbody", b"transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"],
)
async def test_offer_of_another_protocol_is_passed_over(
    body: bytes, protocol: bytes, is_in_one_piece: bool
) -> None:
    head, end, rest = body.partition(b"\r\n\r\n")
    offer = (
        b"POST /echo HTTP/1.1\r\nhost: a\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: "
        + protocol
        + b"\r\n"
    )
    async with house() as there:
        reader, writer = await there.connect(
            offer + head + end + (rest if is_in_one_piece else b"")
        )
        if not is_in_one_piece:
            await asyncio.sleep(SHORT_S / 3)
            writer.write(rest)
        assert (await reader.readuntil(b"body")).startswith(b"HTTP/1.1 200")
        writer.write(GET)
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")


async def test_some_requests_sent_ahead_are_answered_in_their_turn() -> None:
    async with house() as there:
        reader, _ = await there.connect(GET * 64)
        for _ in range(64):
            assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("is_soon", "said"), [(True, b"HTTP/1.1 200"), (False, b"")])
async def test_client_that_only_stops_sending_is_answered_unless_that_takes_long(
    is_soon: bool, said: bytes
) -> None:
    async with house() as there:
        reader, writer = await there.connect(GET.replace(b"/ ", b"/busy "))
        writer.write_eof()
        if is_soon:
            asyncio.get_running_loop().call_later(SHORT_S / 10, there.leave.set)
        assert (await ended(reader, writer))[:12] == said


@pytest.mark.parametrize("path", [b"/large ", b"/ "])
async def test_client_that_does_not_fetch_its_answer_is_cut_off(path: bytes) -> None:
    async with house(fetch_s=SHORT_S) as there:
        reader, _ = await there.connect(GET.replace(b"/ ", path))
        while not there.limits.dropped:
            await asyncio.sleep(SHORT_S / 10)
        assert there.limits.dropped == {"slow-reader": 1}
        with contextlib.suppress(ConnectionError):
            while len(await reader.read(1 << 16)) > 2:
                pass


async def test_longest_idle_connection_makes_room_and_busy_ones_stay() -> None:
    async with house(max_connections=3) as there:
        busy, _ = await there.connect(GET.replace(b"/ ", b"/busy "))
        oldest = await there.connect(b"GET")
        while len(there.limits.idle) != 1:
            await asyncio.sleep(0.01)
        second, second_writer = await there.connect(b"GET")
        newest, _ = await there.connect(GET)
        assert (await newest.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        assert await ended(*oldest) == b""
        assert there.limits.dropped == {"made-room": 1}
        second_writer.write(GET[3:])
        assert (await second.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        there.leave.set()
        assert (await busy.readuntil(b"..")).startswith(b"HTTP/1.1 200")


async def test_one_connection_too_many_is_told_so() -> None:
    async with house(max_connections=2) as there:
        busy = [await there.connect(GET.replace(b"/ ", b"/busy ")) for _ in range(2)]
        while there.limits.idle:
            await asyncio.sleep(0.01)
        head, _, body = (await ended(*await there.connect())).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert b"Retry-After: 1" in head
        assert json.loads(body)["error"]["reason"] == "too-many-connections"
        there.leave.set()
        for reader, _ in busy:
            assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")
        reader, _ = await there.connect(GET)
        assert (await reader.readuntil(b"..")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (
            b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
        ),
        (b"GET / HTTP/1.1\r\nhost : a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nhost: a\r\n\r\n", 400),
        (b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n", 501),
        (b"GET http://a HTTP/1.1\r\nhost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 20_000, 431),
        (b"GET /" + b"y" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 60_000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_http_is_refused_in_the_one_shape_without_repeating_it(
    said: bytes, status: int
) -> None:
    async with house() as there:
        head, _, body = (await ended(*await there.connect(said))).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert set(json.loads(body)["error"]) == {
            "reason",
            "field",
            "rule",
            "cell",
            "message",
            "remedy",
        }
        assert b"yyy" not in body


@pytest.mark.process
def test_open_files_go_up_to_the_hard_limit_and_leave_room_for_a_burst() -> None:
    program = "import resource; from hrm_edge_runtime.http import server; limit = resource.RLIMIT_NOFILE; "
    program += (
        "resource.setrlimit(limit, (300, 1000)); fitting = server._with_descriptors_for(4096); "
    )
    program += "print(resource.getrlimit(limit)[0], fitting + server.BACKLOG + server.SPARE_FILES)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1000 1000\n"


def test_server_without_descriptors_says_so_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    server = DrainingServer(
        uvicorn.Config("none", log_config=None), cast(EngineClient, None), cast(ServerOptions, None)
    )
    least, limits = os.dup(0), resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(least)
    try:
        for soft in (least, least, limits[0], least):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, limits[1]))
            server.look_for_descriptors()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "new connections are closed ([Errno 24] Too many open files"
    ] * 2


@pytest.mark.process
def test_burst_of_connections_is_refused_in_few_words() -> None:
    """Ten times as many as it may hold, all at once; whoever asks again is answered."""
    with running(max_connections=100) as server, contextlib.ExitStack() as burst:
        for _ in range(1000):
            connection = burst.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", server.port))
        wait_for(lambda: server.status("/livez") == 200)
        assert len(server.log) < 10_000
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_five_hundred_slow_senders_keep_nobody_waiting() -> None:
    """Half of them dribble a header, half a body; others are answered while all of them are still there."""
    header = b"POST /solve HTTP/1.1\r\nhost: a\r\nx: "
    body = b"POST /solve HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
    with running(step_s=0.001) as server, contextlib.ExitStack() as slow:
        server.wait_until_ready()
        sockets = [
            slow.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(500)
        ]
        for number, connection in enumerate(sockets):
            connection.sendall(body if number % 2 else header)
        wait_for(lambda: "hrm_connections 501.0" in server.http.get("/metrics").text)
        assert [server.solve(GOOD).status_code for _ in range(50)] == [200] * 50
        page = server.http.get("/metrics").text
        assert "hrm_connections 501.0" in page
        assert "hrm_connections_dropped_total{" not in page
        for connection in sockets:
            connection.settimeout(PATIENCE_S)
            with contextlib.suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
        page = server.http.get("/metrics").text
        assert 'hrm_connections_dropped_total{reason="slow-header"} 250.0' in page
        assert "hrm_connections 1.0" in page
