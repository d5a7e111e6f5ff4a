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
from typer.testing import CliRunner

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api, failures
from hrm_edge_runtime.engines.trt import build as tensorrt_build
from hrm_edge_runtime.engines.trt.api import BuildSettings
from hrm_edge_runtime.engines.trt.building import Build
from hrm_host.progress import Stages


def build_plan(bundle: Bundle, timing_cache: Path) -> bytes:
    return api.plan_from_onnx(
        bundle.graph_path("fp32"),
        [{"tokens_BT": (1, 16)}],
        settings=BuildSettings(),
        stages=Stages(),
        timing_cache=timing_cache,
    )


def test_a_builder_that_does_not_start_is_one_sentence_with_tensorrts_last_error(
    bundle: Bundle, device: SetUp, tmp_path: Path
) -> None:
    device(FAKE_TENSORRT_FAILS="builder")
    error = r"TensorRT 10.3.0 does not start here \(CUDA initialization failure.* 35\): restart"
    with pytest.raises(EngineUnavailableError, match=error):
        build_plan(bundle, tmp_path / "timing.cache")
    with pytest.raises(EngineUnavailableError, match=error):
        api.check_start()


def test_a_runtime_that_does_not_start_is_one_sentence_with_tensorrts_last_error(
    device: SetUp,
) -> None:
    device(FAKE_TENSORRT_FAILS="runtime")
    error = r"does not start here \(CUDA initialization failure with error: 35\)"
    with pytest.raises(EngineUnavailableError, match=error):
        api.engine_from_plan(b"", api.LastError())


@pytest.mark.parametrize("kept", [b"", b"kernel times"])
def test_a_timing_cache_that_cannot_be_created_is_one_sentence(
    bundle: Bundle, device: SetUp, tmp_path: Path, kept: bytes
) -> None:
    device(FAKE_TENSORRT_FAILS="timing cache")
    file = tmp_path / "timing.cache"
    file.write_bytes(kept)
    error = r"creates no timing cache \(Error Code 2: no timing cache\)"
    with pytest.raises(EngineUnavailableError, match=error):
        build_plan(bundle, file)


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
def test_all_precisions_are_built_by_hand_in_processes_of_their_own(
    two_precisions: Bundle, device: SetUp, caplog: pytest.LogCaptureFixture
) -> None:
    device(FAKE_TENSORRT_FAILS="kill step.int8.onnx")
    arguments = [str(two_precisions.path), "--slots=1", "--json"]
    done = CliRunner().invoke(tensorrt_build.app, arguments)
    assert json.loads(done.stdout.splitlines()[-1])["chosen"] == "fp16"
    assert "[TRT] timing a kernel of step.int8.onnx" in done.stderr
    assert "tiny runs without int8: the build was killed by signal 9" in caplog.text


def test_what_tensorrt_does_not_build_is_not_tried_again_without_again(
    bundle: Bundle, device: SetUp
) -> None:
    arguments = [str(bundle.path), "--slots=1"]
    device(FAKE_TENSORRT_FAILS="build")
    assert "builds no engine" in CliRunner().invoke(tensorrt_build.app, arguments).stderr
    device(FAKE_TENSORRT_FAILS="nothing")
    refused = CliRunner().invoke(tensorrt_build.app, arguments)
    assert refused.exit_code == 1
    assert "an earlier build failed (TensorRT 10.3.0 builds no engine" in refused.stderr
    assert CliRunner().invoke(tensorrt_build.app, [*arguments, "--again"]).exit_code == 0
    assert CliRunner().invoke(tensorrt_build.app, arguments).exit_code == 0


def test_a_builder_that_does_not_start_is_tried_again(bundle: Bundle, device: SetUp) -> None:
    arguments = [str(bundle.path), "--slots=1"]
    device(FAKE_TENSORRT_FAILS="builder")
    assert "does not start here" in CliRunner().invoke(tensorrt_build.app, arguments).stderr
    device(FAKE_TENSORRT_FAILS="nothing")
    assert CliRunner().invoke(tensorrt_build.app, arguments).exit_code == 0


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


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "was killed by signal 9, usually out of memory"),
        (-11, "was killed by signal 11, a memory error in a native library"),
        (-64, "was killed by signal 64"),
        (3, "ended with status 3"),
    ],
)
def test_an_exit_status_is_explained(status: int, words: str) -> None:
    assert failures.describe_status(status) == words
