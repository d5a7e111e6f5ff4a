"""What a second attack found, against running servers: each is bounded now, and the others are answered meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from asgi_tools import MAZE, app_of_two, client_of
from echo_bundle import ECHO_STEP, write_echo_bundle
from scripted_server import examples
from service_tools import Server, ask_and_stay, command, running, wait_for

from hrm_benchmarks import attacks

GOOD = next(iter(examples()))
MIB = 1 << 20
NAN_STEP = ECHO_STEP.replace(
    "q_halt_B = Identity (halt_margin_B)", "q_halt_B = Log (halt_margin_B)"
).replace(
    "halt_margin_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)",
    "sum_B = ReduceSum <keepdims = 0> (tokens_float_BT, axis_1)\n  halt_margin_B = Neg (sum_B)",
)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(step_s=0.001) as server:
        server.wait_until_ready()
        server.solve(GOOD)
        yield server


@pytest.mark.process
@pytest.mark.parametrize("name", ["trailers", "values", "long-lines", "rows"])
def test_an_attack_leaves_the_memory_as_it_was_and_others_are_answered(
    server: Server, name: str
) -> None:
    before_bytes = resident_bytes(server.process.pid)
    sending = attacks.sender_process(server.url, name, senders=16, seconds=2.0)
    statuses: set[int] = set()
    while sending.is_alive():
        statuses.add(server.solve(GOOD).status_code)
        assert resident_bytes(server.process.pid) < before_bytes + 100 * MIB
    sending.join()
    assert statuses == {200}
    assert resident_bytes(server.process.pid) < before_bytes + 50 * MIB
    assert "Traceback" not in server.log


@pytest.mark.process
def test_curl_that_offers_http_2_is_answered(server: Server) -> None:
    body = json.dumps({"puzzle": GOOD})
    arguments = ["curl", "--silent", "--http2", "-d", body, f"{server.url}/solve"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["status"] == "proven"
    lines = "\n".join([body] * 3)
    media_type = "content-type: application/x-ndjson"
    arguments = [
        "curl",
        "--silent",
        "--http2",
        "-H",
        media_type,
        "--data-binary",
        lines,
        f"{server.url}/solve/batch",
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert sorted(json.loads(line)["line"] for line in done.stdout.splitlines()) == [1, 2, 3]


@pytest.mark.process
def test_client_that_leaves_with_a_second_request_ahead_frees_its_slot(server: Server) -> None:
    begun = len(server.log)
    for route in ("/solve", "/solve/stream", "/solve/batch"):
        connection = ask_and_stay(server, GOOD, route=route, how="plain")
        connection.sendall(attacks.request("/solve", json.dumps({"puzzle": GOOD}).encode()))
        connection.close()
    wait_for(lambda: server.slots()["waiting"] == 0)
    assert "Traceback" not in server.log[begun:]


async def test_lines_that_name_no_model_wait_for_the_one_that_reads_them() -> None:
    """Sudokus are asked first, so each line of mazes moves from their places to those of the mazes."""
    app, engine_client = app_of_two()
    maze = MAZE.sample([])
    lines = "\n".join([json.dumps({"puzzle": maze})] * 60)

    async def batch() -> list[dict[str, Any]]:
        answer = await http.post(
            "/solve/batch", content=lines, headers={"content-type": "application/x-ndjson"}
        )
        return [json.loads(line) for line in answer.text.splitlines()]

    async def singles() -> list[int]:
        statuses: list[int] = []
        while not all(one.done() for one in batches):
            answer = await http.post("/solve", json={"puzzle": maze, "kind": MAZE.name})
            statuses.append(answer.status_code)
        return statuses

    async with client_of(app, engine_client) as http:
        batches = [asyncio.ensure_future(batch()) for _ in range(8)]
        statuses = await singles()
        for one in batches:
            answers = await one
            assert [answer for answer in answers if "error" in answer] == []
            assert len(answers) == 60
    assert set(statuses) == {200}
    assert engine_client.limits.num_taken("mazes") == 0


@pytest.mark.process
@pytest.mark.parametrize(
    "num_rounds", [3, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
)
def test_a_pause_of_the_whole_server_kills_no_engine(num_rounds: int) -> None:
    """As `docker pause` and a stopped machine do; with --stall-seconds 1 each pause is longer than a stall."""
    with running(step_s=0.3, segments=12, stall_s=1.0) as server, ThreadPoolExecutor(1) as pool:
        server.wait_until_ready()
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
def test_a_bundle_that_computes_nan_is_refused_at_the_start(tmp_path: Path) -> None:
    bundle = write_echo_bundle(tmp_path / "nan.bundle", name="bad", step=NAN_STEP)
    with Server(command("serve", bundle, "--threads", 1)) as server:
        assert server.exit_status() == 3
        wait_for(lambda: "not finite" in server.log)
    assert "the bundle 'bad' is not served: it computes values that are not finite" in server.log
    assert "Traceback" not in server.log


@pytest.mark.process
def test_a_second_signal_ends_the_server_without_a_traceback() -> None:
    with running(step_s=1.0, segments=30) as server:
        server.wait_until_ready()
        with contextlib.closing(ask_and_stay(server, GOOD)):
            wait_for(lambda: server.slots()["waiting"] == 1)
            server.process.send_signal(signal.SIGTERM)
            wait_for(lambda: server.status("/readyz") == 503)
            server.process.send_signal(signal.SIGTERM)
            server.exit_status()
    assert "Traceback" not in server.log


@pytest.mark.process
def test_fresh_puzzles_wait_in_a_bounded_line_and_leave_it_with_their_clients(
    server: Server,
) -> None:
    slow = attacks.request("/puzzle?kind=logistics-30x30&difficulty=hard", method="GET")
    with contextlib.ExitStack() as held:
        connections = [
            held.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            for _ in range(60)
        ]
        for connection in connections:
            connection.sendall(slow)
        refused = [connection for connection in connections if connection.recv(12).endswith(b"503")]
        assert refused
    wait_for(lambda: server.http.get("/puzzle?kind=sudoku-4x4").status_code == 200)


async def test_requests_are_refused_while_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app, engine_client = app_of_two()

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with client_of(app, engine_client) as http:
        batch = {
            "content": json.dumps({"puzzle": GOOD}),
            "headers": {"content-type": "application/x-ndjson"},
        }
        with monkeypatch.context() as broken:
            broken.setattr("threading.Thread.start", fail)
            answers = [
                await http.post("/solve", json={"puzzle": GOOD}),
                await http.get("/puzzle?kind=sudoku-4x4"),
                await http.post("/solve/batch", **batch),
            ]
        assert [answer.status_code for answer in answers] == [503, 503, 200]
        assert [answer.json()["error"]["reason"] for answer in answers] == ["out-of-threads"] * 3
        assert (await http.post("/solve", json={"puzzle": GOOD})).status_code == 200
        assert (await http.get("/puzzle?kind=sudoku-4x4")).status_code == 200


@pytest.mark.parametrize("host", ["[::1].evil.com", "[::1]evil.com:80", "evil.com", "a.[::1].com"])
async def test_a_public_name_is_none_of_this_servers_however_it_begins(host: str) -> None:
    app, _ = app_of_two()
    async with client_of(app) as http:
        assert (await http.get("/models", headers={"host": host})).json()["error"][
            "reason"
        ] == "foreign-host"
        for own in ("[::1]", "[::1]:8000", "127.0.0.1:8000", "jetson.local"):
            assert (await http.get("/models", headers={"host": own})).status_code == 200
