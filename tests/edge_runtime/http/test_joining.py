"""The first TensorRT model that is built serves, and the others join it."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copytree

import httpx
import onnx
import pytest
from service_tools import Server, command, wait_for
from stand_ins import FAKES, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import write_manifest

pytestmark = pytest.mark.process

Serve = Callable[..., Server]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model `second` is not built before this file is there."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_TENSORRT_WAITS_FOR", str(tmp_path / "gate"))
    monkeypatch.setenv("FAKE_TENSORRT_WAITS_IN", "step.fp16.onnx")
    return tmp_path / "gate"


@pytest.fixture
def serve(tiny_bundle: Path, gate: Path) -> Iterator[Serve]:
    """Starts a server of `tiny` and `second`, and waits until it builds `second`."""
    started: list[Server] = []
    tiny = copytree(tiny_bundle, gate.parent / "tiny.bundle")
    second = Bundle.open(copytree(tiny_bundle, gate.parent / "second.bundle"))
    second = with_precisions(second, fp16=onnx.load(second.graph_path("fp32")))
    fields = second.manifest.model_dump(exclude={"files"})
    write_manifest(second.path, **{**fields, "name": "second"})

    def start(*options: str) -> Server:
        arguments = [tiny, second.path, "--engine=tensorrt", "--slots=1", *options]
        server = Server(command("serve", *arguments))
        started.append(server)
        wait_for(lambda: states(server) == {"tiny": "ready", "second": "loading"})
        return server

    yield start
    for server in started:
        server.__exit__()


def states(server: Server) -> dict[str, str]:
    try:
        models = server.http.get("/models").json()["models"]
    except httpx.TransportError:  # it does not listen yet
        return {}
    return {model["name"]: model["state"] for model in models}


def test_the_first_model_answers_while_the_second_is_built_and_joins(
    serve: Serve, gate: Path, examples: dict[str, str]
) -> None:
    question = next(iter(examples))
    server = serve()
    assert server.solve(question).status_code == 200
    unready = server.http.get("/readyz")
    assert (unready.status_code, unready.json()["error"]["reason"]) == (503, "partial")
    wait_for(lambda: (server.http.get("/readyz").json()["progress"] or {}).get("model") == "second")
    refused = server.solve(question, model="second")
    assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "model-loading")
    assert int(refused.headers["retry-after"]) >= 1
    gate.touch()
    server.wait_until_ready()
    assert states(server) == {"tiny": "ready", "second": "ready"}
    assert server.solve(question, model="second").status_code == 200
    assert "serving 1 of 2 models" in server.log
    os.kill(server.slots()["engine"]["pid"], signal.SIGKILL)
    wait_for(lambda: server.slots()["engine"]["losses"] == 1)
    server.wait_until_ready()
    assert states(server) == {"tiny": "ready", "second": "ready"}


def test_with_ready_first_one_model_is_enough_and_a_stop_ends_the_build(serve: Serve) -> None:
    server = serve("--ready=first")
    ready = server.http.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"state": "partial"})
    server.process.send_signal(signal.SIGTERM)
    assert server.exit_status() == 0
    assert "Traceback" not in server.log
    assert "is not served" not in server.log


def test_a_model_that_fails_to_join_is_listed_and_the_server_is_ready(
    serve: Serve, gate: Path, examples: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TENSORRT_FAILS", "kill step.fp16.onnx")
    server = serve()
    gate.touch()
    server.wait_until_ready()
    assert states(server) == {"tiny": "ready", "second": "failed"}
    assert server.solve(next(iter(examples))).status_code == 200
