"""The application over an engine in a thread: description, engines that keep dying, leftovers."""

import asyncio
import json
import logging
import threading

import httpx
import pytest
from asgi_tools import QUICK, Call, app_over, client_of, engine_of, serving, until
from scripted_server import LANE, examples
from service_tools import JSON, refusal, wait_for
from starlette.testclient import TestClient

from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_runtime.worker.process import BACKOFF_CAP_S, HEALTHY_S
from hrm_edge_server.options import ServeOptions

QUESTIONS = [json.dumps({"puzzle": question}).encode() for question in examples()]
BATCHES = ("/solve/batch?order=kept", "/solve/batch?order=as-finished")


async def test_a_burst_of_150_requests_is_answered_by_a_server_with_its_own_limits():
    limit = ServeOptions.queue_limit
    app = app_over(lambda: QUICK(queue_limit=limit))
    engine_of(app).places[LANE].limit = 2 + limit
    async with client_of(app) as http:
        requests = [http.post("/solve", content=QUESTIONS[0]) for _ in range(150)]
        for answer in await asyncio.gather(*requests):
            assert answer.status_code == 200


def test_metrics_count_answers_segments_and_memory(keyless: TestClient):
    for question in QUESTIONS:
        assert keyless.post("/solve", content=question).status_code == 200
    keyless.get("/wp-login.php")
    counted = 'hrm_puzzles_total{model="scripted",outcome="proven"} 8.0'
    wait_for(lambda: counted in keyless.get("/metrics").text)
    page = keyless.get("/metrics").text
    for sample in (
        'hrm_http_requests_total{route="/solve",status="200"} 8.0',
        'hrm_http_requests_total{route="other",status="404"} 1.0',
        'hrm_answers_total{halted_by="proven",how="plain",model="scripted",status="proven"} 8.0',
        'hrm_solve_compute_seconds_count{model="scripted"} 8.0',
        'hrm_segments_per_puzzle_sum{model="scripted"} 16.0',
        "hrm_ready 1.0",
        "process_resident_memory_bytes",
    ):
        assert sample in page


def test_engine_that_never_loads_is_tried_again_and_again():
    may_fail = threading.Event()

    class GoneError(Exception):
        """Local, so it cannot be pickled."""

    def broken() -> Lanes:
        may_fail.wait(10)
        raise GoneError("step.fp32.onnx is gone")

    app = app_over(broken)
    with serving(app, until_ready=False) as http:
        assert refusal(http.get("/readyz")) == (503, "loading")
        may_fail.set()
        wait_for(lambda: engine_of(app).process.num_losses >= 3)
        assert refusal(http.get("/readyz")) == (503, "engine-lost")
        assert http.get("/livez").status_code == 200
        engine = http.get("/slots").json()["engine"]
        assert engine["losses_in_a_row"] >= 2
        assert engine["last_error"] == "GoneError: step.fp32.onnx is gone"


@pytest.mark.parametrize(("method", "path"), [("GET", "/slots"), ("POST", "/solve")])
async def test_our_own_fault_is_a_500(method: str, path: str, caplog: pytest.LogCaptureFixture):
    app = app_over(QUICK)
    app.state.service.slots = app.state.service.solve = lambda *_, **__: 1 / 0
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = {"x-request-id": "job-1", **JSON}
    with caplog.at_level(logging.INFO):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            response = await http.request(method, path, content=QUESTIONS[0], headers=headers)
    assert refusal(response) == (500, "internal")
    assert response.headers["x-request-id"] == "job-1"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "refused: internal" in caplog.text


@pytest.mark.parametrize("path", ["/solve", "/solve/stream"])
async def test_leaving_within_a_body_is_499(path: str, caplog: pytest.LogCaptureFixture):
    app = app_over(QUICK)
    with caplog.at_level(logging.INFO):
        call = Call(app, path, JSON)
        call.give(b'{"puzzle": ')
        call.leave()
        await call.task
    assert call.status == 499
    assert all(record.exc_info is None for record in caplog.records)


def test_waiting_grows_with_losses_in_a_row_and_starts_over_after_health():
    process = engine_of(app_over(QUICK)).process
    waits = [process.back_off(0.0) for _ in range(12)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == BACKOFF_CAP_S
    assert process.back_off(HEALTHY_S + 1) == pytest.approx(0.1)


async def test_no_task_place_or_slot_outlives_its_request():
    app = app_over(lambda: QUICK(step_s=0.005, segments=4))
    async with client_of(app) as http:
        await http.post("/solve", content=QUESTIONS[0])
        before = living_tasks()
        contents = (QUESTIONS[0], b"{", b'{"puzzle": "1"}') * 20
        await asyncio.gather(*(http.post("/solve", content=content) for content in contents))
        calls = []
        for path in ("/solve", "/solve/stream", *BATCHES) * 4:
            call = Call(app, path, {})
            call.give(b"\n".join(QUESTIONS * 3) if path in BATCHES else QUESTIONS[0], more=False)
            calls.append(call)
        await asyncio.sleep(0.01)
        for call in calls[::3]:
            call.leave()
        await asyncio.wait_for(asyncio.gather(*(call.task for call in calls)), 60)
        await until(lambda: living_tasks() <= before)
        assert engine_of(app).num_waiting == 0
        assert engine_of(app).places.num_taken(LANE) == 0


def living_tasks() -> set[str]:
    """Every task has a name of its own."""
    return {task.get_name() for task in asyncio.all_tasks()}
