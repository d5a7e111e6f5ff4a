"""What a second attack found: each hole is closed, and others are answered meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgi_tools import app_of_two, client_of
from scripted_server import examples
from service_tools import ask_and_stay, running, wait_for

GOOD = next(iter(examples()))
NDJSON = {"content-type": "application/x-ndjson"}


@pytest.mark.process
@pytest.mark.parametrize(
    "num_rounds", [1, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_a_pause_of_the_whole_server_kills_no_engine(num_rounds: int) -> None:
    """As `docker pause` does. Each pause is longer than --stall-seconds 1."""
    with (
        running(step_s=0.3, segments=8, stall_seconds=1.0) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        for _ in range(num_rounds):
            answer = pool.submit(server.solve, GOOD)
            wait_for(lambda: server.slots()["waiting"] == 1)
            os.killpg(server.process.pid, signal.SIGSTOP)
            time.sleep(1.6)
            os.killpg(server.process.pid, signal.SIGCONT)
            assert server.status("/livez") == 200
            assert answer.result().status_code == 200
        assert server.slots()["engine"]["losses"] == 0


@pytest.mark.process
def test_a_second_signal_ends_the_server_without_a_traceback() -> None:
    with running(step_s=600.0) as server, contextlib.closing(ask_and_stay(server, GOOD)):
        wait_for(lambda: server.slots()["waiting"] == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.status("/readyz") == 503)
        server.process.send_signal(signal.SIGTERM)
        server.exit_status()
    assert "Traceback" not in server.log


async def test_requests_are_rejected_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    app, engine_client = app_of_two()
    body = json.dumps({"puzzle": GOOD})

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with client_of(app, engine_client) as http:
        with monkeypatch.context() as broken:
            broken.setattr("threading.Thread.start", fail)
            refused = [
                await http.post("/solve", content=body),
                await http.get("/puzzle?kind=sudoku-4x4"),
                await http.post("/solve/batch", content=body, headers=NDJSON),
            ]
        answered = [
            await http.post("/solve", content=body),
            await http.get("/puzzle?kind=sudoku-4x4"),
        ]
    for answer, status in zip(refused, (503, 503, 200), strict=True):
        assert answer.status_code == status
        assert answer.json()["error"]["reason"] == "out-of-threads"
    for answer in answered:
        assert answer.status_code == 200
