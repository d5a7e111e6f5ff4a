"""Three servers behind HAProxy with the shipped configuration; one dies and no request is lost."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from scripted_server import examples
from service_tools import PATIENCE_S, Server, free_port, running, wait_for

from hrm_edge_runtime.http.auth import Key, hash_of, new_secret, write_keys

CONFIGURATION = Path(__file__).parents[2] / "docker" / "haproxy.cfg"
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
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
NDJSON = {"content-type": "application/x-ndjson"}
ENVIRONMENT = {**os.environ, "HRM_FLEET_KEY": SECRET}

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        HAPROXY is None, reason="no haproxy on this machine: install the package haproxy"
    ),
]


def test_shipped_configuration_is_sound() -> None:
    command = [str(HAPROXY), "-c", "-f", CONFIGURATION]
    checked = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


Outcome = Future[tuple[int, float]]
"""Status and seconds of a request."""


@dataclass(frozen=True, kw_only=True)
class Fleet:
    url: str
    boards: list[Server]


@contextlib.contextmanager
def fleet(folder: Path) -> Generator[Fleet]:
    """Run the boards behind HAProxy, and yield them when the fleet is ready."""
    keys = folder / "keys"
    write_keys(keys, [Key(label="fleet", sha256=hash_of(SECRET))])
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        boards = [stack.enter_context(board_with(keys)) for _ in range(NUM_BOARDS)]
        configuration = folder / "haproxy.cfg"
        configuration.write_text(configured(port, boards))
        command = [str(HAPROXY), "-db", "-f", str(configuration)]
        proxy = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL)
        stack.enter_context(proxy)
        stack.callback(proxy.kill)
        with httpx.Client(headers=OWN_KEY) as http:
            wait_for(lambda: answers(http, f"{url}/readyz"))
        yield Fleet(url=url, boards=boards)


@contextlib.contextmanager
def board_with(keys: Path) -> Generator[Server]:
    with running(step_s=STEP_S, segments=SEGMENTS, slots=SLOTS, queue_limit=4, keys=keys) as board:
        board.http.headers.update(OWN_KEY)
        board.wait_until_ready()
        yield board


def configured(port: int, boards: list[Server]) -> str:
    """Return the shipped configuration with these addresses."""
    text = CONFIGURATION.read_text()
    text = text.replace("bind :8000", f"bind 127.0.0.1:{port}")
    for number, board in enumerate(boards, 1):
        address = board.url.removeprefix("http://")
        text, count = re.subn(rf"(server board{number}) \S+", rf"\1 {address}", text)
        assert count == 2
    return text


def answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:
        return False


def solved(http: httpx.Client, url: str, puzzle: str, begin_s: float) -> tuple[int, float]:
    """Send a puzzle at its moment; return the status and the seconds since that moment.

    The status of a wrong answer is 0.
    """
    time.sleep(max(0.0, begin_s - time.monotonic()))
    answer = http.post(f"{url}/solve", json={"puzzle": puzzle}, headers=OWN_KEY)
    seconds = time.monotonic() - begin_s
    status = answer.status_code
    if status == 200 and answer.json()["solution"] != PUZZLES[puzzle]:
        status = 0
    return status, seconds


@pytest.mark.slow
@pytest.mark.parametrize("farewell", [signal.SIGKILL, signal.SIGTERM])
def test_no_request_is_lost_when_one_of_three_boards_dies_under_load(
    tmp_path: Path, farewell: signal.Signals
) -> None:
    """Under an open loop, one board is killed with its engine, or ended with SIGTERM."""
    limits = httpx.Limits(max_connections=NUM_CLIENTS, max_keepalive_connections=0)
    with (
        fleet(tmp_path) as there,
        httpx.Client(timeout=PATIENCE_S, limits=limits) as http,
        ThreadPoolExecutor(NUM_CLIENTS) as pool,
    ):
        sent = send_all(pool, http, there.url)
        wait(sent[: NUM_REQUESTS // 3])
        victim = there.boards[0]
        wait_for(lambda: victim.slots()["waiting"] >= SLOTS, every_s=0.001)
        num_in_flight = victim.slots()["waiting"]
        if farewell == signal.SIGKILL:
            os.killpg(victim.process.pid, signal.SIGKILL)
        else:
            victim.process.send_signal(signal.SIGTERM)
        outcomes = [future.result() for future in sent]
        if farewell == signal.SIGTERM:
            assert victim.exit_status() == 0
    statuses = Counter(status for status, _ in outcomes)
    seconds = sorted(spent_s for _, spent_s in outcomes)
    print(f"{farewell.name} with {num_in_flight} in flight: {dict(statuses)}, {spread(seconds)}")
    assert statuses == {200: NUM_REQUESTS}


def send_all(pool: ThreadPoolExecutor, http: httpx.Client, url: str) -> list[Outcome]:
    """Send random puzzles at random moments, whether or not earlier ones are answered."""
    rng = random.Random(5)
    puzzles = list(PUZZLES)
    begin_s = time.monotonic() + 0.5
    sent: list[Outcome] = []
    for _ in range(NUM_REQUESTS):
        begin_s += rng.expovariate(LOAD * CAPACITY)
        puzzle = rng.choice(puzzles)
        sent.append(pool.submit(solved, http, url, puzzle, begin_s))
    return sent


def spread(seconds: list[float]) -> str:
    p50_s = statistics.median(seconds)
    p99_s = seconds[int(0.99 * len(seconds))]
    return f"p50 {p50_s:.2f} s, p99 {p99_s:.2f} s, longest {seconds[-1]:.2f} s"


@pytest.mark.slow
def test_the_fleet_hides_the_operators_routes_and_loses_no_body(tmp_path: Path) -> None:
    """An offer of another protocol changes nothing for the body that comes with it."""
    with fleet(tmp_path) as there, httpx.Client(base_url=there.url, headers=OWN_KEY) as http:
        assert http.get("/metrics").status_code == 404
        assert http.get("/").status_code == 200
        assert http.get("/web/css/base.css").status_code == 200
        assert http.get("/models", headers={"x-api-key": "wrong"}).status_code == 401
        for protocol in ("h2c", "websocket", "x"):
            http.headers.update({"connection": "Upgrade", "upgrade": protocol})
            for puzzle, solution in PUZZLES.items():
                answer = http.post("/solve", json={"puzzle": puzzle})
                assert answer.json()["solution"] == solution
            batch = http.post("/solve/batch", content=BATCH, headers=NDJSON)
            assert batch.text.count('"solved":true') == len(PUZZLES)
    for board in there.boards:
        assert "not-json" not in board.log
