"""A server with a model whose TensorRT engine does not build: the others are served."""

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import onnx
import pytest
from service_tools import Server, command
from stand_ins import FAKES, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import write_manifest

pytestmark = pytest.mark.process


@pytest.fixture
def server(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Serves `broken`, whose build is killed, and `tiny`."""
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_TENSORRT_FAILS", "kill step.fp16.onnx")
    tiny = copytree(tiny_bundle, tmp_path / "tiny.bundle")
    broken = Bundle.open(copytree(tiny_bundle, tmp_path / "broken.bundle"))
    broken = with_precisions(broken, fp16=onnx.load(broken.graph_path("fp32")))
    fields = broken.manifest.model_dump(exclude={"files"})
    write_manifest(broken.path, **{**fields, "name": "broken"})
    arguments = [broken.path, tiny, "--engine=tensorrt", "--slots=1"]
    with Server(command("serve", *arguments)) as started:
        yield started


def test_a_model_that_does_not_build_is_listed_with_its_reason_and_the_others_serve(
    server: Server, examples: dict[str, str]
) -> None:
    question = next(iter(examples))
    server.wait_until_ready()
    broken, tiny = server.http.get("/models").json()["models"]
    assert (broken["name"], broken["state"]) == ("broken", "failed")
    assert "killed by signal 9, usually out of memory" in broken["problem"]
    assert (tiny["name"], tiny["state"], tiny["problem"]) == ("tiny", "ready", None)
    assert server.solve(question).status_code == 200
    assert server.solve(question, model="tiny").status_code == 200
    refused = server.solve(question, model="broken")
    assert (refused.status_code, refused.json()["error"]["reason"]) == (503, "model-failed")
    assert int(refused.headers["retry-after"]) >= 1
    assert "broken is not served: no TensorRT engine was built" in server.log
