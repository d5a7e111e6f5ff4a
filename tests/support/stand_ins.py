"""The stand-ins for TensorRT and CUDA in `fakes`, as modules of the running process."""

import sys
from collections.abc import Callable
from pathlib import Path

import onnx

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import write_manifest

SUPPORT = Path(__file__).parent
FAKES = SUPPORT / "fakes"
FAKE_MODULES = (
    "tensorrt",
    "fake_gpu",
    "pycuda",
    "pycuda.driver",
    "cuda",
    "cuda.bindings",
    "cuda.bindings.driver",
)
SetUp = Callable[..., None]


def forget_stand_ins() -> None:
    for name in FAKE_MODULES:
        sys.modules.pop(name, None)


def with_precisions(bundle: Bundle, **graphs: onnx.ModelProto) -> Bundle:
    names = {"fp32": "step.fp32.onnx"}
    for precision, graph in graphs.items():
        names[precision] = f"step.{precision}.onnx"
        onnx.save(graph, bundle.path / names[precision])
    fields = bundle.manifest.model_dump(exclude={"files"})
    write_manifest(bundle.path, **{**fields, "precisions": names})
    return Bundle.open(bundle.path)
