"""`/solve/batch`: a line for each line, whatever stands in it, in bounded memory."""

import asyncio
import json
import threading
from typing import Any

import pytest
from asgi_tools import QUICK, Call, app_over, client_of, until
from scripted_server import NAME
from scripted_server import examples as scripted_examples
from service_tools import Server, running, wait_for

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.http import streams
from hrm_edge_runtime.http.body import MAX_BODY_BYTES
from hrm_edge_runtime.http.streams import PREFETCH_BYTES, lines_of
from hrm_edge_runtime.worker.lanes import Lanes

NDJSON = {"content-type": "application/x-ndjson"}
BAD_LINES = [
    b"{", b"nope", b"null", b"[]", b"{}", b'{"puzzle": 1}', b'{"puzzle": "1", "puzzle": "2"}', b"\xff\xfe",
    b'{"puzzle": "11.............."}', b'{"puzzle": "x", "model": "other"}', b'{"puzzle": "1", "attempts": 99}',
    b'{"puzzle": "' + b"1" * (MAX_BODY_BYTES + 10) + b'"}',
]  # fmt: skip


def lines_in(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.splitlines()]


def ask_all(server: Server, body: bytes, order: str) -> list[Any]:
    response = server.http.post(
        "/solve/batch", content=body, headers=NDJSON, params={"order": order}
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/x-ndjson"
    return lines_in(response.content)


@pytest.mark.process
@pytest.mark.parametrize("order", ["as-finished", "kept"])
def test_a_bad_line_is_an_error_of_that_line_and_nothing_else_is_lost(
    server: Server, examples: dict[str, str], order: str
) -> None:
    good = [json.dumps({"puzzle": question}).encode() for question in examples]
    lines = [line for pair in zip(BAD_LINES, good * 2, strict=False) for line in pair]
    answers = ask_all(server, b"\n".join([*lines, b"", b"  "]), order)
    assert sorted(answer["line"] for answer in answers) == list(range(1, len(lines) + 1))
    if order == "kept":
        assert [answer["line"] for answer in answers] == list(range(1, len(lines) + 1))
    by_line = {answer["line"]: answer for answer in answers}
    for number, line in enumerate(lines, start=1):
        if line in good:
            assert by_line[number]["answer"]["solution"] == examples[json.loads(line)["puzzle"]]
        else:
            error = by_line[number]["error"]
            assert error["message"], line[:50]
            assert error["remedy"], line[:50]
    assert by_line[2 * len(BAD_LINES) - 1]["error"]["reason"] == "line-too-large"


@pytest.mark.process
def test_an_empty_batch_has_an_empty_answer_and_other_bodies_are_refused(server: Server) -> None:
    assert ask_all(server, b"", "kept") == []
    wrong_type = server.http.post(
        "/solve/batch", content=b"{}", headers={"content-type": "text/plain"}
    )
    assert (wrong_type.status_code, wrong_type.json()["error"]["reason"]) == (
        415,
        "unsupported-media-type",
    )
    wrong_order = server.http.post(
        "/solve/batch", content=b"", headers=NDJSON, params={"order": "random"}
    )
    assert (wrong_order.status_code, wrong_order.json()["error"]["field"]) == (422, "order")


@pytest.mark.process
def test_many_lines_are_each_answered_once_and_single_requests_go_first(
    examples: dict[str, str],
) -> None:
    with running(slots=2, queue_limit=4, step_s=0.02, segments=2) as server:
        server.wait_until_ready()
        question = next(iter(examples))
        body = "\n".join(json.dumps({"puzzle": question}) for _ in range(60)).encode()

        async def run() -> tuple[list[Any], list[int]]:
            batch = asyncio.to_thread(ask_all, server, body, "as-finished")
            task = asyncio.ensure_future(batch)
            await asyncio.to_thread(wait_for, lambda: server.slots()["waiting"] > 0)
            singles = [
                (await asyncio.to_thread(server.solve, question)).status_code for _ in range(5)
            ]
            return await task, singles

        answers, singles = asyncio.run(run())
        assert sorted(answer["line"] for answer in answers) == list(range(1, 61))
        assert all(answer["answer"]["solved"] for answer in answers)
        assert singles == [200] * 5


@pytest.mark.parametrize("order", ["as-finished", "kept"])
async def test_no_more_is_read_than_the_client_takes(order: str) -> None:
    app, engine_client = app_over(QUICK)
    async with client_of(app, engine_client):
        window = engine_client.limits.batch_limit("scripted")
        question = next(iter(scripted_examples()))
        call = Call(app, "/solve/batch", NDJSON, query=f"order={order}")
        await until(lambda: call.status == 200)
        call.may_send.clear()
        line = json.dumps({"puzzle": question}).encode() + b" " * (PREFETCH_BYTES // 4) + b"\n"
        for _ in range(50):
            call.give(line)
        call.give(b"", more=False)
        await until(lambda: call.num_taken > window)
        await asyncio.sleep(0.3)
        assert call.num_taken <= window + 1 + PREFETCH_BYTES // len(line) + 2
        call.may_send.set()
        await asyncio.wait_for(call.task, 60)
        assert sorted(line["line"] for line in lines_in(call.body)) == list(range(1, 51))


async def test_a_client_that_leaves_ends_its_batch_and_frees_the_places() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.1, segments=16))
    async with client_of(app, engine_client):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(
            b"".join(json.dumps({"puzzle": one}).encode() + b"\n" for one in scripted_examples())
        )
        await until(lambda: engine_client.num_waiting > 1)
        call.leave()
        await asyncio.wait_for(call.task, 60)
        assert engine_client.num_waiting == 0
        assert not engine_client.limits.is_full("scripted", for_batch=True)


def test_lines_are_the_same_however_the_body_is_cut() -> None:
    body = b"one\n\n  two\r\n" + b"x" * (MAX_BODY_BYTES + 1) + b"\nlast"

    async def pieces(size: int) -> Any:
        for start in range(0, len(body), size):
            yield body[start : start + size]

    async def run(size: int) -> list[tuple[int, object]]:
        return [(number, type(line) if isinstance(line, ServiceError) else line) async for number, line in lines_of(pieces(size))]  # fmt: skip # noqa: E501

    expected = [(1, b"one"), (3, b"two"), (4, ServiceError), (5, b"last")]
    assert [asyncio.run(run(size)) for size in (1000, 7, len(body))] == [expected] * 3


async def test_batches_that_come_at_once_share_their_half_of_the_places_and_no_line_is_refused() -> (
    None
):
    app, engine_client = app_over(QUICK)
    async with client_of(app, engine_client):
        lines = b"".join(
            json.dumps({"puzzle": one}).encode() + b"\n" for one in [*scripted_examples()] * 4
        )
        calls = [Call(app, "/solve/batch", NDJSON) for _ in range(4)]
        for call in calls:
            call.give(lines, more=False)
        await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 60)
        assert [len(lines_in(call.body)) for call in calls] == [32] * 4
        assert all("answer" in line for call in calls for line in lines_in(call.body))
        assert engine_client.limits.num_taken("scripted") == 0


async def test_others_have_their_turn_between_two_lines_of_a_batch() -> None:
    app, engine_client = app_over(QUICK)
    engine_client.limits.open(NAME, 1000)
    turns, num_lines = 0, 400
    async with client_of(app, engine_client):
        call = Call(app, "/solve/batch", NDJSON)
        call.give(b"x\n" * num_lines, more=False)
        while not call.task.done():
            turns += 1
            await asyncio.sleep(0)
        assert len(lines_in(call.body)) == num_lines
    assert turns > num_lines


async def test_lines_wait_for_a_missing_engine_once_a_batch_and_are_taken_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "ADMISSION_WAIT_S", 0.2)
    begins, waits = threading.Event(), list[float]()

    def bench() -> Lanes:
        begins.wait(60)
        return QUICK()

    app, engine_client = app_over(bench)
    admit = engine_client.admit

    async def told(candidates: Any, *, wait_s: float | None = None) -> Any:
        waits.append(wait_s or 0.0)
        return await admit(candidates, wait_s=wait_s)

    monkeypatch.setattr(engine_client, "admit", told)
    line = json.dumps({"puzzle": next(iter(scripted_examples()))}).encode() + b"\n"
    async with client_of(app):
        call = Call(app, "/solve/batch", NDJSON, query="order=kept")
        call.give(line * 20)
        await until(lambda: len(lines_in(call.body)) == 20)
        assert {one["error"]["reason"] for one in lines_in(call.body)} == {"loading"}
        assert waits == [0.2, *[0.0] * 19]
        begins.set()
        await until(lambda: engine_client.state == "ready")
        call.give(line * 2, more=False)
        await asyncio.wait_for(call.task, 60)
        assert all("answer" in one for one in lines_in(call.body)[20:])
        assert waits[20:] == [0.0, 0.2]
