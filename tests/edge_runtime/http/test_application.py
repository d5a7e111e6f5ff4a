"""The application over an engine in a thread: pages, the description of itself, and engines that keep dying."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest
from asgi_tools import QUICK, app_over, client_of, until
from scripted_server import NAME, examples

from hrm_edge_runtime.http import body
from hrm_edge_runtime.worker.lanes import LaneSet
from hrm_edge_runtime.worker.process import BACKOFF_CAP_S, HEALTHY_S, BackOff

STATUSES = {200, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503, 504}


def test_pages_need_nothing_from_anywhere_else() -> None:
    async def run() -> None:
        async with client_of(app_over(QUICK)[0]) as http:
            for path in ("/", "/docs"):
                response = await http.get(path)
                assert response.headers["content-type"].startswith("text/html")
                assert "default-src 'none'" in response.headers["content-security-policy"]
                assert not re.findall(r"(?:src|href|url|import)\s*[=(]\s*[\"']?\s*(?:https?:)?//", response.text)

    asyncio.run(run())


def test_description_declares_every_status_and_takes_the_example() -> None:
    async def run() -> None:
        app, engine_client = app_over(QUICK)
        async with client_of(app) as http:
            await until(lambda: engine_client.state == "ready")
            described = (await http.get("/openapi.json")).json()
            solve = described["paths"]["/solve"]["post"]
            assert {int(status) for status in solve["responses"]} == STATUSES
            body = solve["requestBody"]["content"]["application/json"]["schema"]
            assert body["additionalProperties"] is False
            assert list(body["properties"]) == [
                "puzzle", "kind", "model", "policy", "max_segments", "attempts", "deadline_ms",
                "best_so_far", "priority",
            ]  # fmt: skip
            example = body["properties"]["puzzle"]["examples"][0]
            assert (await http.post("/solve", json={"puzzle": example})).status_code == 200
            for path, methods in described["paths"].items():
                assert {"401", "405", "500"} <= set(next(iter(methods.values()))["responses"]), path
            assert "503" in described["paths"]["/readyz"]["get"]["responses"]

    asyncio.run(run())


def test_metrics_tell_of_answers_segments_and_memory() -> None:
    async def run() -> None:
        app, engine_client = app_over(QUICK)
        async with client_of(app) as http:
            await until(lambda: engine_client.state == "ready")
            for question in examples():
                assert (await http.post("/solve", json={"puzzle": question})).status_code == 200
            await http.get("/wp-login.php")
            await until(
                lambda: engine_client.snapshot is not None and engine_client.snapshot.lanes[NAME].num_active == 0
            )
            await asyncio.sleep(0.2)
            page = (await http.get("/metrics")).text
        assert 'hrm_http_requests_total{route="/solve",status="200"} 8.0' in page
        assert 'hrm_http_requests_total{route="other",status="404"} 1.0' in page
        assert 'hrm_puzzles_total{model="scripted",outcome="proven"} 8.0' in page
        assert 'hrm_segments_per_puzzle_sum{model="scripted"} 16.0' in page
        assert "hrm_ready 1.0" in page
        assert "process_resident_memory_bytes" in page

    asyncio.run(run())


def test_engine_that_never_loads_is_tried_again_and_again() -> None:
    def broken() -> LaneSet:
        raise FileNotFoundError("step.fp32.onnx is gone")

    async def run() -> None:
        app, engine_client = app_over(broken)
        async with client_of(app) as http:
            assert (await http.get("/readyz")).json()["error"]["reason"] == "loading"
            await until(lambda: engine_client.process.num_losses >= 3)
            refused = await http.get("/readyz")
            assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "engine-lost")
            assert (await http.get("/livez")).status_code == 200
            engine = (await http.get("/slots")).json()["engine"]
            assert engine["losses_in_a_row"] >= 2
            assert engine["last_error"] == "FileNotFoundError: step.fp32.onnx is gone"

    asyncio.run(run())


def test_engine_that_raises_in_a_step_fails_its_requests_and_is_replaced() -> None:
    class MemoryGoneError(Exception):
        pass

    def bench() -> LaneSet:
        made = QUICK()
        engine = made.lanes[NAME].engine
        steps = iter([False, False, len(benches) == 0])
        benches.append(made)
        play = engine.step

        def step(num_active: int) -> object:
            if next(steps, False):
                raise MemoryGoneError("out of memory")
            return play(num_active)

        engine.step = step
        return made

    benches: list[LaneSet] = []

    async def run() -> None:
        app, engine_client = app_over(bench)
        async with client_of(app) as http:
            await until(lambda: engine_client.state == "ready")
            body = {"puzzle": next(iter(examples()))}
            refused = await http.post("/solve", json=body)
            assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "engine-lost")
            assert engine_client.process.last_error == "MemoryGoneError: out of memory"
            await until(lambda: engine_client.state == "ready")
            assert (await http.post("/solve", json=body)).json()["solved"]

    asyncio.run(run())


def test_body_that_comes_too_slowly_is_a_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.1)

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"puzzle": '
        await asyncio.sleep(30.0)

    async def run() -> None:
        async with client_of(app_over(QUICK)[0]) as http:
            headers = {"content-type": "application/json"}
            refused = await http.post("/solve", content=trickle(), headers=headers)
            assert (refused.status_code, refused.json()["error"]["reason"]) == (408, "body-too-slow")

    asyncio.run(run())


def test_fault_of_our_own_is_a_500_in_the_same_shape() -> None:
    async def run() -> None:
        app, engine_client = app_over(QUICK)
        app.state.service.slots = lambda: 1 / 0
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            response = await http.get("/slots")
        assert (response.status_code, response.json()["error"]["reason"]) == (500, "internal")
        assert engine_client.state == "loading"

    asyncio.run(run())


def test_waiting_grows_with_losses_in_a_row_and_starts_over_after_health() -> None:
    backoff = BackOff()
    waits = [backoff.after(0.0) for _ in range(12)]
    assert waits[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert waits[-1] == BACKOFF_CAP_S
    assert backoff.after(HEALTHY_S + 1) == pytest.approx(0.1)
