"""`/solve/batch`: an answer for each line, whatever the line contains, in bounded memory."""

import asyncio
import json
import operator
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgi_tools import QUICK, Call, app_over, client_of, until
from scripted_server import NAME
from scripted_server import examples as scripted_examples
from service_tools import Server

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.http import streams
from hrm_edge_runtime.http.body import MAX_BODY_BYTES
from hrm_edge_runtime.http.streams import PREFETCH_BYTES, lines_of
from hrm_edge_runtime.worker.lanes import Lanes

LINE_NUMBER = operator.itemgetter("line")
NDJSON = {"content-type": "application/x-ndjson"}
LINES = [json.dumps({"puzzle": question}).encode() + b"\n" for question in scripted_examples()]
BAD_LINES = [
    b"{",
    b"null",
    b"{}",
    b'{"puzzle": "1", "puzzle": "2"}',
    b"\xff\xfe",
    b'{"puzzle": "11.............."}',
    b'{"puzzle": "x", "model": "other"}',
    b'{"puzzle": "1", "attempts": 99}',
]


def lines_in(body: bytes) -> list[Any]:
    return list(map(json.loads, body.splitlines()))


def ask_all(server: Server, body: bytes, order: str) -> list[Any]:
    params = {"order": order}
    response = server.http.post("/solve/batch", content=body, headers=NDJSON, params=params)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return lines_in(response.content)


@pytest.mark.process
@pytest.mark.parametrize("order", ["as-finished", "kept"])
def test_a_bad_line_is_an_error_of_that_line_and_nothing_else_is_lost(
    server: Server, examples: dict[str, str], order: str
) -> None:
    lines: list[bytes] = []
    for good, bad in zip(LINES, BAD_LINES, strict=True):
        lines += [bad + b"\n", good]
    answers = ask_all(server, b"".join([*lines, b"\n", b"  "]), order)
    if order == "as-finished":
        answers.sort(key=LINE_NUMBER)
    for number, (line, answer) in enumerate(zip(lines, answers, strict=True), start=1):
        assert answer["line"] == number
        if line in LINES:
            assert answer["answer"]["solution"] == examples[json.loads(line)["puzzle"]]
        else:
            assert answer["error"]["message"], line
            assert answer["error"]["remedy"], line


@pytest.mark.process
def test_an_empty_batch_has_an_empty_answer_and_other_bodies_are_refused(server: Server) -> None:
    assert ask_all(server, b"", "kept") == []
    plain = {"content-type": "text/plain"}
    wrong_type = server.http.post("/solve/batch", content=b"{}", headers=plain)
    assert wrong_type.status_code == 415
    wrong_order = server.http.post("/solve/batch?order=random", content=b"", headers=NDJSON)
    assert (wrong_order.status_code, wrong_order.json()["error"]["field"]) == (422, "order")


async def test_single_requests_go_before_the_lines_of_a_batch() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.02))
    async with client_of(app, engine_client) as http:
        batch = Call(app, "/solve/batch", NDJSON)
        batch.give(LINES[0] * 40, more=False)
        await until(lambda: engine_client.num_waiting > 2)
        single = await http.post("/solve", content=LINES[1])
        assert single.status_code == 200
        assert len(lines_in(batch.body)) < 20
        await asyncio.wait_for(batch.task, 60)
    answers = lines_in(batch.body)
    for number, answer in enumerate(sorted(answers, key=LINE_NUMBER), start=1):
        assert answer["line"] == number
        assert answer["answer"]["solved"]
    assert len(answers) == 40


@pytest.mark.parametrize("order", ["as-finished", "kept"])
async def test_no_more_is_read_than_the_client_takes(order: str) -> None:
    line = LINES[0].strip() + b" " * (PREFETCH_BYTES // 4) + b"\n"
    app, engine_client = app_over(QUICK)
    async with client_of(app, engine_client):
        window = engine_client.limits.batch_limit(NAME)
        call = Call(app, "/solve/batch", NDJSON, query=f"order={order}")
        await until(lambda: call.status == 200)
        call.may_send.clear()
        for _ in range(50):
            call.give(line)
        call.give(b"", more=False)
        await until(lambda: call.num_taken > window)
        await asyncio.sleep(0.3)
        assert call.num_taken <= window + 1 + PREFETCH_BYTES // len(line) + 2
        call.may_send.set()
        await asyncio.wait_for(call.task, 60)
    assert sorted(answer["line"] for answer in lines_in(call.body)) == list(range(1, 51))


async def test_a_batch_that_is_silent_in_both_directions_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "IDLE_SECONDS", 0.2)
    app, engine_client = app_over(QUICK)
    async with client_of(app, engine_client):
        sends_nothing = Call(app, "/solve/batch", NDJSON)
        sends_nothing.give(LINES[0])
        takes_nothing = Call(app, "/solve/batch", NDJSON)
        await until(lambda: takes_nothing.status == 200)
        takes_nothing.may_send.clear()
        takes_nothing.give(LINES[0])
        ended = asyncio.gather(sends_nothing.task, takes_nothing.task)
        await asyncio.wait_for(ended, 60)
        assert engine_client.num_waiting == 0
    assert len(lines_in(sends_nothing.body)) == 1


def test_lines_are_the_same_however_the_body_is_cut() -> None:
    body = b"one\n\n  two\r\n" + b"x" * (MAX_BODY_BYTES + 1) + b"\nlast"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def lines(size: int) -> list[tuple[int, object]]:
        found: list[tuple[int, object]] = []
        async for number, line in lines_of(pieces(size)):
            found.append((number, ServiceError if isinstance(line, ServiceError) else line))
        return found

    expected = [(1, b"one"), (3, b"two"), (4, ServiceError), (5, b"last")]
    for size in (1000, 7, len(body)):
        assert asyncio.run(lines(size)) == expected


async def test_others_have_their_turn_between_two_lines_of_a_batch() -> None:
    num_lines = 400
    num_turns = 0
    app, engine_client = app_over(QUICK)
    engine_client.limits.open(NAME, 1000)
    async with client_of(app, engine_client):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(b"x\n" * num_lines, more=False)
        while not call.task.done():
            num_turns += 1
            await asyncio.sleep(0)
        assert len(lines_in(call.body)) == num_lines
    assert num_turns > num_lines


async def test_lines_wait_for_a_missing_engine_once_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "ADMISSION_WAIT_S", 0.2)
    may_begin = threading.Event()
    may_wait: list[bool] = []

    def lanes() -> Lanes:
        may_begin.wait(60)
        return QUICK()

    app, _ = app_over(lanes)
    service = app.state.service
    admit = service.admit

    async def noted(request: SolveRequest, *, wait_until_s: float) -> Any:
        may_wait.append(wait_until_s > time.monotonic())
        return await admit(request, wait_until_s=wait_until_s)

    monkeypatch.setattr(service, "admit", noted)
    async with client_of(app):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(LINES[0] * 20, more=False)
        await asyncio.wait_for(call.task, 60)
        may_begin.set()
    assert {one["error"]["reason"] for one in lines_in(call.body)} == {"loading"}
    assert may_wait == [True, *[False] * 19]
