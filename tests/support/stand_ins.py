"""The stand-ins for TensorRT and CUDA in `fakes`, as modules of the running process."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from bundle_tools import restate

from hrm_edge_runtime.contract.bundle import Bundle

FAKES = Path(__file__).parent / "fakes"
PYTHON_PATH = os.pathsep.join([str(FAKES), os.environ.get("PYTHONPATH", "")])
NVIDIA = bool(os.environ.get("FAKE_TENSORRT_BINDINGS"))
STAND_IN_ONLY = pytest.mark.skipif(NVIDIA, reason="NVIDIA's bindings have a version of their own")
BUILD_COMMAND = (
    sys.executable,
    "-c",
    "from hrm_parity import trt_build; trt_build.MEASURE_S = 0.0; trt_build.app()",
)
"""Builds as the server's own command does, and times each engine for a few steps only."""
SetUp = Callable[..., None]


def with_precisions(bundle: Bundle, **graphs: onnx.ModelProto) -> Bundle:
    names = {"fp32": "step.fp32.onnx"}
    for precision, graph in graphs.items():
        names[precision] = f"step.{precision}.onnx"
        onnx.save(graph, bundle.path / names[precision])
    restate(bundle.path, precisions=names)
    return Bundle.open(bundle.path)
