"""The application over an engine in a thread: pages, its description, engines that keep dying, and nothing left."""

import asyncio
import functools
import inspect
import json
import logging
import re
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from asgi_tools import QUICK, Call, app_over, client_of, serving, until
from scripted_server import NAME, examples, scripted_model
from service_tools import wait_for

from hrm_edge_runtime.api.schema import SolveAnswer
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.cli import serve_command
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.http import body
from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_runtime.worker.process import BACKOFF_CAP_S, HEALTHY_S, ThreadEngine

JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
QUESTIONS = [json.dumps({"puzzle": question}).encode() for question in examples()]
SERVED: Any = {"precision": "fp32", "num_slots": 1, "max_attempts": 1}
STATUSES = {200, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503, 504}


def test_a_burst_of_150_requests_is_answered_by_a_server_with_its_own_limits() -> None:
    limit = inspect.signature(serve_command).parameters["queue_limit"].default
    client = EngineClient(
        functools.partial(ThreadEngine, functools.partial(QUICK, queue_limit=limit)),
        {NAME: 2 + limit},
    )
    with serving(create_app(client, [scripted_model(num_slots=2)]), client) as http:

        async def burst() -> list[httpx.Response]:
            return await asyncio.gather(
                *(http.http.post("/solve", content=QUESTIONS[0], headers=JSON) for _ in range(150))
            )

        assert [answer.status_code for answer in http.portal.call(burst)] == [200] * 150


def test_pages_need_nothing_from_anywhere_else() -> None:
    with serving(*app_over(QUICK), until_ready=False) as http:
        for path in ("/", "/docs"):
            response = http.get(path)
            assert response.headers["content-type"].startswith("text/html")
            assert "default-src 'none'" in response.headers["content-security-policy"]
            assert not re.findall(
                r"(?:src|href|url|import)\s*[=(]\s*[\"']?\s*(?:https?:)?//", response.text
            )


def test_description_declares_every_status_and_takes_the_example() -> None:
    with serving(*app_over(QUICK)) as http:
        described = http.get("/openapi.json").json()
        solve = described["paths"]["/solve"]["post"]
        assert {int(status) for status in solve["responses"]} == STATUSES
        body = solve["requestBody"]["content"]["application/json"]["schema"]
        assert body["additionalProperties"] is False
        assert list(body["properties"]) == [
            "puzzle", "kind", "model", "policy", "max_segments", "attempts", "how",
            "deadline_ms", "best_so_far", "priority",
        ]  # fmt: skip
        for example in solve["requestBody"]["content"]["application/json"]["examples"].values():
            assert http.post("/solve", json=example["value"]).status_code == 200
        assert "the digits 1 to 4" in body["properties"]["puzzle"]["description"]
        for path, methods in described["paths"].items():
            assert {"401", "405", "500"} <= set(next(iter(methods.values()))["responses"]), path
        assert "503" in described["paths"]["/readyz"]["get"]["responses"]


def test_description_shows_a_question_in_every_notation_and_an_answer_of_each_kind() -> None:
    models = {
        name: ServedModel.of(Bundle.open(find_bundle(name)), **SERVED)
        for name in ("maze-8x8", "arc-7x7")
    }
    app = create_app(
        EngineClient(functools.partial(ThreadEngine, QUICK), dict.fromkeys(models, 1)),
        [*models.values()],
    )
    solve = app.openapi()["paths"]["/solve"]["post"]
    asked = solve["requestBody"]["content"]["application/json"]["examples"]
    assert [name.partition(", ")[0] for name in asked] == ["maze-8x8"] * 6 + ["arc-7x7"] * 4
    answers = solve["responses"]["200"]["content"]["application/json"]["examples"]
    maze, arc = (answers[name]["value"] for name in models)
    assert (maze["verified"], maze["route"]["cost"]) == (True, maze["route"]["optimum"])
    assert np.array(arc["solution"]).ndim == 2
    for answer in (maze, arc):
        SolveAnswer.model_validate(answer)


def test_curl_needs_no_header_and_a_body_that_is_no_json_is_told_so() -> None:
    with serving(*app_over(QUICK)) as http:
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert http.post("/solve", content=QUESTIONS[0], headers=form).status_code == 200
        refused = http.post("/solve", content=b"puzzle=1", headers=form)
        assert (refused.status_code, refused.json()["error"]["rule"]) == (422, "not-json")
        assert http.post("/solve/batch", content=QUESTIONS[0], headers=form).status_code == 200
        assert http.get("/health").json() == http.get("/readyz").json() == {"state": "ready"}


def test_metrics_tell_of_answers_segments_and_memory() -> None:
    with serving(*app_over(QUICK)) as http:
        for question in examples():
            assert http.post("/solve", json={"puzzle": question}).status_code == 200
        http.get("/wp-login.php")
        wait_for(
            lambda: (
                'hrm_puzzles_total{model="scripted",outcome="proven"} 8.0'
                in http.get("/metrics").text
            )
        )
        page = http.get("/metrics").text
    assert 'hrm_http_requests_total{route="/solve",status="200"} 8.0' in page
    assert 'hrm_http_requests_total{route="other",status="404"} 1.0' in page
    assert 'hrm_segments_per_puzzle_sum{model="scripted"} 16.0' in page
    assert "hrm_ready 1.0" in page
    assert "process_resident_memory_bytes" in page


def test_engine_that_never_loads_is_tried_again_and_again() -> None:
    asked = threading.Event()

    def broken() -> Lanes:
        asked.wait(10)
        raise FileNotFoundError("step.fp32.onnx is gone")

    with serving(*app_over(broken), until_ready=False) as http:
        assert http.get("/readyz").json()["error"]["reason"] == "loading"
        asked.set()
        wait_for(lambda: http.engine_client.process.num_losses >= 3)
        refused = http.get("/readyz")
        assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "engine-lost")
        assert http.get("/livez").status_code == 200
        engine = http.get("/slots").json()["engine"]
        assert engine["losses_in_a_row"] >= 2
        assert engine["last_error"] == "FileNotFoundError: step.fp32.onnx is gone"


def test_engine_that_raises_in_a_step_fails_its_requests_and_is_replaced() -> None:
    class MemoryGoneError(Exception):
        pass

    def bench() -> Lanes:
        made = QUICK()
        engine = made[NAME].lane.engine
        steps = iter([len(benches) == 0])
        benches.append(made)
        play = engine.step

        def step(num_active: int) -> object:
            if next(steps, False):
                raise MemoryGoneError("out of memory")
            return play(num_active)

        engine.step = step
        return made

    benches: list[Lanes] = []

    with serving(*app_over(bench)) as http:
        body = {"puzzle": next(iter(examples()))}
        refused = http.post("/solve", json=body)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "engine-lost")
        assert http.engine_client.process.last_error == "MemoryGoneError: out of memory"
        wait_for(lambda: http.engine_client.state == "ready")
        assert http.post("/solve", json=body).json()["solved"]


def test_body_that_comes_too_slowly_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"puzzle": '
        await asyncio.sleep(30.0)

    with serving(*app_over(QUICK), until_ready=False) as http:
        refused = http.post(
            "/solve", content=trickle(), headers={"content-type": "application/json"}
        )
        assert (refused.status_code, refused.json()["error"]["reason"]) == (408, "body-too-slow")


@pytest.mark.parametrize(("method", "path"), [("GET", "/slots"), ("POST", "/solve")])
async def test_fault_of_our_own_is_a_500_in_the_same_shape_with_id_and_safe_headers(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = app_over(QUICK)
    app.state.service.slots = app.state.service.solve = lambda *_, **__: 1 / 0
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    with caplog.at_level(logging.INFO):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            headers = {"x-request-id": "job-1", **JSON}
            response = await http.request(method, path, content=QUESTIONS[0], headers=headers)
    assert (response.status_code, response.json()["error"]["reason"]) == (500, "internal")
    assert (response.headers["x-request-id"], response.headers["x-content-type-options"]) == (
        "job-1",
        "nosniff",
    )
    assert "refused: internal" in caplog.text


@pytest.mark.parametrize("path", ["/solve", "/solve/stream"])
async def test_client_that_leaves_in_the_middle_of_its_body_is_no_fault_of_ours(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        call = Call(app_over(QUICK)[0], path, JSON)
        call.give(b'{"puzzle": ')
        call.leave()
        await call.task
    assert call.status == 499
    assert all(record.exc_info is None for record in caplog.records)


def test_waiting_grows_with_losses_in_a_row_and_starts_over_after_health() -> None:
    _, client = app_over(QUICK)
    waits = [client.process.back_off(0.0) for _ in range(12)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == BACKOFF_CAP_S
    assert client.process.back_off(HEALTHY_S + 1) == pytest.approx(0.1)


async def test_no_task_place_or_slot_outlives_its_request() -> None:
    app, engine_client = app_over(lambda: QUICK(step_s=0.005, segments=4))
    async with client_of(app, engine_client) as http:
        await http.post("/solve", content=QUESTIONS[0], headers=JSON)
        before = _tasks()
        for body in (QUESTIONS[0], b"{", b'{"puzzle": "1"}'):
            await asyncio.gather(
                *(http.post("/solve", content=body, headers=JSON) for _ in range(20))
            )
        calls = [Call(app, path, JSON) for path in ("/solve", "/solve/stream") for _ in range(4)]
        calls += [
            Call(app, "/solve/batch", NDJSON, query=f"order={order}")
            for order in ("kept", "as-finished")
        ]
        for call in calls:
            call.give(
                b"\n".join(QUESTIONS[:1] if call not in calls[8:] else QUESTIONS * 3), more=False
            )
        await asyncio.sleep(0.01)
        for call in calls[::2]:
            call.leave()
        await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 60)
        await until(lambda: _tasks() <= before)
        assert engine_client.num_waiting == 0
        assert engine_client.limits.num_taken("scripted") == 0
        await until(lambda: _lane(engine_client) == (0, 0))


def _lane(engine_client: object) -> tuple[int, int]:
    lane = engine_client.snapshot.lanes["scripted"]  # type: ignore[attr-defined]
    return lane.num_active, lane.num_queued


def _tasks() -> set[str]:
    """The names of all that live; every task has a name of its own."""
    return {task.get_name() for task in asyncio.all_tasks()}
