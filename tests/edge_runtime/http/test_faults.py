"""What goes wrong around a server, and what its clients see of it; docs/promises.md holds the table.

Killed, hung and drained engines stand in `test_supervision.py`; garbage in a slot in `test_lane.py`.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import itertools
import os
import pickle
import resource
import shutil
import signal
import sys
import threading
from pathlib import Path

import httpx
import pytest
from asgi_tools import QUICK, app_over, lanes_over, serving
from scripted_server import NAME, PUZZLE, scripted_model
from scripted_server import examples as scripted_examples
from service_tools import Server, running, wait_for

from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.scripted import ScriptedEngine
from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.worker import process
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.lanes import Lanes
from hrm_edge_runtime.worker.process import ThreadEngine

RUNTIME = Path(__file__).parents[3] / "edge_runtime" / "hrm_edge_runtime"
CGROUP = Path("/sys/fs/cgroup/memory")
QUESTION = next(iter(scripted_examples()))

NO_MESSAGES = [
    b"", b"\x80", b"garbage", b"\xff" * 64, pickle.dumps(("half",))[:-3], b"cnowhere\nNothing\n.", b"\x80\x04K\x01.",
    b"I99999999999999999999x\n.",
]  # fmt: skip


class Babbling(ThreadEngine):
    """An engine whose pipe can be made to say anything."""

    def say(self, raw: bytes) -> None:
        self._theirs.send_bytes(raw)


@pytest.mark.parametrize("raw", NO_MESSAGES[:-2] + NO_MESSAGES[-1:])
def test_an_engine_that_talks_nonsense_is_replaced_and_nobody_hangs(raw: bytes) -> None:
    engines: list[Babbling] = []

    def begin() -> Babbling:
        engines.append(
            Babbling(functools.partial(QUICK, step_s=0.0 if engines else 0.2, segments=16))
        )
        return engines[-1]

    client = EngineClient(begin, {NAME: 10})
    with serving(create_app(client, [scripted_model(num_slots=2)]), client) as http:
        asked = http.portal.start_task_soon(
            functools.partial(http.http.post, "/solve", json={"puzzle": QUESTION})
        )
        wait_for(lambda: client.num_waiting == 1)
        engines[0].say(raw)
        answer = asked.result(10)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "engine-lost")
        wait_for(lambda: client.state == "ready" and len(engines) == 2)
        assert http.post("/solve", json={"puzzle": QUESTION}).status_code == 200


class WrongShape(ScriptedEngine):
    def step(self, num_active: int) -> StepOutput:
        said = super().step(num_active)
        return StepOutput(
            answer_BT=said.answer_BT[:, :3],
            halt_margin_B=said.halt_margin_B,
            q_halt_B=said.q_halt_B,
        )


def test_an_engine_whose_answers_have_another_shape_is_lost_not_believed() -> None:
    lives = itertools.count()

    def bench() -> Lanes:
        if next(lives):
            return QUICK()
        return lanes_over(WrongShape(num_slots=2, seq_len=PUZZLE.seq_len))

    with serving(*app_over(bench), until_ready=False) as http:
        client = http.engine_client
        wait_for(lambda: client.state == "ready" or client.process.num_losses > 0)
        answer = http.post("/solve", json={"puzzle": QUESTION})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "engine-lost")
        wait_for(lambda: client.state == "ready")
        assert http.post("/solve", json={"puzzle": QUESTION}).status_code == 200


def test_an_engine_that_hangs_while_it_starts_is_killed_told_of_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "START_S", 0.2)
    monkeypatch.setattr(process, "STOP_S", 0.1)
    hangs, lives = threading.Event(), itertools.count()

    def bench() -> Lanes:
        if next(lives) < 2:
            hangs.wait(60)
        return QUICK()

    with serving(*app_over(bench), until_ready=False) as http:
        client = http.engine_client
        wait_for(lambda: client.process.losses_in_a_row == 2)
        assert client.process.retry_after_s > process.FIRST_BACKOFF_S
        said = http.get("/readyz")
        assert (said.status_code, said.json()["error"]["reason"]) == (503, "engine-lost")
        assert "did not open its models within 0.2 s" in said.json()["error"]["message"]
        wait_for(lambda: client.state == "ready")
        assert http.post("/solve", json={"puzzle": QUESTION}).status_code == 200
        hangs.set()


def served(bundle: Path, before: str = "") -> Server:
    """`hrm-serve` over a bundle, after a line of Python."""
    program = f"{before}\nfrom hrm_edge_runtime.cli import serve\nserve()"
    return Server([sys.executable, "-c", program, str(bundle), "--threads=1", "--slots=2"])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return Path(shutil.copytree(find_bundle("sudoku-6x6"), tmp_path / "sudoku-6x6.bundle"))


@pytest.mark.process
def test_a_full_disk_keeps_nobody_from_serving(bundle: Path) -> None:
    """No file may grow by a byte: what the server would keep for its next start is measured again next time."""
    with served(
        bundle, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    ) as server:
        server.wait_until_ready()
        sample = server.http.get("/models").json()["models"][0]["sample"]
        assert server.solve(sample).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0
        assert "Traceback" not in server.log


@pytest.mark.process
def test_a_truncated_bundle_is_refused_in_one_sentence(bundle: Path) -> None:
    with (bundle / "step.fp32.onnx").open("r+b") as graph:
        graph.truncate(10_000)
    with served(bundle) as server:
        assert server.exit_status() == 2
        wait_for(lambda: "step.fp32.onnx" in server.log)
        assert "Traceback" not in server.log


@pytest.mark.process
def test_a_hang_up_while_the_server_starts_does_not_end_it(bundle: Path) -> None:
    """It comes while the first bundle is read; that is truncated, so the server ends in its own way."""
    (bundle / "step.fp32.onnx").write_bytes(b"")
    hang_up = "import os, signal, sys\nsys.addaudithook(lambda event, given: event == 'open' and "
    hang_up += "str(given[0]).endswith('manifest.json') and os.kill(os.getpid(), signal.SIGHUP))"
    with served(bundle, hang_up) as server:
        assert server.exit_status() == 2


@pytest.mark.slow
def test_a_bundle_truncated_under_a_running_server_leaves_it_alive_and_telling_until_it_is_mended(
    bundle: Path,
) -> None:
    graph = bundle / "step.fp32.onnx"
    whole = graph.read_bytes()
    with served(bundle) as server:
        server.wait_until_ready()
        graph.write_bytes(whole[:10_000])
        os.kill(server.slots()["engine"]["pid"], signal.SIGKILL)
        wait_for(lambda: server.slots()["engine"]["last_error"] is not None)
        assert (server.status("/livez"), server.status("/readyz")) == (200, 503)
        graph.write_bytes(whole)
        server.wait_until_ready()


def _is_writable() -> bool:
    probe = CGROUP / f"hrm-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.process
@pytest.mark.skipif(not _is_writable(), reason="memory cgroups (v1) cannot be made here")
def test_an_engine_killed_for_its_memory_takes_nobody_along() -> None:
    group = CGROUP / f"hrm-test-{os.getpid()}"
    group.mkdir()
    try:
        with running(step_s=0.02, segments=4) as server:
            server.wait_until_ready()
            pid = server.slots()["engine"]["pid"]
            (group / "cgroup.procs").write_text(str(pid))
            (group / "memory.limit_in_bytes").write_text("4096")
            said: list[int] = []
            while server.slots()["engine"]["losses"] == 0 and len(said) < 500:
                said.append(server.solve(QUESTION).status_code)
            assert set(said) <= {200, 503}
            server.wait_until_ready()
            assert server.solve(QUESTION).status_code == 200
            assert server.slots()["engine"]["pid"] != pid
    finally:
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.process
def test_sigterm_under_load_answers_everybody_with_200_or_503_and_exits_with_0() -> None:
    with running(step_s=0.01, segments=4, slots=2, queue_limit=6) as server:
        server.wait_until_ready()
        said: list[tuple[int, str]] = []
        leaving = threading.Event()
        clients = [
            threading.Thread(target=_keep_asking, args=(server.url, said, leaving))
            for _ in range(8)
        ]
        for client in clients:
            client.start()
        wait_for(lambda: len(said) > 50)
        server.process.send_signal(signal.SIGTERM)
        leaving.set()
        status = server.exit_status()
        for client in clients:
            client.join()
        assert status == 0
        assert {code for code, _ in said} <= {200, 503}
        assert {reason for code, reason in said if code == 503} <= {"draining", "queue-full"}
        assert "Traceback" not in server.log


def _keep_asking(url: str, said: list[tuple[int, str]], leaving: threading.Event) -> None:
    """Until the port is closed; an answer that breaks off in the middle is an answer that was lost."""
    with httpx.Client(base_url=url, timeout=60) as http:
        while True:
            try:
                answer = http.post("/solve", json={"puzzle": QUESTION})
            except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError) as error:
                broke = error
                break
            said.append((answer.status_code, answer.json().get("error", {}).get("reason", "")))
    assert leaving.is_set(), broke


def test_a_clock_that_jumps_changes_nothing_because_none_is_asked() -> None:
    """Only logs and traces say what time of day it is; every wait, age, deadline and duration is monotonic."""
    asked = {
        path.relative_to(RUNTIME).as_posix(): names
        for path in [
            *RUNTIME.glob("batching/*.py"),
            *RUNTIME.glob("http/*.py"),
            *RUNTIME.glob("worker/*.py"),
            *RUNTIME.glob("engines/*.py"),
            RUNTIME / "contract/logs.py",
        ]
        if (names := _wall_clocks(ast.parse(path.read_text(encoding="utf-8"))))
    }
    telling = {"http/otel.py": {"time_ns"}, "contract/logs.py": {"datetime"}}
    assert asked == telling


def _wall_clocks(tree: ast.AST) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "time"
        ):
            found |= {node.attr} & {"time", "time_ns", "localtime", "gmtime"}
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            found |= {alias.name for alias in node.names} & {"time", "time_ns", "datetime"}
    return found


@pytest.mark.slow
def test_two_thousand_connections_are_served_beside_five_hundred_slow_ones() -> None:
    """All of them ask at once and stay until everybody has been answered; the slow never finish their headers."""

    async def run(port: int) -> list[int]:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(500)]
        for _, writer in slow:
            writer.write(b"POST /solve HTTP/1.1\r\nhost: x\r\n")
        everybody = asyncio.Barrier(2000) if hasattr(asyncio, "Barrier") else None
        said = await asyncio.gather(*(_ask_and_stay(port, everybody) for _ in range(2000)))
        for _, writer in slow:
            writer.transport.abort()
        await asyncio.sleep(0.1)
        return said

    _allow_descriptors(6000)
    with running(slots=32, queue_limit=2000, step_s=0.0, segments=2) as server:
        server.wait_until_ready()
        before = _descriptors(server)
        assert asyncio.run(run(server.port)) == [200] * 2000
        wait_for(lambda: _descriptors(server) <= before + 2)
        assert server.solve(QUESTION).status_code == 200


async def _ask_and_stay(port: int, everybody: asyncio.Barrier | None) -> int:
    body = b'{"puzzle": "%s"}' % QUESTION.encode()
    head = b"POST /solve HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head % len(body) + body)
    line = await asyncio.wait_for(reader.readline(), 120)
    if everybody is not None:  # Python 3.11 and later
        await everybody.wait()
    writer.transport.abort()
    return int(line.split()[1]) if line else 0


def _allow_descriptors(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


def _descriptors(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))
