"""`/solve/stream`: every segment as it happens, refusals before it begins, and nothing for a client that has left."""

import asyncio
import json
import os
import signal
from typing import Any

import httpx
import numpy as np
import pytest
from asgi_tools import QUICK, Call, app_over, client_of, until
from scripted_server import NAME
from scripted_server import examples as scripted_examples
from service_tools import PATIENCE_S, Server, running, wait_for

from hrm_edge_runtime.batching.task import SegmentEvent
from hrm_edge_runtime.http.solve import BUFFER_SIZE, EventBuffer

pytestmark = pytest.mark.process

JSON = {"content-type": "application/json"}


def events_of(text: str) -> list[tuple[str, Any]]:
    """Event names with their data; comments are left out."""
    blocks = [
        block.splitlines() for block in text.strip().split("\n\n") if not block.startswith(":")
    ]
    return [
        (name.removeprefix("event: "), json.loads(data.removeprefix("data: ")))
        for name, data in blocks
    ]


def streamed(server: Server, puzzle: object, **fields: object) -> list[tuple[str, Any]]:
    response = server.http.post("/solve/stream", json={"puzzle": puzzle, **fields})
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def test_every_segment_is_an_event_and_the_last_is_the_answer_of_solve(
    server: Server, examples: dict[str, str]
) -> None:
    question, solution = next(iter(examples.items()))
    events = streamed(server, question)
    assert [name for name, _ in events] == ["segment", "segment", "segment", "answer"]
    segments = [data for _, data in events[:-1]]
    assert [(one["segment"], one["attempt"], one["verified"]) for one in segments] == [
        (1, 0, False),
        (2, 0, False),
        (3, 0, True),
    ]
    assert [one["solution"] for one in segments] == [question, question, solution]
    assert [one["changed"] for one in segments] == [
        [],
        [],
        [at for at in range(16) if question[at] == "."],
    ]
    assert [one["margin"] for one in segments] == [-1.0, -1.0, 1.0]
    answer, solved = events[-1][1], server.solve(question).json()
    times = ("queue_ms", "compute_ms")
    assert {k: v for k, v in answer.items() if k not in times} == {
        k: v for k, v in solved.items() if k not in times
    }


def test_every_attempt_tells_its_segments_in_the_frame_of_the_question(
    server: Server, examples: dict[str, str]
) -> None:
    question = next(iter(examples))
    events = streamed(server, question, attempts=2)
    segments = [data for name, data in events if name == "segment"]
    assert [(one["attempt"], one["segment"]) for one in segments] == [
        (0, 1),
        (1, 1),
        (0, 2),
        (1, 2),
        (0, 3),
        (1, 3),
    ]
    assert {one["solution"] for one in segments if one["attempt"] == 1} == {
        question
    }  # the engine gives it back
    answer = events[-1][1]
    assert (answer["attempts"], answer["total_segments"], answer["verified"]) == (2, 6, True)


def test_what_is_refused_before_it_begins_is_an_ordinary_error(server: Server) -> None:
    for body, status in (({"puzzle": "1"}, 422), ({"puzzle": "1", "model": "x"}, 404), ({}, 422)):
        response = server.http.post("/solve/stream", json=body)
        assert (response.status_code, list(response.json())) == (status, ["error"])
    assert (
        server.http.post(
            "/solve/stream", content=b"{}", headers={"content-type": "text/plain"}
        ).status_code
        == 415
    )


def test_a_closed_connection_cancels_and_a_lost_engine_is_an_error_event(
    examples: dict[str, str],
) -> None:
    """One server for two laws, because each needs the same slow engine."""
    question = next(iter(examples))
    with running(slots=2, step_s=0.1, segments=16) as server:
        server.wait_until_ready()
        with httpx.stream(
            "POST", f"{server.url}/solve/stream", json={"puzzle": question, "attempts": 4}
        ) as response:
            lines = response.iter_lines()
            assert next(line for line in lines if line.startswith("event")) == "event: segment"
        wait_for(lambda: lane_of(server)["num_active"] == lane_of(server)["num_queued"] == 0)
        assert lane_of(server)["completed"] == {"cancelled": 4}
        with httpx.stream(
            "POST", f"{server.url}/solve/stream", json={"puzzle": question}, timeout=PATIENCE_S
        ) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("event"))
            os.kill(server.slots()["engine"]["pid"], signal.SIGKILL)
            events = events_of("\n".join(["event: segment", *lines]))
        assert events[-1][0] == "error"
        assert events[-1][1]["error"]["reason"] == "engine-lost"


async def test_a_client_that_leaves_while_it_waits_for_a_slot_is_not_solved_for() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.2, segments=16, num_slots=1))
    async with client_of(app, engine_client):
        body = json.dumps({"puzzle": "1" + "." * 15}).encode()
        refused = Call(app, "/solve/stream", JSON)  # a question with many solutions is refused
        refused.give(body, more=False)
        await refused.task
        assert refused.status == 422
        question = next(iter(scripted_examples()))
        calls = [Call(app, "/solve/stream", JSON) for _ in range(3)]
        for call in calls:
            call.give(json.dumps({"puzzle": question}).encode(), more=False)
        await until(lambda: engine_client.num_waiting == 3)
        for call in calls:
            call.leave()
        await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), PATIENCE_S)
        assert engine_client.num_waiting == 0
        await until(
            lambda: (
                engine_client.snapshot is not None
                and not engine_client.snapshot.lanes[NAME].num_active
            )
        )


async def test_an_event_buffer_leaves_out_the_oldest_when_nobody_reads() -> None:
    buffer = EventBuffer(BUFFER_SIZE + 1)
    for number in range(BUFFER_SIZE + 5):
        answer_T = np.zeros(1, np.int32)
        buffer.push(
            SegmentEvent(
                task_id=1, attempt=0, segment=number, answer_T=answer_T, margin=0.0, verified=None
            )
        )
    buffer.push(None)
    assert [event.segment async for event in buffer] == list(range(5, BUFFER_SIZE + 5))


def lane_of(server: Server) -> Any:
    return server.slots()["lanes"][0]["lane"]
