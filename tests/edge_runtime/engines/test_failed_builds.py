"""A TensorRT that does not start or does not build: one sentence, and what was built stays."""

import json
import shlex
import threading
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from stand_ins import SetUp, with_precisions
from typer.testing import CliRunner, Result

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import build as tensorrt_build
from hrm_edge_runtime.engines.trt import cache
from hrm_edge_runtime.engines.trt.building import Build


def build(bundle: Bundle, *more: str) -> Result:
    return CliRunner().invoke(tensorrt_build.app, [str(bundle.path), "--slots=1", *more])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("builder", "TensorRT 10.3.0 does not start here (CUDA initialization failure"),
        ("runtime", "does not start here (CUDA initialization failure with error: 35)"),
        ("timing cache", "cannot create a timing cache (Error Code 2: no timing cache)"),
        ("profile", "rejects profile 0 (Error in set optimization profile async"),
    ],
)
def test_a_tensorrt_that_fails_is_one_sentence_with_its_last_error_and_is_tried_again(
    bundle: Bundle, device: SetUp, fault: str, error: str
) -> None:
    device(FAKE_TENSORRT_FAILS=fault)
    done = build(bundle)
    assert done.exit_code == 1
    assert error in done.stderr
    device(FAKE_TENSORRT_FAILS="nothing")
    assert build(bundle).exit_code == 0


@pytest.fixture
def two_precisions(bundle: Bundle) -> Bundle:
    graph = onnx.load(bundle.graph_path("fp32"))
    return with_precisions(bundle, fp16=graph, int8=graph)


def prepared(bundle: Bundle, engine: str = "tensorrt", **more: Any) -> str:
    return str(factory.prepare(bundle, engine, num_slots=1, **more))


@pytest.mark.process
def test_a_build_that_is_killed_leaves_the_other_precision_and_is_not_repeated(
    two_precisions: Bundle, device: SetUp, caplog: pytest.LogCaptureFixture
) -> None:
    device(FAKE_TENSORRT_FAILS="kill step.int8.onnx")
    assert prepared(two_precisions) == "tensorrt:fp16"
    assert "tiny runs without int8: the build was killed by signal 9, usually out of" in caplog.text
    assert "its last line is '[TRT] timing a kernel of step.int8.onnx': stop the" in caplog.text
    device(FAKE_TENSORRT_FAILS="nothing")
    caplog.clear()
    assert prepared(two_precisions) == "tensorrt:fp16"
    assert "tiny runs without int8: an earlier build failed (the build was killed" in caplog.text
    with pytest.raises(EngineUnavailableError, match=r"int8: an earlier build failed") as refused:
        prepared(two_precisions, "tensorrt:int8")
    command = shlex.split(str(refused.value).split("`")[1])
    assert command[-1] == "--again"
    assert CliRunner().invoke(tensorrt_build.app, command[3:]).exit_code == 0
    assert prepared(two_precisions, "tensorrt:int8") == "tensorrt:int8"


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("kill step.int8.onnx", "tiny runs without int8: the build was killed by signal 9"),
        ("step.int8.onnx", "int8: TensorRT 10.3.0 cannot build"),
    ],
)
def test_a_precision_that_does_not_build_leaves_the_others(
    two_precisions: Bundle,
    device: SetUp,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    told: str,
) -> None:
    device(FAKE_TENSORRT_FAILS=fault)
    done = build(two_precisions, "--json")
    assert json.loads(done.stdout.splitlines()[-1])["chosen"] == "fp16"
    assert told in caplog.text


def test_what_tensorrt_does_not_build_leaves_no_engine_and_is_tried_again_on_request(
    bundle: Bundle, device: SetUp
) -> None:
    device(FAKE_TENSORRT_FAILS="build")
    failed = build(bundle)
    assert failed.exit_code == 1
    assert "Error Code 2: OutOfMemory (no further information)" in failed.stderr
    assert list(cache.plan_folder().glob("*.plan")) == []
    device(FAKE_TENSORRT_FAILS="nothing")
    refused = build(bundle)
    assert refused.exit_code == 1
    assert "an earlier build failed (TensorRT 10.3.0 cannot build" in refused.stderr
    assert build(bundle, "--again").exit_code == 0
    assert build(bundle).exit_code == 0


@pytest.mark.process
def test_a_build_that_somebody_stops_is_not_remembered(
    bundle: Bundle, device: SetUp, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    device(FAKE_TENSORRT_WAITS_FOR=str(gate))
    build = Build(bundle, precision="fp32", num_slots=1)
    stopping = threading.Thread(target=kill_once_building, args=(build,))
    stopping.start()
    with pytest.raises(EngineUnavailableError, match="the build was stopped"):
        build.result(to_judge=False)
    stopping.join()
    gate.touch()
    assert prepared(bundle) == "tensorrt:fp32"


def kill_once_building(build: Build) -> None:
    while not build.progress()["precision"]:
        time.sleep(0.01)
    build.kill()
