"""Crowds of batches: their lines wait in order, and nobody else pays for them."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from asgi_tools import QUICK, app_over, client_of
from echo_bundle import write_echo_bundle
from scripted_server import QUESTION
from service_tools import NDJSON, PATIENCE_S, Server, head, hrm_serve, wait_for

from hrm_edge_server import admission, batch
from hrm_host.machine import cpu_seconds

pytestmark = pytest.mark.process

OPEN = "123434122143432."
MAZE = "S....\n.....\n.....\n.....\n....G"
NUM_ROUNDS = 100


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """Two models; `slow` takes a second over a board that it cannot solve."""
    slow = write_echo_bundle(tmp_path / "slow.bundle", name="slow", max_segments=20_000)
    mazes = write_echo_bundle(tmp_path / "mazes.bundle", name="mazes", puzzle="maze-5x5")
    with hrm_serve(slow, mazes, "--threads=1", "--slots=2") as server:
        yield server


def lines(count: int, **fields: object) -> bytes:
    line = json.dumps(fields) + "\n"
    return line.encode() * count


def test_no_line_that_names_no_model_is_refused(server: Server) -> None:
    """16 batches of 60 lines share 129 places, in a lane that is not their first candidate's."""

    def reasons(_: int) -> list[str]:
        body = lines(60, puzzle=MAZE)
        answer = httpx.post(
            f"{server.url}/solve/batch", content=body, headers=NDJSON, timeout=PATIENCE_S
        )
        answers = [json.loads(line) for line in answer.text.splitlines()]
        assert sorted(one["line"] for one in answers) == list(range(1, 61))
        return [one["error"]["reason"] for one in answers if "error" in one]

    with ThreadPoolExecutor(16) as pool:
        refused = [reason for each in pool.map(reasons, range(16)) for reason in each]
    assert refused == []


async def test_a_line_waits_for_its_place_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "PATIENCE_S", 0.05)
    monkeypatch.setattr(admission, "LOOK_AGAIN_S", 0.02)
    app = app_over(lambda: QUICK(step_s=0.02))
    async with client_of(app) as http:
        body = lines(40, puzzle=QUESTION)
        answer = await http.post("/solve/batch", content=body, headers=NDJSON)
        answers = [json.loads(line) for line in answer.text.splitlines()]
        assert sorted(one["line"] for one in answers) == list(range(1, 41))
        assert all("answer" in one for one in answers)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What another client's maze costs the HTTP process, and how long /livez takes."""

    maze_cpu_s: float
    livez_p99_s: float


def cost_beside(server: Server, num_batches: int, lines_each: int) -> Cost:
    with contextlib.ExitStack() as connections:
        for _ in range(num_batches):
            connections.enter_context(open_batch(server, lines_each))
        wait_for(lambda: waiting(server) > 100)
        time.sleep(1.0)
        livez_s = []
        before_s = cpu_seconds(server.process.pid)
        for _ in range(NUM_ROUNDS):
            assert server.solve(MAZE, model="mazes").status_code == 200
            began_s = time.perf_counter()
            assert server.status("/livez") == 200
            livez_s.append(time.perf_counter() - began_s)
        spent_s = cpu_seconds(server.process.pid) - before_s
    wait_for(lambda: waiting(server) == 0)
    return Cost(maze_cpu_s=spent_s / NUM_ROUNDS, livez_p99_s=float(np.percentile(livez_s, 99)))


def open_batch(server: Server, num_lines: int) -> socket.socket:
    """Send a batch and read nothing."""
    body = lines(num_lines, puzzle=OPEN, model="slow")
    headers = ("content-type: application/x-ndjson", f"content-length: {len(body)}")
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head("POST /solve/batch", *headers) + body)
    return connection


def waiting(server: Server) -> int:
    return int(server.slots()["waiting"])


@pytest.mark.slow
def test_a_crowd_of_batches_costs_others_no_more_than_one_batch(server: Server) -> None:
    alone = cost_beside(server, num_batches=1, lines_each=1130)
    crowd = cost_beside(server, num_batches=1130, lines_each=1)
    assert crowd.maze_cpu_s <= 2 * alone.maze_cpu_s
    assert crowd.livez_p99_s <= 4 * alone.livez_p99_s
