"""The TensorRT engine on a real card, over ONNX Runtime's CUDA provider; has not run yet.

The engine is the product's: buffers, copies, contexts, recorded graphs, runs ahead of the host. The
driver is real too, and ONNX Runtime computes each segment at the addresses that the engine sets.
"""

import json
import shutil
from pathlib import Path

import onnxruntime as ort
import pytest
from bundle_tools import shipped
from cli_tools import succeeded
from stand_ins import FAKES, forget_stand_ins

from hrm_edge_runtime.engines import factory
from hrm_edge_runtime.engines.trt.drivers import is_installed
from hrm_parity import trt_build as build

CUDA = "CUDAExecutionProvider"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(factory.num_gpus() == 0, reason="no CUDA device on this machine"),
    pytest.mark.skipif(
        CUDA not in ort.get_available_providers(), reason="this ONNX Runtime lacks CUDA"
    ),
    pytest.mark.skipif(
        not is_installed("cuda.bindings") and not is_installed("pycuda"),
        reason="neither cuda-bindings nor PyCUDA is installed",
    ),
]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("sudoku-6x6", "fp32"),
        ("maze-8x8", "fp16"),
        ("logistics-6x6", "fp32"),
        ("arc-7x7", "fp16"),
    ],
)
def test_a_shipped_model_builds_and_holds_its_golden_traces(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    precision: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FAKE_TENSORRT_PROVIDER", CUDA)
    monkeypatch.setattr(factory, "start_problem", lambda: None)
    forget_stand_ins()
    for module in ("fake_gpu", "segments", "stand_in_tensorrt", "tensorrt"):  # and no driver
        shutil.copy(FAKES / f"{module}.py", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = str(shipped(name).path)
    done = succeeded(build.app, path, "--precision", precision, "--force", "--json")
    (engine,) = json.loads(done.stdout.splitlines()[-1])["engines"]
    assert engine["breaks"] == []
    assert "runs without a CUDA graph" not in caplog.text
