"""Does a graph still hold the weights it was made from? A weight of each kind of number has its exact expectation.

A float32 weight is the same, a float16 one the same rounded, an INT8 one within half a step of its grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from hrm_export.cutting import Piece

STEP = 0.6
"""Half a step of rounding; the rest is for a scale that was itself rounded to float16."""
LARGEST = 127
Tensors = dict[str, NDArray[Any]]


class StoredWeights:
    """The arrays of two graphs, looked up by name."""

    def __init__(self, reference: onnx.ModelProto, candidate: onnx.ModelProto) -> None:
        self._reference, self._candidate = _tensors(reference), _tensors(candidate)

    def wrong(self, piece: Piece) -> list[str]:
        """A sentence for each weight of a piece that is not the reference's in the number it is kept in."""
        sentences = [self._wrong_copy(name) for node in piece.nodes for name in node.input]
        sentences += [self._wrong_grid(node) for node in piece.nodes if node.op_type == "DequantizeLinear"]
        return [sentence for sentence in sentences if sentence]

    def coarse(self, piece: Piece, values: Mapping[str, NDArray[Any]]) -> list[str]:
        """A sentence for each activation scale of a piece, with what it does to the reference's values."""
        quantizers = [node for node in piece.nodes if node.op_type == "QuantizeLinear" and node.input[0] in values]
        return [self._effect(node.input[1], values[node.input[0]]) for node in quantizers]

    def _effect(self, name: str, values: NDArray[Any]) -> str:
        scale = float(self._candidate[name])
        size = np.abs(values) / (LARGEST * scale)
        reach = f"reaches to {1 / size.max():.2g} times the largest value"
        return f"the scale {scale:.3g} of its input {reach} and clips {(size > 1).mean():.1%} of all"

    def _wrong_copy(self, name: str) -> str | None:
        if name not in self._reference or name not in self._candidate:
            return None
        ours, theirs = self._candidate[name], self._reference[name]
        if ours.shape != theirs.shape:
            return f"{name} has shape {ours.shape} where the reference has {theirs.shape}"
        with np.errstate(over="ignore"):
            wrong = ~((ours == theirs.astype(ours.dtype)) | (np.isnan(ours) & np.isnan(theirs)))
        return _sentence(name, wrong, ours, theirs)

    def _wrong_grid(self, node: onnx.NodeProto) -> str | None:
        (name,) = node.output
        if name not in self._reference or node.input[0] not in self._candidate:
            return None
        scale = self._candidate[node.input[1]].astype(np.float64)
        ours = self._candidate[node.input[0]].astype(np.float64) * scale
        theirs = self._reference[name]
        with np.errstate(all="ignore"):
            wrong = ~(np.abs(ours - theirs) <= STEP * np.abs(scale))
        return _sentence(name, wrong, ours, theirs)


def _sentence(name: str, wrong: NDArray[np.bool_], ours: NDArray[Any], theirs: NDArray[Any]) -> str | None:
    if not wrong.any():
        return None
    first = tuple(int(index) for index in np.argwhere(wrong)[0])
    change = f"{float(theirs[first]):.6g} became {float(ours[first]):.6g}"
    return (
        f"{int(wrong.sum())} of {wrong.size} values of {name} are not the reference's, first at {list(first)}: {change}"
    )


def _tensors(model: onnx.ModelProto) -> Tensors:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
