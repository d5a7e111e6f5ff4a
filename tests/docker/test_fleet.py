"""The shipped proxies in front of one server, and HAProxy in front of a fleet: nothing is lost."""

import contextlib
import json
import os
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import pytest
from proxy_tools import CONFIGURATION, proxied, proxy
from scripted_server import examples
from service_tools import NDJSON, PATIENCE_S, Server, running, scripted_command, starting, wait_for

import hrm_edge
from hrm_edge_runtime.api.schema import ErrorDetail
from hrm_edge_server.auth import Key, hash_of, new_secret, write_keys
from hrm_edge_server.routes import CLIENT, ROUTES

SECRET = new_secret()
PUZZLES = examples()
BATCH = "\n".join(json.dumps({"puzzle": puzzle}) for puzzle in PUZZLES)
NUM_BOARDS = 3
STEP_S = 0.05
SEGMENTS = 3
SLOTS = 2
CAPACITY = NUM_BOARDS * SLOTS / (STEP_S * SEGMENTS)  # puzzles per second
LOAD = 0.6  # keeps two boards busy nine tenths of the time
NUM_REQUESTS = 240
NUM_CLIENTS = 100
OWN_KEY = {"x-api-key": SECRET}
pytestmark = pytest.mark.process


def test_the_proxy_passes_the_routes_of_clients_and_no_others():
    """The lines of the configuration follow from the tags and paths of the routes."""
    expected = {"read_path": {"/web/", "/openapi.json"}, "send_path": set[str]()}
    for route in ROUTES:
        if CLIENT in route.tags:
            name = "read_path" if "GET" in route.methods else "send_path"
            expected[name].add(re.sub(r"\{\w+\}", "[^/]+", route.path))
    found = {"read_path": set(), "send_path": set()}
    for line in CONFIGURATION.read_text().splitlines():
        words = line.split()
        if words[:1] == ["acl"] and words[1] in found:
            paths = {word.removeprefix("^").removesuffix("$") for word in words[3:]}
            found[words[1]] |= paths
    assert found == expected


def test_a_client_beyond_the_limit_gets_our_error_and_another_does_not(tmp_path: Path):
    """A key counts for itself, wherever it comes from; a request without one counts by address."""
    with board_with() as board, proxy(tmp_path, [board], SECRET, limit=20) as url:
        for key in ("first", "second", None):
            headers = {} if key is None else {"x-api-key": key}
            with httpx.Client(base_url=url, headers=headers) as http:
                answers = [http.get("/livez") for _ in range(30)]
            statuses = [answer.status_code for answer in answers]
            assert statuses[:20] == [200] * 20
            assert statuses[-1] == 429
            assert answers[-1].headers["retry-after"] == "10"
            assert set(answers[-1].json()["error"]) == set(ErrorDetail.model_fields)
        hidden = httpx.get(f"{url}/metrics", headers={"x-api-key": "third"})
        assert (hidden.status_code, hidden.json()["error"]["reason"]) == (404, "unknown-route")


@pytest.mark.slow
def test_a_board_joins_by_its_name(tmp_path: Path):
    with board_with() as first, board_with() as second:
        boards = [first]
        with proxy(tmp_path, boards, SECRET) as url:
            boards.append(second)
            first.process.send_signal(signal.SIGTERM)
            assert first.exit_status() == 0
            wait_for(lambda: httpx.get(f"{url}/readyz").status_code == 200)
            question, solution = next(iter(PUZZLES.items()))
            sent = httpx.post(f"{url}/solve", json={"puzzle": question})
            assert sent.json()["solution"] == solution


@contextlib.contextmanager
def fleet(folder: Path) -> Generator[tuple[str, list[Server]]]:
    keys = folder / "keys"
    write_keys(keys, [Key(label="fleet", sha256=hash_of(SECRET))])
    with contextlib.ExitStack() as stack:
        boards = [stack.enter_context(board_with(keys=keys)) for _ in range(NUM_BOARDS)]
        url = stack.enter_context(proxy(folder, boards, SECRET))
        yield url, boards


@contextlib.contextmanager
def board_with(**options: Path) -> Generator[Server]:
    with starting(step_s=STEP_S, segments=SEGMENTS, slots=SLOTS, queue_limit=4, **options) as board:
        board.http.headers.update(OWN_KEY)
        board.wait_until_ready()
        yield board


def solved(http: httpx.Client, url: str, puzzle: str, begin_s: float) -> int:
    """Send a puzzle at its moment; return the status, or 0 for a wrong answer."""
    time.sleep(max(0.0, begin_s - time.monotonic()))
    answer = http.post(f"{url}/solve", json={"puzzle": puzzle}, headers=OWN_KEY)
    if answer.status_code == 200 and answer.json()["solution"] != PUZZLES[puzzle]:
        return 0
    return answer.status_code


@pytest.mark.slow
@pytest.mark.parametrize("farewell", [signal.SIGKILL, signal.SIGTERM])
def test_no_request_is_lost_when_a_board_dies(tmp_path: Path, farewell: signal.Signals):
    """Under an open loop, one board is killed with its engine, or ended with SIGTERM."""
    limits = httpx.Limits(max_connections=NUM_CLIENTS, max_keepalive_connections=0)
    with (
        fleet(tmp_path) as (url, boards),
        httpx.Client(timeout=PATIENCE_S, limits=limits) as http,
        ThreadPoolExecutor(NUM_CLIENTS) as pool,
    ):
        rng = random.Random(5)
        begin_s = time.monotonic() + 0.5
        sent = []
        for _ in range(NUM_REQUESTS):
            begin_s += rng.expovariate(LOAD * CAPACITY)
            puzzle = rng.choice(list(PUZZLES))
            sent.append(pool.submit(solved, http, url, puzzle, begin_s))
        wait(sent[: NUM_REQUESTS // 3])
        victim = boards[0]
        wait_for(lambda: victim.num_waiting >= SLOTS, every_s=0.001)
        if farewell == signal.SIGKILL:
            os.killpg(victim.process.pid, signal.SIGKILL)
        else:
            victim.process.send_signal(signal.SIGTERM)
        statuses = [future.result() for future in sent]
        if farewell == signal.SIGTERM:
            assert victim.exit_status() == 0
    assert Counter(statuses) == {200: NUM_REQUESTS}


@pytest.mark.slow
def test_the_fleet_knows_its_keys_and_loses_no_body(tmp_path: Path):
    """An offer of another protocol changes nothing for the body that comes with it."""
    with fleet(tmp_path) as (url, boards), httpx.Client(base_url=url, headers=OWN_KEY) as http:
        assert http.get("/models", headers={"x-api-key": "wrong"}).status_code == 401
        for protocol in ("h2c", "websocket", "x"):
            http.headers.update({"connection": "Upgrade", "upgrade": protocol})
            for puzzle, solution in PUZZLES.items():
                answer = http.post("/solve", json={"puzzle": puzzle})
                assert answer.json()["solution"] == solution
            batch = http.post("/solve/batch", content=BATCH, headers=NDJSON)
            assert batch.text.count('"verified":true') == len(PUZZLES)
    for board in boards:
        assert "not-json" not in board.log


GONE = {"nginx.conf": 502, "Caddyfile": 502, "haproxy.cfg": 503}  # without its server


@pytest.fixture(scope="module")
def board() -> Iterator[Server]:
    with running() as board:
        yield board


@pytest.mark.parametrize("name", GONE)
def test_a_proxy_passes_page_answers_streams_and_batches(name: str, board: Server, tmp_path: Path):
    with (
        proxied(name, board, tmp_path) as url,
        hrm_edge.Client(url, patience_s=PATIENCE_S) as client,
    ):
        assert "<html" in httpx.get(url).text
        replies = client.solve_many([*PUZZLES])
        assert [reply.solution for reply in replies] == [*PUZZLES.values()]
        *segments, answer = client.stream(next(iter(PUZZLES)))
        assert len(segments) == answer.segments
        own_page = {"origin": url, "sec-fetch-site": "same-origin"}
        sent = httpx.post(f"{url}/solve", json={"puzzle": next(iter(PUZZLES))}, headers=own_page)
        assert sent.status_code == 200


def test_a_restart_behind_a_proxy_loses_no_answer(tmp_path: Path):
    with (
        running() as board,
        contextlib.ExitStack() as stack,
        ThreadPoolExecutor(len(GONE)) as pool,
    ):
        solving = []
        for name, status in GONE.items():
            url = stack.enter_context(proxied(name, board, tmp_path))
            client = hrm_edge.Client(url, patience_s=PATIENCE_S, connections=2)
            stack.enter_context(client)
            solving.append((url, status, pool.submit(client.solve_many, [*PUZZLES] * 12)))
        wait_for(lambda: board.num_waiting > 2 * len(GONE))
        board.process.send_signal(signal.SIGTERM)
        assert board.exit_status() == 0
        for url, status, solved in solving:
            assert httpx.get(f"{url}/livez", timeout=PATIENCE_S).status_code == status
            assert not solved.done()
        with Server(scripted_command(), port=board.port):
            for _, _, solved in solving:
                assert [reply.solution for reply in solved.result()] == [*PUZZLES.values()] * 12
