"""What `auto` runs on a machine with a GPU: TensorRT if it starts, else CUDA, else the CPU."""

import logging
from collections.abc import Iterator

import pytest
from stand_ins import SetUp

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.engine import EngineUnavailableError

pytestmark = pytest.mark.process

RUNS = ""  # a trial that succeeds
REAL_CUDA_TRIAL = factory.CUDA_TRIAL


@pytest.fixture(autouse=True)
def on_a_gpu(device: SetUp, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with a GPU, TensorRT and ONNX Runtime's CUDA provider."""
    del device
    monkeypatch.setattr(factory, "num_gpus", lambda: 1)
    monkeypatch.setattr(factory, "CUDA_TRIAL", RUNS)
    factory.tensorrt_problem.cache_clear()
    yield
    factory.tensorrt_problem.cache_clear()


def test_auto_is_tensorrt_if_it_starts(bundle: Bundle, caplog: pytest.LogCaptureFixture):
    assert factory.presumed(bundle).engine == "tensorrt"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("FAKE_CUDA_FAILS", "init", "ended with status 1: CUDA does not start here"),
        ("FAKE_TENSORRT_FAILS", "builder", "does not start here (CUDA initialization failure"),
    ],
)
def test_auto_is_cuda_if_tensorrt_does_not_start_and_the_log_says_why_once(
    bundle: Bundle,
    device: SetUp,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    value: str,
    reason: str,
):
    device(**{setting: value})
    assert factory.presumed(bundle).engine == "cuda"
    assert factory.choose(bundle).engine == "cuda"
    (record,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert "auto passes over TensorRT and tries CUDA and the CPU" in record.getMessage()
    assert reason in record.getMessage()


def test_auto_falls_back_to_the_cpu(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    device(FAKE_CUDA_FAILS="init")
    monkeypatch.setattr(factory, "CUDA_TRIAL", REAL_CUDA_TRIAL)
    assert factory.presumed(bundle).engine == "cpu"
    assert "auto passes over TensorRT" in caplog.text
    assert "on the CPU although there is a GPU (the trial ended with status 1" in caplog.text
    assert "hrm-edge[serve-gpu]" in caplog.text


def test_auto_skips_a_hanging_driver(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(factory, "TENSORRT_TRIAL", "import time; time.sleep(60)")
    monkeypatch.setattr(factory, "TRIAL_S", 0.1)
    monkeypatch.setattr(factory, "CUDA_TRIAL", "import time; time.sleep(60)")
    assert factory.presumed(bundle).engine == "cpu"
    assert "the trial did not end within 0.1 s" in caplog.text


def test_tensorrts_problem_is_reported(
    bundle: Bundle, device: SetUp, monkeypatch: pytest.MonkeyPatch
):
    device(FAKE_CUDA_FAILS="init")
    found = factory.importlib.util.find_spec

    def without_onnx_runtime(name: str) -> object:
        return None if name == "onnxruntime" else found(name)

    monkeypatch.setattr(factory.importlib.util, "find_spec", without_onnx_runtime)
    with pytest.raises(EngineUnavailableError, match=r"CUDA does not start .* not installed"):
        factory.presumed(bundle)
