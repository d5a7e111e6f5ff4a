"""`/solve/batch`, an answer for each line, and `/solve/stream`, every segment as it happens."""

import asyncio
import json
import operator
import threading
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from asgi_tools import QUICK, Call, app_over, client_of, engine_of, until
from files import lines_in
from scripted_server import LANE, QUESTION, SOLUTION, examples
from service_tools import NDJSON, Server

from hrm_edge.client import Client
from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.schema import SegmentView, SolveAnswer, SolveRequest
from hrm_edge_runtime.batching.task import SegmentEvent
from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_server import batch
from hrm_edge_server.body import MAX_BODY_BYTES, PREFETCH_BYTES, lines_of
from hrm_edge_server.solve import BUFFER_SIZE, EventBuffer

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


def ask_all(server: Server, body: bytes, order: str) -> list[Any]:
    params = {"order": order}
    response = server.http.post("/solve/batch", content=body, headers=NDJSON, params=params)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return lines_in(response.content)


@pytest.mark.process
@pytest.mark.parametrize("order", ["as-finished", "kept"])
def test_a_bad_line_fails_alone(server: Server, order: str):
    body = b"".join(bad + b"\n" + good for bad, good in zip(BAD_LINES, LINES, strict=True))
    answers = ask_all(server, body + b"\n  ", order)
    if order == "as-finished":
        answers.sort(key=operator.itemgetter("line"))
    assert [answer["line"] for answer in answers] == list(range(1, 17))
    for bad, refused in zip(BAD_LINES, answers[::2], strict=True):
        assert refused["error"]["message"], bad
        assert refused["error"]["remedy"], bad
    solutions = [answer["answer"]["solution"] for answer in answers[1::2]]
    assert solutions == [*examples().values()]


@pytest.mark.process
def test_an_empty_batch_has_an_empty_answer(server: Server):
    assert ask_all(server, b"", "kept") == []


async def test_single_requests_go_before_the_lines_of_a_batch():
    app = app_over(lambda: QUICK(step_s=0.02))
    async with client_of(app) as http:
        lines = Call(app, "/solve/batch", NDJSON)
        lines.give(LINES[0] * 40, more=False)
        await until(lambda: engine_of(app).num_waiting > 2)
        single = await http.post("/solve", content=LINES[1])
        assert single.status_code == 200
        assert len(lines_in(lines.body)) < 20
        await asyncio.wait_for(lines.task, 60)
    assert len(lines_in(lines.body)) == 40


@pytest.mark.parametrize("order", ["as-finished", "kept"])
async def test_no_more_is_read_than_the_client_takes(order: str):
    line = LINES[0].strip() + b" " * (PREFETCH_BYTES // 4) + b"\n"
    app = app_over(QUICK)
    async with client_of(app):
        window = engine_of(app).places[LANE].batch_limit
        call = Call(app, f"/solve/batch?order={order}", NDJSON)
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


def test_lines_are_the_same_however_the_body_is_cut():
    body = b"one\n\n  two\r\n" + b"x" * (MAX_BODY_BYTES + 1) + b"\nlast"

    async def pieces(size: int) -> AsyncIterator[bytes]:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def lines(size: int) -> list[tuple[int, object]]:
        found = []
        async for number, line in lines_of(pieces(size)):
            found.append((number, ServiceError if isinstance(line, ServiceError) else line))
        return found

    expected = [(1, b"one"), (2, b""), (3, b"two"), (4, ServiceError), (5, b"last")]
    for size in (1000, 7, len(body)):
        assert asyncio.run(lines(size)) == expected


async def test_others_have_their_turn_between_two_lines_of_a_batch():
    num_lines = 400
    num_turns = 0
    app = app_over(QUICK)
    engine_of(app).places[LANE].limit = 1000
    async with client_of(app):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(b"x\n" * num_lines, more=False)
        while not call.task.done():
            num_turns += 1
            await asyncio.sleep(0)
        assert len(lines_in(call.body)) == num_lines
    assert num_turns > num_lines


async def test_a_batch_waits_once_for_a_missing_engine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch, "PATIENCE_S", 0.2)
    may_begin = threading.Event()
    may_wait = []

    def lanes() -> Lanes:
        may_begin.wait(60)
        return QUICK()

    app = app_over(lanes)
    service = app.state.service
    admit = service.admit

    async def noted(request: SolveRequest, **waits: float) -> Any:
        may_wait.append(waits["patience_s"] > 0)
        return await admit(request, **waits)

    monkeypatch.setattr(service, "admit", noted)
    async with app.router.lifespan_context(app):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(LINES[0] * 20, more=False)
        await asyncio.wait_for(call.task, 60)
        may_begin.set()
    assert {one["error"]["reason"] for one in lines_in(call.body)} == {"loading"}
    assert may_wait == [True, *[False] * 19]


@pytest.mark.process
def test_every_segment_is_an_event_and_the_last_is_the_answer_of_solve(server: Server):
    with Client(server.url) as client:
        *segments, answer = client.stream(QUESTION)
    empty = [position for position, mark in enumerate(QUESTION) if mark == "."]
    first = SegmentView(
        segment=1, attempt=0, solution=QUESTION, changed=[], margin=-1.0, verified=False
    )
    last = {"segment": 3, "solution": SOLUTION, "changed": empty, "margin": 1.0, "verified": True}
    second = first.model_copy(update={"segment": 2})
    assert segments == [first, second, first.model_copy(update=last)]
    solved = SolveAnswer.model_validate(server.solve(QUESTION).json())
    times = {"queue_ms": 0.0, "compute_ms": 0.0}
    assert answer.model_copy(update=times) == solved.model_copy(update=times)


@pytest.mark.process
def test_every_attempt_reports_its_segments_in_the_frame_of_the_question(server: Server):
    with Client(server.url) as client:
        *segments, answer = client.stream(QUESTION, attempts=2)
    order = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    assert [(segment.segment, segment.attempt) for segment in segments] == order
    for segment in segments[1::2]:
        assert segment.solution == QUESTION  # the engine gives it back
    assert (answer.attempts, answer.total_segments, answer.verified) == (2, 6, True)


async def test_an_event_buffer_leaves_out_the_oldest_when_nobody_reads():
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
