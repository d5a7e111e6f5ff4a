"""Write an ONNX graph node by node."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from hrm_calibration.graph_rules import IR_VERSION, OPSET


class GraphWriter:
    """Collects nodes in order. A value has the name of the node that makes it."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def node(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        node = helper.make_node(operator, inputs, [name], name=name, **attributes)
        self._nodes.append(node)
        return name

    def within(self, scope: str) -> Callable[..., str]:
        """`node`, with names that start with the scope."""

        def node(name: str, operator: str, *inputs: str, **attributes: Any) -> str:
            return self.node(f"{scope}/{name}", operator, *inputs, **attributes)

        return node

    def copy(self, nodes: Iterable[NodeProto], tensors: Iterable[TensorProto] = ()) -> None:
        self._nodes.extend(nodes)
        for tensor in tensors:
            self._tensors[tensor.name] = tensor

    def split(self, name: str, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        parts = [f"{name}.{index}" for index in range(len(sizes))]
        inputs = [value, self.ints(*sizes)]
        node = helper.make_node("Split", inputs, parts, name=name, axis=axis)
        self._nodes.append(node)
        return parts

    def tensor(self, name: str, array: NDArray[Any]) -> str:
        """The initializer of that name, stored once even if it is used often."""
        if name not in self._tensors:
            in_order = np.array(array, order="C")
            self._tensors[name] = numpy_helper.from_array(in_order, name)
        return name

    def number(self, value: float) -> str:
        return self.tensor(f"number {value!r}", np.array(value, np.float32))

    def index(self, value: int) -> str:
        """A scalar int64; gathering with it drops the axis."""
        return self.tensor(f"index {value}", np.array(value, np.int64))

    def ints(self, *values: int) -> str:
        """Several int64, for shapes, axes and offsets."""
        text = " ".join(str(value) for value in values)
        return self.tensor(f"ints {text}", np.array(values, np.int64))

    def publish(self, value: str, name: str) -> None:
        """Give a value the name of a graph output, wherever it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for index, other in enumerate(names):
                    if other == value:
                        names[index] = name

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> ModelProto:
        """The nodes that the outputs need, and the arrays that these nodes use."""
        wanted = {value.name for value in outputs}
        nodes: list[NodeProto] = []
        for node in reversed(self._nodes):
            if not wanted.isdisjoint(node.output):
                nodes.append(node)
                wanted.update(node.input)
        nodes.reverse()
        tensors = [tensor for tensor in self._tensors.values() if tensor.name in wanted]
        graph = helper.make_graph(nodes, name, inputs, outputs, initializer=tensors)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="hrm-export",
        )
