"""`/solve/stream`: every segment as it happens; errors before it begins; nothing for leavers."""

import json
import os
import signal
from collections.abc import Iterable
from typing import Any

import httpx
import numpy as np
import pytest
from scripted_server import examples as scripted_examples
from service_tools import PATIENCE_S, Server, running

from hrm_edge_runtime.batching.task import SegmentEvent
from hrm_edge_runtime.http.solve import BUFFER_SIZE, EventBuffer

pytestmark = pytest.mark.process

QUESTION, SOLUTION = next(iter(scripted_examples().items()))


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


def streamed(server: Server, puzzle: object, **fields: object) -> list[tuple[str, Any]]:
    response = server.http.post("/solve/stream", json={"puzzle": puzzle, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text.splitlines())


def test_every_segment_is_an_event_and_the_last_is_the_answer_of_solve(server: Server) -> None:
    *segments, (name, answer) = streamed(server, QUESTION)
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
    for time in ("queue_ms", "compute_ms"):
        del solved[time], answer[time]
    assert answer == solved


def test_every_attempt_reports_its_segments_in_the_frame_of_the_question(server: Server) -> None:
    *segments, (_, answer) = streamed(server, QUESTION, attempts=2)
    order = [(1, 0), (1, 1), (2, 0), (2, 1), (3, 0), (3, 1)]
    for (_, data), (number, attempt) in zip(segments, order, strict=True):
        assert (data["segment"], data["attempt"]) == (number, attempt)
        if attempt == 1:
            assert data["solution"] == QUESTION  # the engine gives it back
    assert (answer["attempts"], answer["total_segments"], answer["verified"]) == (2, 6, True)


def test_a_lost_engine_is_an_error_event() -> None:
    with running(step_s=0.1, segments=16) as server:
        server.wait_until_ready()
        url = f"{server.url}/solve/stream"
        with httpx.stream("POST", url, json={"puzzle": QUESTION}, timeout=PATIENCE_S) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("event"))
            os.kill(server.slots()["engine"]["pid"], signal.SIGKILL)
            name, data = events_of(lines)[-1]
    assert (name, data["error"]["reason"]) == ("error", "engine-lost")


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
