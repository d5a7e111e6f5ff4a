"""What goes wrong around a server, and what its clients see; docs/promises.md has the table.

`test_supervision.py` kills, hangs and drains engines; `test_lane.py` puts garbage into a slot.
"""

import asyncio
import json
import os
import pickle
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from asgi_tools import QUICK, app_over, client_of, engine_of, serving
from echo_bundle import write_echo_bundle
from files import ROOT
from scripted_engine import ScriptedEngine, ThreadEngine
from scripted_server import PUZZLE, QUESTION, lanes_over
from service_tools import PATIENCE_S, Server, head, refusal, running, wait_for
from starlette.testclient import TestClient

from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.worker import process
from hrm_edge_runtime.worker.lanes import Lanes, MakeLanes
from hrm_host import system

RUNTIME = ROOT / "edge_runtime" / "hrm_edge_runtime"
BODY = {"puzzle": QUESTION}
NUM_CONNECTIONS = 2000


def is_served(http: TestClient) -> bool:
    wait_for(lambda: engine_of(http.app).state == "ready")
    return http.post("/solve", json=BODY).status_code == 200


class Babbling(ThreadEngine):
    """An engine whose pipe can be made to say anything."""

    def say(self, raw: bytes) -> None:
        self._theirs.send_bytes(raw)


@pytest.mark.parametrize(
    "raw",
    [b"", b"garbage", pickle.dumps(("half",))[:-3], b"cnowhere\nNothing\n.", b"I9999999999x\n."],
)
def test_an_engine_that_talks_nonsense_is_replaced_and_nobody_hangs(raw: bytes):
    engines = []
    slow_s = [0.2]

    def begin(make_lanes: MakeLanes) -> Babbling:
        engines.append(Babbling(make_lanes))
        return engines[-1]

    def lanes() -> Lanes:
        return QUICK(step_s=slow_s.pop() if slow_s else 0.0, segments=16)

    app = app_over(lanes, begin=begin)
    with ThreadPoolExecutor(1) as pool, serving(app) as http:
        asked = pool.submit(http.post, "/solve", json=BODY)
        wait_for(lambda: engine_of(app).num_waiting == 1)
        engines[0].say(raw)
        assert refusal(asked.result(PATIENCE_S)) == (503, "engine-lost")
        wait_for(lambda: len(engines) == 2)
        assert is_served(http)


class WrongShape(ScriptedEngine):
    def step(self, num_active: int) -> StepOutput:
        output = super().step(num_active)
        return StepOutput(
            answer_BT=output.answer_BT[:, :3],
            halt_margin_B=output.halt_margin_B,
            q_halt_B=output.q_halt_B,
        )


def test_an_engine_whose_answers_have_another_shape_is_lost_not_believed():
    first = [lanes_over(WrongShape(num_slots=2, seq_len=PUZZLE.seq_len))]

    def lanes() -> Lanes:
        return first.pop() if first else QUICK()

    app = app_over(lanes)
    client = engine_of(app)
    with serving(app, until_ready=False) as http:
        wait_for(lambda: client.state == "ready" or client.process.num_losses > 0)
        assert refusal(http.post("/solve", json=BODY)) == (503, "engine-lost")
        assert is_served(http)


def test_an_engine_that_hangs_at_its_start_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "START_S", 0.2)
    monkeypatch.setattr(process, "STOP_S", 0.1)
    is_over = threading.Event()
    hanging = [True, True]

    def lanes() -> Lanes:
        if hanging:
            hanging.pop()
            is_over.wait(60)
        return QUICK()

    app = app_over(lanes)
    starting = engine_of(app).process
    with serving(app, until_ready=False) as http:
        wait_for(lambda: starting.losses_in_a_row == 2)
        assert starting.retry_after_s > process.FIRST_BACKOFF_S
        refused = http.get("/readyz")
        assert refusal(refused) == (503, "engine-lost")
        assert "did not open its models within 0.2 s" in refused.json()["error"]["message"]
        assert is_served(http)
        is_over.set()


def served(bundle: Path, before: str = "") -> Server:
    """`hrm-serve` over a bundle, after a line of Python."""
    program = f"{before}\nfrom hrm_edge_server.cli import serve\nserve()"
    return Server([sys.executable, "-c", program, str(bundle), "--threads=1", "--slots=2"])


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_echo_bundle(tmp_path / "echo.bundle")


@pytest.mark.process
def test_a_full_disk_keeps_nobody_from_serving(bundle: Path):
    """No file may grow by a byte: what it would keep for its next start is measured again."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    with served(bundle, full) as server:
        server.wait_until_ready()
        sample = server.models()[0]["sample"]
        assert server.solve(sample).status_code == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.exit_status() == 0
        assert "Traceback" not in server.log


@pytest.mark.process
def test_a_truncated_bundle_ends_the_start_and_a_hang_up_does_not(bundle: Path):
    """The hang-up comes while the manifest is read; the server still ends in its own way."""
    with (bundle / "step.fp32.onnx").open("r+b") as graph:
        graph.truncate(100)
    hang_up = """
import os, signal, sys
def hook(event, arguments):
    if event == "open" and str(arguments[0]).endswith("manifest.json"):
        os.kill(os.getpid(), signal.SIGHUP)
sys.addaudithook(hook)
"""
    with served(bundle, hang_up) as server:
        assert server.exit_status() == 2
        wait_for(lambda: "step.fp32.onnx" in server.log)
        assert "Traceback" not in server.log


@pytest.mark.slow
def test_a_server_outlives_a_truncated_bundle(bundle: Path):
    graph = bundle / "step.fp32.onnx"
    whole = graph.read_bytes()
    with served(bundle) as server:
        server.wait_until_ready()
        graph.write_bytes(whole[:100])
        os.kill(server.engine["pid"], signal.SIGKILL)
        wait_for(lambda: server.engine["last_error"] is not None)
        assert (server.status("/livez"), server.status("/readyz")) == (200, 503)
        graph.write_bytes(whole)
        server.wait_until_ready()


async def test_requests_are_rejected_without_threads(monkeypatch: pytest.MonkeyPatch):
    body = json.dumps(BODY)

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    requests = [("POST", "/solve"), ("GET", "/puzzle?kind=sudoku-4x4"), ("POST", "/solve/batch")]
    async with client_of(app_over(QUICK)) as http:
        with monkeypatch.context() as broken:
            broken.setattr("threading.Thread.start", fail)
            refused = [await http.request(*request, content=body) for request in requests]
        answered = [await http.request(*request, content=body) for request in requests]
    for answer, status in zip(refused, (503, 503, 200), strict=True):
        assert answer.status_code == status
        assert answer.json()["error"]["reason"] == "out-of-threads"
    for answer in answered:
        assert answer.status_code == 200


async def test_a_lack_of_memory_is_no_lack_of_threads(monkeypatch: pytest.MonkeyPatch):
    def fail(_: object) -> None:
        raise RuntimeError("Failed to allocate memory")

    monkeypatch.setattr("hrm_edge_server.pages.fresh_puzzle", fail)
    async with client_of(app_over(QUICK)) as http:
        with pytest.raises(RuntimeError, match="allocate"):  # the server answers 500 and logs it
            await http.get("/puzzle?kind=sudoku-4x4")


def test_a_clock_that_jumps_changes_nothing_because_none_is_asked():
    """Only logs use the time of day; waits, ages and deadlines are monotonic."""
    asks = re.compile(
        r"\btime\.(?:time|time_ns|localtime|gmtime)\b|(?:from|import) datetime|from time"
    )
    paths = [RUNTIME / "contract/logs.py"]
    for layer in ("batching", "worker", "engines"):
        paths += RUNTIME.glob(f"{layer}/*.py")
    paths += RUNTIME.with_name("hrm_edge_server").glob("*.py")
    used = {path.name for path in paths if asks.search(path.read_text(encoding="utf-8"))}
    assert used == {"logs.py"}


@pytest.mark.slow
def test_two_thousand_connections_are_served_beside_five_hundred_slow_ones():
    """All ask at once and stay until everybody is answered; the slow stop in a header or a body."""
    system.most_open_files(6000)
    with running(slots=32, queue_limit=NUM_CONNECTIONS, step_s=0.0, segments=2) as server:
        asyncio.run(serve_everybody(server))
        wait_for(lambda: "hrm_connections 1.0" in server.http.get("/metrics").text)


async def serve_everybody(server: Server) -> None:
    body = json.dumps(BODY).encode()
    request = head("POST /solve", f"content-length: {len(body)}") + body

    async def connected(first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(first)
        return reader, writer

    async def answered() -> tuple[bytes, asyncio.StreamWriter]:
        reader, writer = await connected(request)
        line = await asyncio.wait_for(reader.readline(), 120)
        return line.split()[1], writer

    beginnings = [request[:30], request[:-1]] * 250
    slow = [await connected(beginning) for beginning in beginnings]
    answers = await asyncio.gather(*(answered() for _ in range(NUM_CONNECTIONS)))
    for status, writer in answers:
        assert status == b"200"
        writer.transport.abort()
    for reader, writer in slow:  # the server ends each of them in its time
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer[:12] in (b"", b"HTTP/1.1 408")
        writer.close()
        await writer.wait_closed()
