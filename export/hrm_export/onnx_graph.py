"""An ONNX graph written node by node, read again and changed.

Opset 20 and IR 10 are the newest that the TensorRT 10.3 parser (JetPack 6) and the ONNX Runtime builds for it read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, shape_inference

OPSET, IR_VERSION = 20, 10
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})


class GraphWriter:
    """Collects nodes in the order they are asked for; a value bears the name of the node that makes it."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def node(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node with one output and returns the output's name."""
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def copy(self, nodes: Iterable[onnx.NodeProto], tensors: Iterable[TensorProto] = ()) -> None:
        """Takes over finished nodes and stored arrays."""
        self._nodes.extend(nodes)
        self._tensors.update((tensor.name, tensor) for tensor in tensors)

    def split(self, name: str, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cuts a value into parts of the given sizes."""
        parts = [f"{name}.{index}" for index in range(len(sizes))]
        self._nodes.append(helper.make_node("Split", [value, self.ints(*sizes)], parts, name=name, axis=axis))
        return parts

    def tensor(self, name: str, array: NDArray[Any]) -> str:
        """The initialiser of that name, stored once however often it is asked for."""
        if name not in self._tensors:
            self._tensors[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def number(self, value: float) -> str:
        return self.tensor(f"number {value!r}", np.array(value, np.float32))

    def index(self, value: int) -> str:
        """One int64 without an axis: gathering with it drops the axis."""
        return self.tensor(f"index {value}", np.array(value, np.int64))

    def ints(self, *values: int) -> str:
        """Several int64, as shapes, axes and offsets are given."""
        return self.tensor(f"ints {' '.join(map(str, values))}", np.array(values, np.int64))

    def publish(self, value: str, name: str) -> None:
        """Gives a value the name of a graph output, wherever it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if other == value else other for other in names]

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """The nodes that the outputs need, and the arrays that these use."""
        nodes = _needed(self._nodes, {value.name for value in outputs})
        used = {name for node in nodes for name in node.input}
        tensors = [tensor for tensor in self._tensors.values() if tensor.name in used]
        graph = helper.make_graph(nodes, name, inputs, outputs, initializer=tensors)
        imports = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="hrm-export")


def _needed(nodes: Sequence[onnx.NodeProto], wanted: set[str]) -> list[onnx.NodeProto]:
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted = wanted | set(node.input)
    return kept[::-1]


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of every value: inputs, stored arrays and whatever a node makes."""
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return stored | {value.name: value.type.tensor_type.elem_type for value in values}


def stored_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Elements of every stored float array that is no lone number: the weights and tables of a float graph."""
    floats = (tensor for tensor in model.graph.initializer if tensor.data_type in FLOATS)
    return {tensor.name: size for tensor in floats if (size := math.prod(tensor.dims)) > 1}


def with_nodes(
    model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto], tensors: Iterable[TensorProto]
) -> onnx.ModelProto:
    """The model with other nodes and stored arrays; arrays that no node uses are left out."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for field in ("node", "initializer", "value_info"):
        changed.graph.ClearField(field)
    changed.graph.node.extend(nodes)
    used = {name for node in changed.graph.node for name in node.input}
    changed.graph.initializer.extend(tensor for tensor in tensors if tensor.name in used)
    return changed
