"""A server whose TensorRT engines are not built yet: it answers at once, and leaves on a signal."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from service_tools import Server, command, wait_for

pytestmark = pytest.mark.process

FAKES = Path(__file__).parents[2] / "support" / "fakes"


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No build ends before this file is there."""
    path = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_TENSORRT_WAITS_FOR", str(tmp_path / "gate"))
    return tmp_path / "gate"


@pytest.fixture
def building(tiny_bundle: Path, gate: Path) -> Iterator[Server]:
    """A server whose first build waits at the `gate`; it keeps figures beside its bundle."""
    bundle = copytree(tiny_bundle, gate.parent / "tiny.bundle")
    with Server(command("serve", bundle, "--engine=tensorrt", "--slots=1")) as server:
        wait_for(lambda: server.status("/readyz") == 503)
        wait_for(lambda: progress(server).get("precision") == "fp32")
        yield server


def progress(server: Server) -> Any:
    return server.http.get("/readyz").json()["progress"] or {}


def child_of(server: Server) -> int:
    """The process that builds."""
    tasks = Path(f"/proc/{server.process.pid}/task")
    (child,) = " ".join(file.read_text() for file in tasks.glob("*/children")).split()
    return int(child)


def test_while_an_engine_is_built_the_port_answers_and_reports_progress(
    building: Server, gate: Path, examples: dict[str, str]
) -> None:
    question = next(iter(examples))
    assert building.status("/livez") == 200
    before = progress(building)
    assert (before["model"], before["precision"]) == ("tiny", "fp32")
    wait_for(lambda: progress(building)["elapsed_s"] > before["elapsed_s"])
    refused = building.solve(question)
    assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "loading")
    assert int(refused.headers["retry-after"]) >= 1
    gate.touch()
    building.wait_until_ready()
    assert building.http.get("/models").json()["models"][0]["precision"] == "fp32"
    assert building.solve(question).status_code == 200


def test_a_signal_ends_a_server_and_its_build_without_an_error(building: Server) -> None:
    child = child_of(building)
    building.process.send_signal(signal.SIGTERM)
    assert building.exit_status() == 0
    wait_for(lambda: not Path(f"/proc/{child}").exists())
    assert "Traceback" not in building.log


def test_a_build_that_fails_is_one_sentence_and_status_3(building: Server) -> None:
    os.kill(child_of(building), signal.SIGKILL)
    assert building.exit_status() == 3
    wait_for(lambda: "hrm-serve: no TensorRT engine was built (status -9): " in building.log)
    assert "Traceback" not in building.log
