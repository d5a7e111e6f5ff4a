"""A fleet: three servers behind HAProxy with the configuration as it ships; one dies under load and nobody notices."""

import concurrent.futures
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
from collections.abc import Iterator
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
STEP_S, SEGMENTS, SLOTS = 0.05, 3, 2
CAPACITY = 3 * SLOTS / (STEP_S * SEGMENTS)  # puzzles per second of all three
LOAD = 0.6
NUM_REQUESTS = 240

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(HAPROXY is None, reason="no haproxy on this machine: install the package haproxy"),
]


def test_shipped_configuration_is_sound() -> None:
    environment = {**os.environ, "HRM_FLEET_KEY": SECRET}
    checked = subprocess.run([str(HAPROXY), "-c", "-f", CONFIGURATION], env=environment, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


@dataclass(frozen=True, kw_only=True)
class Fleet:
    url: str
    boards: list[Server]


@contextlib.contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    keys = folder / "keys"
    write_keys(keys, [Key(label="fleet", sha256=hash_of(SECRET))])
    with contextlib.ExitStack() as stack:
        options = {"step_s": STEP_S, "segments": SEGMENTS, "slots": SLOTS, "queue_limit": 4, "keys": keys}
        boards = [stack.enter_context(running(**options)) for _ in range(3)]
        for board in boards:
            board.http.headers["x-api-key"] = SECRET
            board.wait_until_ready()
        port = free_port()
        text = CONFIGURATION.read_text().replace("bind :8000", f"bind 127.0.0.1:{port}")
        for number, board in enumerate(boards, 1):
            address = board.url.removeprefix("http://")
            text, count = re.subn(rf"(server board{number}) \S+", rf"\1 {address}", text)
            assert count == 2
        (folder / "haproxy.cfg").write_text(text)
        environment = {**os.environ, "HRM_FLEET_KEY": SECRET}
        command = [str(HAPROXY), "-db", "-f", str(folder / "haproxy.cfg")]
        proxy = stack.enter_context(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        stack.callback(proxy.kill)
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(headers={"x-api-key": SECRET}) as http:
            wait_for(lambda: answers(http, f"{url}/readyz"))
        yield Fleet(url=url, boards=boards)


def answers(http: httpx.Client, url: str) -> bool:
    try:
        return http.get(url).status_code == 200
    except httpx.TransportError:
        return False


def solved(http: httpx.Client, url: str, puzzle: str, begin_s: float) -> tuple[int, float]:
    """The status (200 only where the answer is right), and the seconds since it should have been sent."""
    time.sleep(max(0.0, begin_s - time.monotonic()))
    answer = http.post(f"{url}/solve", json={"puzzle": puzzle}, headers={"x-api-key": SECRET})
    is_right = answer.status_code == 200 and answer.json()["solution"] == PUZZLES[puzzle]
    return 200 if is_right else answer.status_code, time.monotonic() - begin_s


@pytest.mark.slow
@pytest.mark.parametrize("farewell", [signal.SIGKILL, signal.SIGTERM])
def test_no_request_is_lost_when_one_of_three_boards_dies_under_load(tmp_path: Path, farewell: signal.Signals) -> None:
    """Open loop, as much as keeps two of them busy nine tenths; one is killed with its engine, or asked to leave."""
    rng = random.Random(5)
    with fleet(tmp_path) as there, concurrent.futures.ThreadPoolExecutor(100) as pool:
        limits = httpx.Limits(max_connections=100, max_keepalive_connections=0)
        http = httpx.Client(timeout=PATIENCE_S, limits=limits)
        begin_s = time.monotonic() + 0.5
        asked = []
        for _ in range(NUM_REQUESTS):
            begin_s += rng.expovariate(LOAD * CAPACITY)
            asked.append(pool.submit(solved, http, there.url, rng.choice(list(PUZZLES)), begin_s))
        concurrent.futures.wait(asked[: NUM_REQUESTS // 3], return_when=concurrent.futures.ALL_COMPLETED)
        victim = there.boards[0]
        wait_for(lambda: victim.slots()["waiting"] >= SLOTS, every_s=0.001)
        num_in_flight = victim.slots()["waiting"]
        if farewell == signal.SIGKILL:
            os.killpg(victim.process.pid, signal.SIGKILL)
        else:
            victim.process.send_signal(signal.SIGTERM)
        outcomes = [future.result() for future in asked]
        if farewell == signal.SIGTERM:
            assert victim.exit_status() == 0
        http.close()
    statuses = Counter(status for status, _ in outcomes)
    times = sorted(seconds for _, seconds in outcomes)
    p99 = times[int(0.99 * len(times))]
    spread = f"p50 {statistics.median(times):.2f} s, p99 {p99:.2f} s, longest {times[-1]:.2f} s"
    print(f"{farewell.name} with {num_in_flight} in flight: {dict(statuses)}, {spread}")
    assert statuses == {200: NUM_REQUESTS}


@pytest.mark.slow
def test_operators_routes_of_a_board_are_not_to_be_had_through_the_fleet(tmp_path: Path) -> None:
    with fleet(tmp_path) as there, httpx.Client(base_url=there.url, headers={"x-api-key": SECRET}) as http:
        assert http.get("/metrics").status_code == 404
        assert http.get("/").status_code == 200
        assert http.get("/web/css/base.css").status_code == 200
        batch = "\n".join(f'{{"puzzle": "{puzzle}"}}' for puzzle in PUZZLES)
        answer = http.post("/solve/batch", content=batch, headers={"content-type": "application/x-ndjson"})
        assert answer.text.count('"solved":true') == len(PUZZLES)
        assert http.get("/models", headers={"x-api-key": "wrong"}).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["h2c", "websocket", "x"])
def test_an_offer_of_another_protocol_loses_no_body_on_its_way_through_the_fleet(tmp_path: Path, protocol: str) -> None:
    offer = {"connection": "Upgrade", "upgrade": protocol}
    lines = "\n".join(json.dumps({"puzzle": puzzle}) for puzzle in PUZZLES)
    with fleet(tmp_path) as there, httpx.Client(base_url=there.url, headers={"x-api-key": SECRET, **offer}) as http:
        for puzzle, solution in PUZZLES.items():
            assert http.post("/solve", json={"puzzle": puzzle}).json()["solution"] == solution
        batch = http.post("/solve/batch", content=lines, headers={"content-type": "application/x-ndjson"})
        assert len(batch.text.splitlines()) == len(PUZZLES)
        assert '"error"' not in batch.text
    for board in there.boards:
        assert "not-json" not in board.log
