"""Crowds of batches: their lines wait in order, and nobody else pays for them."""

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from asgi_tools import QUICK, app_over, client_of
from echo_bundle import write_echo_bundle
from files import lines_in
from scripted_server import QUESTION
from service_tools import NDJSON, PATIENCE_S, Server, ask_and_stay, hrm_serve, wait_for

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
    with hrm_serve(slow, mazes, "--slots=2") as server:
        yield server


def lines(count: int, **fields: object) -> bytes:
    line = json.dumps(fields) + "\n"
    return line.encode() * count


def test_no_line_that_names_no_model_is_refused(server: Server):
    """16 batches of 60 lines share 129 places, in a lane that is not their first candidate's."""

    def ask(_: int) -> None:
        body = lines(60, puzzle=MAZE)
        url = f"{server.url}/solve/batch"
        require_answers(httpx.post(url, content=body, headers=NDJSON, timeout=PATIENCE_S), 60)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(ask, range(16)))


def require_answers(response: httpx.Response, num_lines: int) -> None:
    answers = lines_in(response.text)
    assert sorted(line["line"] for line in answers) == list(range(1, num_lines + 1))
    assert all("answer" in line for line in answers)


async def test_a_line_waits_for_its_place_however_long_that_takes(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(batch, "PATIENCE_S", 0.05)
    monkeypatch.setattr(admission, "LOOK_AGAIN_S", 0.02)
    app = app_over(lambda: QUICK(step_s=0.02))
    async with client_of(app) as http:
        body = lines(40, puzzle=QUESTION)
        require_answers(await http.post("/solve/batch", content=body, headers=NDJSON), 40)


def cost_beside(server: Server, num_batches: int, lines_each: int) -> tuple[float, float]:
    """Return the CPU seconds of the server for another client's maze, and the p99 of /livez."""
    with contextlib.ExitStack() as connections:
        for _ in range(num_batches):
            batch = ask_and_stay(server, OPEN, "/solve/batch", num_lines=lines_each, model="slow")
            connections.enter_context(batch)
        wait_for(lambda: server.num_waiting > 100)
        time.sleep(1.0)
        livez_s = []
        before_s = cpu_seconds(server.process.pid)
        for _ in range(NUM_ROUNDS):
            assert server.solve(MAZE, model="mazes").status_code == 200
            began_s = time.perf_counter()
            assert server.status("/livez") == 200
            livez_s.append(time.perf_counter() - began_s)
        spent_s = cpu_seconds(server.process.pid) - before_s
    wait_for(lambda: server.num_waiting == 0)
    return spent_s / NUM_ROUNDS, float(np.percentile(livez_s, 99))


@pytest.mark.slow
def test_a_crowd_of_batches_costs_others_no_more_than_one_batch(server: Server):
    maze_s, livez_s = cost_beside(server, num_batches=1, lines_each=1130)
    crowded_maze_s, crowded_livez_s = cost_beside(server, num_batches=1130, lines_each=1)
    assert crowded_maze_s <= 2 * maze_s
    assert crowded_livez_s <= 4 * livez_s
