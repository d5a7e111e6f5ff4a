"""How streams and batches begin, wait and end, as a client on a socket sees them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgi_tools import QUICK, app_over, client_of, live
from scripted_server import QUESTION
from service_tools import head

from hrm_edge_server import batch, growing

PUZZLE = json.dumps({"puzzle": QUESTION}).encode()
LAST_CHUNK = b"\r\n0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
ROUTES = ["/solve", "/solve/stream", "/solve/batch"]
SHORT_S = 0.2


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


BATCH = head("POST /solve/batch", "transfer-encoding: chunked")


def lines_in(answer: bytes) -> list[Any]:
    """The JSON lines of a chunked answer."""
    body = answer.partition(b"\r\n\r\n")[2]
    lines = []
    for line in body.split(b"\r\n"):
        if b"{" in line:
            lines += [json.loads(one) for one in line.splitlines()]
    return lines


async def exchanged(port: int, content: bytes) -> bytes:
    """Send content over one connection; read until the server ends it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(content)
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    return answer


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = app_over(QUICK)
    async with client_of(app), live(app) as port:
        yield port


@pytest.fixture
async def slow_port() -> AsyncIterator[int]:
    app = app_over(lambda: QUICK(step_s=1.0))
    async with client_of(app), live(app) as port:
        yield port


async def test_a_batch_cut_by_silence_ends_with_an_error_and_without_the_last_chunk(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch, "IDLE_SECONDS", SHORT_S)
    lines = chunk(PUZZLE + b"\n\n" + PUZZLE + b"\n" + PUZZLE[:9])
    answer = await exchanged(port, BATCH + lines)
    *answered, last = lines_in(answer)
    assert sorted(line["line"] for line in answered) == [1, 3]
    assert last["line"] == 4
    assert last["error"]["reason"] == "body-too-slow"
    assert LAST_CHUNK not in answer
    assert answer.count(b"HTTP/1.1 ") == 1


async def test_a_batch_that_ends_cleanly_has_all_answers_and_the_next_request_is_answered(
    port: int,
):
    after = head("GET /livez", "connection: close")
    answer = await exchanged(port, BATCH + chunk(PUZZLE + b"\n" + PUZZLE) + b"0\r\n\r\n" + after)
    body, _, rest = answer.partition(LAST_CHUNK)
    assert len(lines_in(body)) == 2
    assert rest.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("blank", [b"\n", b"\r\n", b"  \n", b"\t\r\n"])
async def test_a_batch_of_blank_lines_ends_with_one_error(port: int, blank: bytes):
    lines = PUZZLE + b"\n" + blank * (batch.MAX_BLANK_LINES + 1)
    answer = await exchanged(port, BATCH + chunk(lines) + chunk(PUZZLE))
    first, last = lines_in(answer)
    assert first["line"] == 1
    assert last["line"] == batch.MAX_BLANK_LINES + 2
    assert last["error"]["reason"] == "too-many-blank-lines"
    assert LAST_CHUNK not in answer


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("length", [f"content-length: {len(PUZZLE)}", "transfer-encoding: chunked"])
async def test_a_client_that_expects_100_gets_it(port: int, path: str, length: str):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"POST {path}", length, "expect: 100-continue", "connection: close"))
    assert await asyncio.wait_for(reader.readexactly(len(CONTINUE)), 10) == CONTINUE
    whole = chunk(PUZZLE) + b"0\r\n\r\n" if "chunked" in length else PUZZLE
    writer.write(whole)
    answer = await asyncio.wait_for(reader.read(), 60)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"solution" in answer
    writer.close()


@pytest.mark.parametrize("path", ROUTES)
async def test_a_refused_body_is_not_awaited(port: int, path: str):
    headers = ("content-length: 9", "expect: 100-continue", "content-type: text/csv")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head(f"POST {path}", *headers))
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 415")
    writer.close()


@pytest.mark.parametrize("path", [*ROUTES, "/livez", "/", "/models"])
@pytest.mark.parametrize("keep", [(), ("connection: keep-alive",)])
async def test_http_1_0_gets_no_chunks_and_an_end_by_close(
    port: int, path: str, keep: tuple[str, ...]
):
    method = "POST" if path in ROUTES else "GET"
    body = PUZZLE if method == "POST" else b""
    request = head(f"{method} {path}", f"content-length: {len(body)}", *keep, version="1.0")
    answer = await exchanged(port, request + body)
    header, _, content = answer.partition(b"\r\n\r\n")
    assert b" 200 " in header.splitlines()[0]
    assert b"transfer-encoding" not in header.lower()
    assert b"keep-alive" not in header.lower()
    assert content
    assert content[:1] in b"{e<"


async def test_a_stream_that_waits_says_so(slow_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(growing, "PULSE_SECONDS", SHORT_S)
    length = f"content-length: {len(PUZZLE)}"
    answer = await exchanged(
        slow_port, head("POST /solve/stream", length, "connection: close") + PUZZLE
    )
    assert answer.count(b": waiting\n\n") >= 2
    assert b"event: answer" in answer
    assert answer.endswith(LAST_CHUNK)


async def test_a_client_may_be_silent_while_it_awaits_an_answer_and_gets_spaces_meanwhile(
    slow_port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(growing, "PULSE_SECONDS", SHORT_S)
    monkeypatch.setattr(batch, "IDLE_SECONDS", 3 * SHORT_S)
    answer = await exchanged(slow_port, BATCH + chunk(PUZZLE + b"\n"))
    beginning, _, end = answer.partition(b"solution")
    assert beginning.count(b"1\r\n \r\n") >= 2
    assert b"1\r\n \r\n" not in end
    first, last = lines_in(answer)
    assert first["answer"]["verified"]
    assert last["error"]["reason"] == "body-too-slow"
