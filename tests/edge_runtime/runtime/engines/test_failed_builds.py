"""A build that fails is one sentence, and what was built stays."""

import json
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import Any, get_args

import onnx
import pytest
from cli_tools import invoked, succeeded
from click.testing import Result
from stand_ins import BUILD_COMMAND, STAND_IN_ONLY, SetUp, with_precisions

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api, cache, failures
from hrm_edge_runtime.engines.trt.building import Build
from hrm_edge_runtime.engines.trt.cache import EngineKey
from hrm_edge_runtime.engines.trt.causes import REMEDIES, Cause, TensorRTError, cause_of
from hrm_host.memory import Memory
from hrm_parity import trt_build as tensorrt_build

pytestmark = pytest.mark.usefixtures("device")


MADE = (
    "create_network",
    "create_builder_config",
    "create_optimization_profile",
    "deserialize_cuda_engine",
    "create_execution_context",
    "create_engine_inspector",
)


def build(bundle: Bundle, *more: str) -> Result:
    return succeeded(tensorrt_build.app, bundle.path, "--slots=1", *more)


def failed(bundle: Bundle, *more: str) -> Result:
    done = invoked(tensorrt_build.app, bundle.path, "--slots=1", *more)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 1
    return done


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("builder", "does not start here (CUDA initialization failure"),
        ("runtime", "does not start here (CUDA initialization failure with error: 35)"),
        ("create_timing_cache", "cannot create a timing cache (Error Code 2: no timing cache)"),
    ],
)
def test_failing_tensorrt_is_retried(bundle: Bundle, device: SetUp, fault: str, error: str):
    device(FAKE_TENSORRT_FAILS=fault)
    assert error in failed(bundle).stderr
    device(FAKE_TENSORRT_FAILS="nothing")
    build(bundle)


@pytest.mark.parametrize("function", MADE)
def test_none_for_an_object_is_one_sentence(bundle: Bundle, device: SetUp, function: str):
    device(FAKE_TENSORRT_FAILS=function)
    failed(bundle)


@pytest.mark.parametrize("function", ["get_timing_cache", "serialize", "get_engine_information"])
def test_an_engine_does_not_need_what_only_informs(bundle: Bundle, device: SetUp, function: str):
    device(FAKE_TENSORRT_FAILS=function)
    build(bundle)


@pytest.fixture
def two_precisions(bundle: Bundle) -> Bundle:
    graph = onnx.load(bundle.graph_path("fp32"))
    return with_precisions(bundle, fp16=graph, int8=graph)


def prepared(bundle: Bundle, engine: str = "tensorrt", **more: Any) -> str:
    return str(factory.prepare(bundle, engine, num_slots=1, build_command=BUILD_COMMAND, **more))


@pytest.mark.process
def test_a_killed_build_is_not_repeated(
    two_precisions: Bundle, device: SetUp, caplog: pytest.LogCaptureFixture
):
    device(FAKE_TENSORRT_FAILS="kill step.int8.onnx")
    assert prepared(two_precisions) == "tensorrt:fp16"
    killed = "the build was killed by signal 9 (SIGKILL), usually out of memory"
    assert f"tiny runs without int8: {killed}" in caplog.text
    assert "its last line is '[TRT] timing a kernel of step.int8.onnx': stop the" in caplog.text
    device(FAKE_TENSORRT_FAILS="nothing")
    caplog.clear()
    assert prepared(two_precisions) == "tensorrt:fp16"
    assert "tiny runs without int8: an earlier build failed (the build was killed" in caplog.text
    with pytest.raises(EngineUnavailableError, match=r"int8: an earlier build failed") as refused:
        prepared(two_precisions, "tensorrt:int8")
    command = shlex.split(str(refused.value).split("`")[1])
    assert command[-1] == "--again"
    succeeded(tensorrt_build.app, *command[3:])
    assert prepared(two_precisions, "tensorrt:int8") == "tensorrt:int8"


def test_a_failed_build_leaves_no_engine_and_needs_again(bundle: Bundle, device: SetUp):
    device(FAKE_TENSORRT_FAILS="build")
    assert "Error Code 2: OutOfMemory (no further information)" in failed(bundle).stderr
    assert list(cache.plan_folder().glob("*.plan")) == []
    device(FAKE_TENSORRT_FAILS="nothing")
    earlier = f"an earlier build failed (TensorRT {api.version()} cannot build"
    assert earlier in failed(bundle).stderr
    build(bundle, "--again")
    build(bundle)


@pytest.mark.process
def test_a_stopped_build_is_not_remembered(bundle: Bundle, device: SetUp, tmp_path: Path):
    device(FAKE_TENSORRT_WAITS_IN=str(tmp_path))
    build = Build(bundle, precision="fp32", num_slots=1, command=BUILD_COMMAND)
    stopping = threading.Thread(target=kill_once_building, args=(build,))
    stopping.start()
    with pytest.raises(EngineUnavailableError, match="the build was stopped"):
        build.result(to_judge=False)
    stopping.join()
    (tmp_path / "step.fp32.onnx").touch()
    assert prepared(bundle) == "tensorrt:fp32"


def kill_once_building(build: Build) -> None:
    while not build.progress()["precision"]:
        time.sleep(0.01)
    build.kill()


@pytest.mark.parametrize(
    ("message", "status", "cause"),
    [
        ("Error Code 2: OutOfMemory (none)", 1, "memory"),
        ("CUDA error 2: out of memory", 1, "memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", -6, "memory"),
        ("", -9, "memory"),
        ("Target GPU SM 87 is not supported by this TensorRT", 1, "wrong GPU"),
        ("no kernel image is available for execution on the device", 1, "wrong GPU"),
        ("Error Code 10: no implementation", -11, "unknown"),
        ("cuDevicePrimaryCtxRetain gives CUDA_ERROR_OUT_OF_MEMORY", 1, "memory"),
        ("cuModuleLoadData gives CUDA_ERROR_NO_BINARY_FOR_GPU", 1, "wrong GPU"),
        ("cuCtxSynchronize gives CUDA_ERROR_LAUNCH_TIMEOUT", 1, "machine"),
        ("CUDA initialization failure with error: 35", 1, "machine"),
        ("cudaErrorLaunchFailure: unspecified launch failure", -6, "machine"),
        ("timing a kernel", -15, "stopped"),
        ("", -2, "stopped"),
        ("", -11, "unknown"),
        ("no reason", 1, "unknown"),
    ],
)
def test_a_failed_build_has_one_cause(message: str, status: int, cause: Cause):
    assert cause_of(message, status) == cause
    assert REMEDIES[cause]


REPORTS_A_FAILURE = """
import json, sys
print(json.dumps({"failed": "out of memory, CUDA error, target GPU: try again.", "cause": %r}))
"""


@pytest.mark.process
@pytest.mark.parametrize("cause", get_args(Cause))
def test_the_cause_of_a_failure_decides_about_fp32_whatever_its_words(
    two_precisions: Bundle, cause: Cause
):
    command = [sys.executable, "-c", REPORTS_A_FAILURE % cause]
    build = Build(two_precisions, precision=None, num_slots=1, command=command)
    with pytest.raises(EngineUnavailableError) as refused:
        build.engines()
    assert ("fp32: out of" in str(refused.value)) == (cause in ("rejected", "unknown"))
    is_of_the_graph = cause in ("rejected", "unknown", "memory")
    assert ("int8: out of" in str(refused.value)) == is_of_the_graph


OLD = {"FAKE_TENSORRT_VERSION": "8.6.1"}


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "error"),
    [
        pytest.param(OLD, "(fp16: TensorRT 8.6.1 is not supported", marks=STAND_IN_ONLY),
        ({"XDG_CACHE_HOME": "/dev/null"}, "set XDG_CACHE_HOME"),
    ],
)
def test_a_fault_of_the_machine_is_reported_once(
    two_precisions: Bundle, device: SetUp, settings: dict[str, str], error: str
):
    device(**settings)
    with pytest.raises(EngineUnavailableError) as refused:
        prepared(two_precisions)
    assert error in str(refused.value)
    assert "int8" not in str(refused.value)


def test_too_little_memory_is_the_cause_of_a_build_that_does_not_begin(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
):
    small = Memory(total_mb=2000, available_mb=500, swap_mb=0, swap_free_mb=0, gpu_mb=0)
    monkeypatch.setattr("hrm_host.memory.read_memory", lambda: small)
    done = failed(bundle, "--precision=fp32", "--json")
    reported = json.loads(done.stdout.splitlines()[-1])
    told = "takes about 2512 MB and this machine can give 500 MB: stop the desktop"
    assert told in reported["failed"]
    assert reported["cause"] == "memory"
    build(bundle, "--force")


@pytest.mark.parametrize("cause", get_args(Cause))
def test_only_a_cause_that_lasts_is_remembered(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Cause
):
    monkeypatch.setattr(failures, "BOOT_ID", tmp_path / "boot")
    monkeypatch.setattr(failures, "DRIVERS", [tmp_path / "driver"])
    (tmp_path / "boot").write_text("monday")
    (tmp_path / "driver").write_text("540.3.0")
    machine = cache.this_machine()
    key = EngineKey.of(bundle, machine, precision="fp32", num_slots=1)
    failures.remember(key, TensorRTError("it failed", cause))
    assert (failures.find(key) is not None) == (cause in ("memory", "wrong GPU", "rejected"))
    (tmp_path / "boot").write_text("tuesday")
    assert (failures.find(key) is not None) == (cause in ("wrong GPU", "rejected"))
    (tmp_path / "driver").write_text("580.1.0")
    assert failures.find(key) is None


@pytest.mark.process
def test_cuda_that_does_not_start_is_named_before_a_build_and_passes(bundle: Bundle, device: SetUp):
    """NVIDIA's runtime is then a bad pointer, not null, and its first use ends the process."""
    device(FAKE_TENSORRT_FAILS="bad pointer")
    killed = r"killed by signal 11 \(SIGSEGV\), a memory error"
    named = rf"does not start here \(the trial was {killed}.*restart the board"
    with pytest.raises(EngineUnavailableError, match=named):
        prepared(bundle, "tensorrt:fp32")
    assert list(cache.plan_folder().glob("*.failure")) == []
    device(FAKE_TENSORRT_FAILS="nothing")
    assert prepared(bundle, "tensorrt:fp32") == "tensorrt:fp32"


def test_an_exception_in_the_progress_display_does_not_end_a_build(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """TensorRT calls it from threads that Python did not start."""
    threads = set()

    def broken(*_: object) -> None:
        threads.add(type(threading.current_thread()).__name__)
        raise RuntimeError("the terminal is gone")

    monkeypatch.setattr("hrm_host.progress.Stages.show", broken)
    build(bundle)
    assert "a callback of TensorRT failed" in caplog.text
    assert threads == {"_DummyThread"}


def test_a_profile_that_the_plan_lacks_is_one_sentence(bundle: Bundle):
    """10.3 to 10.12 end the process if they are asked for it."""
    build(bundle)
    key = EngineKey.of(bundle, cache.this_machine(), precision="fp32", num_slots=1)
    _, plan = cache.read_plan(bundle, key)
    opened = api.engine_from_plan(plan, api.new_logger())
    missing = opened.num_optimization_profiles
    with pytest.raises(EngineUnavailableError, match=f"not profile {missing}: build the engine"):
        api.context_for(opened, profile=missing, shapes={}, stream=1)


def test_builder_limits_suit_an_8_gb_board(bundle: Bundle):
    build(bundle)
    (plan,) = cache.plan_folder().glob("*.plan")
    settings = json.loads(plan.read_bytes().partition(b"\n")[0])
    assert settings["aux_streams"] == 0
    assert settings["limits"] == {"WORKSPACE": 512 << 20, "TACTIC_DRAM": 2 << 30}
