"""A server whose TensorRT engines are not built yet: it answers at once, and its models join it."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import onnx
import pytest
from bundle_tools import restate
from scripted_server import QUESTION
from service_tools import Server, children_of, is_gone, refusal, wait_for
from stand_ins import BUILD_COMMAND, PYTHON_PATH, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle

pytestmark = pytest.mark.process

Serve = Callable[..., Server]
PROGRAM = f"""
import hrm_parity
hrm_parity.BUILD_COMMAND = {BUILD_COMMAND!r}
from hrm_edge_server.cli import serve
serve()
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A graph is not built before a file of its name is there, as this one of `second`."""
    monkeypatch.setenv("PYTHONPATH", PYTHON_PATH)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_TENSORRT_WAITS_IN", str(tmp_path))
    (tmp_path / "step.fp32.onnx").touch()
    return tmp_path / "step.fp16.onnx"


@pytest.fixture
def serve(tiny_bundle: Path, gate: Path) -> Iterator[Serve]:
    """Starts a server of bundles by their names, `tiny` or `second`, with further options."""
    folder = gate.parent
    copytree(tiny_bundle, folder / "tiny.bundle")
    second = Bundle.open(copytree(tiny_bundle, folder / "second.bundle"))
    second = with_precisions(second, fp16=onnx.load(second.graph_path("fp32")))
    restate(second.path, name="second")

    started = contextlib.ExitStack()

    def start(*names: str, options: tuple[str, ...] = ()) -> Server:
        bundles = [folder / f"{name}.bundle" for name in names]
        arguments = [*map(str, bundles), "--engine=tensorrt", "--slots=1", *options]
        return started.enter_context(Server([sys.executable, "-c", PROGRAM, *arguments]))

    with started:
        yield start


PARTIAL = {"ready": 1, "loading": 1, "failed": 0}


def states(server: Server) -> dict[str, str]:
    try:
        models = server.models()
    except httpx.TransportError:  # it does not listen yet
        return {}
    return {model["name"]: model["state"] for model in models}


def progress(server: Server) -> Any:
    return server.http.get("/readyz").json()["progress"] or {}


def test_a_server_waits_for_its_only_model_and_a_failed_build_is_one_sentence_and_status_3(
    serve: Serve,
):
    server = serve("second")
    wait_for(lambda: server.status("/readyz") == 503)
    wait_for(lambda: progress(server).get("precision") == "fp16")
    assert server.status("/livez") == 200
    assert refusal(server.solve(QUESTION)) == (503, "loading")
    (child,) = children_of(server.process)
    os.kill(child, signal.SIGKILL)
    assert server.exit_status() == 3
    killed = "no TensorRT engine was built (fp16: the build was killed by signal 9 (SIGKILL)"
    wait_for(lambda: f"hrm-serve: {killed}" in server.log)
    assert "Traceback" not in server.log


def test_a_second_model_joins_later(serve: Serve, gate: Path):
    server = serve("tiny", "second")
    wait_for(lambda: states(server) == {"tiny": "ready", "second": "loading"})
    assert server.solve(QUESTION).status_code == 200
    unready = server.http.get("/readyz")
    assert refusal(unready) == (503, "partial")
    assert unready.json()["state"] == "partial"
    wait_for(lambda: progress(server).get("model") == "second")
    before = progress(server)
    wait_for(lambda: progress(server)["elapsed_s"] > before["elapsed_s"])
    assert refusal(server.solve(QUESTION, model="second")) == (503, "model-loading")
    gate.touch()
    server.wait_until_ready()
    assert server.solve(QUESTION, model="second").status_code == 200
    _, second = server.models()
    assert second["precision"] == "fp16"
    assert second["precision_reason"].endswith(": fp16 is chosen.")
    wait_for(lambda: f"ready: {server.url}\n" in server.log)
    assert server.log.index("serving 1 of 2 models") < server.log.index("ready: http")
    os.kill(server.engine["pid"], signal.SIGKILL)
    wait_for(lambda: server.engine["losses"] == 1)
    server.wait_until_ready()
    assert states(server) == {"tiny": "ready", "second": "ready"}


def test_with_ready_first_one_model_is_enough_and_a_stop_ends_the_build(serve: Serve):
    server = serve("tiny", "second", options=("--ready=first",))
    wait_for(lambda: states(server) == {"tiny": "ready", "second": "loading"})
    wait_for(lambda: len(children_of(server.process)) > 2)  # a tracker, the engine and the build
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"state": "partial", "models": PARTIAL})
    children = children_of(server.process)
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_status() == 0
    wait_for(lambda: all(map(is_gone, children)))
    assert "Traceback" not in server.log
    assert "is not served" not in server.log


def test_a_model_that_does_not_build_is_listed_with_its_reason_and_the_other_serves(
    serve: Serve, gate: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FAKE_TENSORRT_FAILS", "kill step.fp16.onnx")
    gate.touch()
    server = serve("second", "tiny")
    server.wait_until_ready()
    assert states(server) == {"tiny": "ready", "second": "failed"}
    models = {model["name"]: model for model in server.models()}
    killed = "killed by signal 9 (SIGKILL), usually out of memory"
    assert killed in models["second"]["problem"]
    assert models["tiny"]["problem"] is None
    assert server.solve(QUESTION).status_code == 200
    assert refusal(server.solve(QUESTION, model="second")) == (503, "model-failed")
    assert "second is not served: no TensorRT engine was built" in server.log
