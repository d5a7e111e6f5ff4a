"""A step graph in which every float16 operation rounds, as on a GPU; an engine of hrm-parity.

On a CPU, ONNX Runtime computes most float16 operators in float32 and hides their rounding.
`products` is the number of products that a matrix product adds in float32 before it rounds their
sum to float16; None adds all of them. Tensor cores may add 16.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import load_op

from hrm_edge_runtime.contract.manifest import Manifest
from hrm_edge_runtime.engines.engine import INPUTS, OUTPUTS, Arrays, shapes_of
from hrm_edge_runtime.engines.onnx import ArrayEngine

OPSET = 20
ONCE = ("ReduceMean", "ReduceSum", "Softmax")
"""Operators that compute in float32 and round their result once."""


def rounded_engine(
    graph_path: Path, manifest: Manifest, *, num_slots: int, products: int | None
) -> ArrayEngine:
    """Slots of a step graph on `onnx.reference`, which is slow."""
    operators = operators_of(products)
    evaluator = ReferenceEvaluator(onnx.load(graph_path), new_ops=operators)
    names = list(OUTPUTS)

    def run_graph(inputs: Arrays) -> Arrays:
        with np.errstate(over="ignore"):
            values = evaluator.run(names, inputs)
        assert isinstance(values, list)
        return dict(zip(names, values, strict=True))

    shapes = shapes_of(INPUTS, manifest, num_slots)
    return ArrayEngine({name: np.zeros(shapes[name], INPUTS[name]) for name in INPUTS}, run_graph)


def operators_of(products: int | None) -> list[type[OpRun]]:
    """The operators whose sums `onnx.reference` would compute in float16."""

    class MatMul(OpRun):
        op_domain = ""

        def _run(self, a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any]]:
            return (product(a, b, products),)

    class Conv(OpRun):
        op_domain = ""

        def _run(self, x: Any, w: Any, b: Any = None, **attributes: Any) -> tuple[NDArray[Any]]:
            return (convolution(x, w, b, attributes["pads"], products),)

    return [MatMul, Conv, *(rounded_once(name) for name in ONCE)]


def rounded_once(name: str) -> type[OpRun]:
    base = load_op("", name, OPSET)

    class Rounded(base):
        op_domain = ""

        def _run(self, x: NDArray[Any], *others: Any, **attributes: Any) -> Any:
            wide = x.astype(np.float32) if x.dtype == np.float16 else x
            (result,) = super()._run(wide, *others, **attributes)
            return (result.astype(x.dtype),)

    Rounded.__name__ = name
    return Rounded


def product(a: NDArray[Any], b: NDArray[Any], products: int | None) -> NDArray[Any]:
    """The matrix product; sums of float16 are rounded after every `products` products."""
    if a.dtype != np.float16:
        return np.matmul(a, b)
    size = a.shape[-1]
    step = products or size
    total = np.zeros(1, np.float16)
    for start in range(0, size, step):
        part = slice(start, start + step)
        left = a[..., part].astype(np.float32)
        right = b[..., part, :].astype(np.float32)
        sums = np.matmul(left, right)
        total = (total.astype(np.float32) + sums).astype(np.float16)
    return total


def convolution(
    x: NDArray[Any],
    kernel: NDArray[Any],
    bias: NDArray[Any] | None,
    pads: Any,
    products: int | None,
) -> NDArray[Any]:
    """A convolution with steps of one cell, as a matrix product over the cells of each window."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows_BCrchw = sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))
    cells_BrchwC = windows_BCrchw.transpose(0, 2, 3, 4, 5, 1)
    num_outputs = len(kernel)
    matrix = kernel.transpose(2, 3, 1, 0).reshape(-1, num_outputs)
    cells = cells_BrchwC.reshape(*cells_BrchwC.shape[:3], -1)
    images = np.moveaxis(product(cells, matrix, products), -1, 1)
    if bias is None:
        return images
    return images + bias.reshape(-1, 1, 1)
