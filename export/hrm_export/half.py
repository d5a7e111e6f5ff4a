"""A float32 step graph becomes a float16 one whose types stand in the graph, with float32 islands where it needs them.

Strongly typed, as TensorRT wants it (and from version 11 knows nothing else): every node computes in one type, and a
Cast stands wherever two meet. Inputs and outputs of the graph keep their names and types. The graph may hold Q/DQ
already: its scales become float16 with the rest. Which nodes stay in float32 is decided in `islands.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hrm_export.onnx_graph import element_types, with_nodes

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
SUFFIX: dict[int, str] = {HALF: "half", SINGLE: "single"}


def half_graph(model: onnx.ModelProto, islands: Collection[str]) -> onnx.ModelProto:
    """The same function with every float node in float16 but those named `islands`; refuses a name it does not have."""
    unknown = sorted(set(islands) - {node.name for node in model.graph.node})
    if unknown:
        raise ValueError(f"the graph has no node {unknown[0]!r} to leave in float32; choose islands for this graph")
    conversion = _Conversion(model, islands)
    for node in model.graph.node:
        conversion.add(node)
    return with_nodes(model, conversion.nodes, list(conversion.tensors.values()))


class _Conversion:
    """`made_in` is the type each float value is made or stored in; where the other is needed it is cast, once."""

    def __init__(self, model: onnx.ModelProto, islands: Collection[str]) -> None:
        self.islands = islands
        self.floats = {name for name, kind in element_types(model).items() if kind == SINGLE}
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, TensorProto] = {}
        self.made_in: dict[str, int] = {value.name: SINGLE for value in model.graph.input if value.name in self.floats}
        self.casts: dict[tuple[str, int], str] = {}
        used_in_single = {name for node in model.graph.node if node.name in islands for name in node.input}
        for tensor in model.graph.initializer:
            self.store(tensor, SINGLE if tensor.name in used_in_single else HALF)

    def store(self, tensor: TensorProto, kind: int) -> None:
        """A stored array in the type it is used in; one that is used in both is stored in float32."""
        if tensor.name in self.floats:
            self.made_in[tensor.name] = kind
            if kind == HALF:
                tensor = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        self.tensors[tensor.name] = tensor

    def add(self, node: onnx.NodeProto) -> None:
        """The node in its own type, with casts before it where its inputs are made in the other."""
        kind = SINGLE if node.name in self.islands else HALF
        ours = onnx.NodeProto()
        ours.CopyFrom(node)
        ours.input[:] = [self.in_type(name, kind) for name in node.input]
        self.nodes.append(ours)
        for index, name in enumerate(node.output):
            if name in self.floats:
                self.made_in[name] = kind
                if kind == HALF and name in self.outputs:
                    ours.output[index] = self.publish(name)

    def publish(self, name: str) -> str:
        """Casts what becomes a graph output, which is float32 always; gives the name of what is cast."""
        inner = f"{name}/{SUFFIX[HALF]}"
        self.cast(inner, name, SINGLE)
        self.made_in[name], self.casts[name, HALF] = SINGLE, inner
        return inner

    def in_type(self, name: str, kind: int) -> str:
        """The name of that value in that type; integers and truths have only one."""
        if self.made_in.get(name, kind) == kind:
            return name
        if (name, kind) not in self.casts:
            self.casts[name, kind] = self.cast(name, f"{name}/{SUFFIX[kind]}", kind)
        return self.casts[name, kind]

    def cast(self, value: str, name: str, kind: int) -> str:
        self.nodes.append(helper.make_node("Cast", [value], [name], name=f"{name}/cast", to=kind))
        return name
