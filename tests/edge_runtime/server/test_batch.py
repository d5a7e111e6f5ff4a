"""`/solve/batch`, an answer for each line, and `/solve/stream`, every segment as it happens."""

import asyncio
import json
import operator
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import numpy as np
import pytest
from asgi_tools import QUICK, Call, app_over, client_of, until
from scripted_server import LANE, QUESTION, SOLUTION, examples
from service_tools import NDJSON, Server

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.batching.task import SegmentEvent
from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_server import batch
from hrm_edge_server.body import MAX_BODY_BYTES, PREFETCH_BYTES, lines_of
from hrm_edge_server.solve import BUFFER_SIZE, EventBuffer

LINE_NUMBER = operator.itemgetter("line")
LINES = [json.dumps({"puzzle": question}).encode() + b"\n" for question in examples()]
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
def test_a_bad_line_fails_alone(server: Server, order: str) -> None:
    lines: list[bytes] = []
    for good, bad in zip(LINES, BAD_LINES, strict=True):
        lines += [bad + b"\n", good]
    answers = ask_all(server, b"".join([*lines, b"\n", b"  "]), order)
    if order == "as-finished":
        answers.sort(key=LINE_NUMBER)
    for number, (line, answer) in enumerate(zip(lines, answers, strict=True), start=1):
        assert answer["line"] == number
        if line in LINES:
            assert answer["answer"]["solution"] == examples()[json.loads(line)["puzzle"]]
        else:
            assert answer["error"]["message"], line
            assert answer["error"]["remedy"], line


@pytest.mark.process
def test_an_empty_batch_has_an_empty_answer_and_other_bodies_are_refused(server: Server) -> None:
    assert ask_all(server, b"", "kept") == []
    plain = {"content-type": "text/plain"}
    wrong_type = server.http.post("/solve/batch", content=b"{}", headers=plain)
    assert wrong_type.status_code == 415


async def test_single_requests_go_before_the_lines_of_a_batch() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.02))
    async with client_of(app, engine_client) as http:
        lines = Call(app, "/solve/batch", NDJSON)
        lines.give(LINES[0] * 40, more=False)
        await until(lambda: engine_client.num_waiting > 2)
        single = await http.post("/solve", content=LINES[1])
        assert single.status_code == 200
        assert len(lines_in(lines.body)) < 20
        await asyncio.wait_for(lines.task, 60)
    answers = lines_in(lines.body)
    for number, answer in enumerate(sorted(answers, key=LINE_NUMBER), start=1):
        assert answer["line"] == number
        assert answer["answer"]["verified"]
    assert len(answers) == 40


@pytest.mark.parametrize("order", ["as-finished", "kept"])
async def test_no_more_is_read_than_the_client_takes(order: str) -> None:
    line = LINES[0].strip() + b" " * (PREFETCH_BYTES // 4) + b"\n"
    app, engine_client = app_over(QUICK)
    async with client_of(app, engine_client):
        window = engine_client.places[LANE].batch_limit
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

    expected = [(1, b"one"), (2, b""), (3, b"two"), (4, ServiceError), (5, b"last")]
    for size in (1000, 7, len(body)):
        assert asyncio.run(lines(size)) == expected


async def test_others_have_their_turn_between_two_lines_of_a_batch() -> None:
    num_lines = 400
    num_turns = 0
    app, engine_client = app_over(QUICK)
    engine_client.places[LANE].limit = 1000
    async with client_of(app, engine_client):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(b"x\n" * num_lines, more=False)
        while not call.task.done():
            num_turns += 1
            await asyncio.sleep(0)
        assert len(lines_in(call.body)) == num_lines
    assert num_turns > num_lines


async def test_a_batch_waits_once_for_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "PATIENCE_S", 0.2)
    may_begin = threading.Event()
    may_wait: list[bool] = []

    def lanes() -> Lanes:
        may_begin.wait(60)
        return QUICK()

    app, _ = app_over(lanes)
    service = app.state.service
    admit = service.admit

    async def noted(request: SolveRequest, *, patience_s: float, deadline_s: float) -> Any:
        may_wait.append(patience_s > 0)
        return await admit(request, patience_s=patience_s, deadline_s=deadline_s)

    monkeypatch.setattr(service, "admit", noted)
    async with client_of(app):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(LINES[0] * 20, more=False)
        await asyncio.wait_for(call.task, 60)
        may_begin.set()
    assert {one["error"]["reason"] for one in lines_in(call.body)} == {"loading"}
    assert may_wait == [True, *[False] * 19]


def events_of(lines: Iterable[str]) -> list[tuple[str, Any]]:
    """Event names with their data; comments are left out."""
    events: list[tuple[str, Any]] = []
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        if line.startswith("data: "):
            events.append((name, json.loads(line.removeprefix("data: "))))
    return events


def streamed(server: Server, **fields: object) -> list[tuple[str, Any]]:
    response = server.http.post("/solve/stream", json={"puzzle": QUESTION, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text.splitlines())


@pytest.mark.process
def test_every_segment_is_an_event_and_the_last_is_the_answer_of_solve(server: Server) -> None:
    *segments, (name, answer) = streamed(server)
    empty = [position for position, mark in enumerate(QUESTION) if mark == "."]
    expected = [
        (1, False, QUESTION, [], -1.0),
        (2, False, QUESTION, [], -1.0),
        (3, True, SOLUTION, empty, 1.0),
    ]
    assert name == "answer"
    for (name, data), values in zip(segments, expected, strict=True):
        assert name == "segment"
        number, is_verified, board, changed, margin = values
        assert (data["segment"], data["attempt"]) == (number, 0)
        assert (data["solution"], data["changed"]) == (board, changed)
        assert (data["verified"], data["margin"]) == (is_verified, margin)
    solved = server.solve(QUESTION).json()
    for field in ("queue_ms", "compute_ms"):
        del solved[field], answer[field]
    assert answer == solved


@pytest.mark.process
def test_every_attempt_reports_its_segments_in_the_frame_of_the_question(server: Server) -> None:
    *segments, (_, answer) = streamed(server, attempts=2)
    order = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    for (_, data), (number, attempt) in zip(segments, order, strict=True):
        assert (data["segment"], data["attempt"]) == (number, attempt)
        if attempt == 1:
            assert data["solution"] == QUESTION  # the engine gives it back
    assert (answer["attempts"], answer["total_segments"], answer["verified"]) == (2, 6, True)


async def test_an_event_buffer_leaves_out_the_oldest_when_nobody_reads() -> None:
    buffer = EventBuffer(BUFFER_SIZE + 1)
    answer_T = np.zeros(1, np.int32)
    for number in range(BUFFER_SIZE + 5):
        event = SegmentEvent(
            task_id=1, attempt=0, segment=number, answer_T=answer_T, margin=0.0, verified=None
        )
        buffer.push(event)
    buffer.push(None)
    kept = [event.segment async for event in buffer]
    assert kept == list(range(5, BUFFER_SIZE + 5))
