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
from hrm_edge_runtime.engines import engine as contract
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput

OPSET = 20
ONCE = ("ReduceMean", "ReduceSum", "Softmax")
"""Operators that compute in float32 and round their result once."""


class RoundedEngine(Engine):
    """Slots of a step graph on `onnx.reference`, which is slow."""

    def __init__(
        self, graph_path: Path, manifest: Manifest, *, num_slots: int, products: int | None
    ) -> None:
        self.num_slots = num_slots
        self.seq_len = manifest.seq_len
        graph = onnx.load(graph_path)
        self._evaluator = ReferenceEvaluator(graph, new_ops=operators_of(products))
        shapes = contract.shapes_of(contract.INPUTS, manifest, num_slots)
        self._inputs: dict[str, NDArray[Any]] = {}
        for name, dtype in contract.INPUTS.items():
            self._inputs[name] = np.zeros(shapes[name], dtype)

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._inputs["tokens_BT"][slot] = tokens_T
        self._inputs["puzzle_vector_BE"][slot] = puzzle_vector_E
        self._inputs["fresh_B"][slot] = True

    def move(self, source: int, target: int) -> None:
        for rows in self._inputs.values():
            rows[target] = rows[source]

    def step(self, num_active: int) -> StepOutput:
        feeds = {name: rows[:num_active] for name, rows in self._inputs.items()}
        names = list(contract.OUTPUTS)
        with np.errstate(over="ignore"):
            values = self._evaluator.run(names, feeds)
        assert isinstance(values, list)
        found = dict(zip(names, values, strict=True))
        for carry in contract.CARRIES:
            self._inputs[carry][:num_active] = found.pop(f"{carry}_next")
        self._inputs["fresh_B"][:num_active] = False
        return StepOutput(**found)

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step."""
        return self._inputs["z_high_BND"][:num_active], self._inputs["z_low_BND"][:num_active]


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
