"""A TensorRT that does not start or does not build: one sentence, and what was built stays."""

from pathlib import Path

import pytest
from stand_ins import SetUp

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.trt import api
from hrm_edge_runtime.engines.trt.api import BuildSettings
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
