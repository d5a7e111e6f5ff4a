"""An ONNX graph written node by node, read again and changed, and the rules that every graph we hand out must keep.

Opset 20 and IR 10 are the newest that the TensorRT 10.3 parser (JetPack 6) and the ONNX Runtime builds for it read.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

from hrm_calibration.quantise import INT8, SCALE

OPSET, IR_VERSION = 20, 10
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
_PLAIN = FLOATS | {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
_STORED = FLOATS | {TensorProto.INT8}
TENSORRT_OPERATORS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("DequantizeLinear", "Div", "MatMul", "Mul", "Pad", "Pow", "ReduceMean", "ReduceMin"), FLOATS),
    **dict.fromkeys(("ReduceSum", "Relu", "Sigmoid", "Softmax", "Sqrt", "Sub"), FLOATS),
    "Add": FLOATS | {TensorProto.INT32},
    **dict.fromkeys(("And", "Greater", "Not"), frozenset({TensorProto.BOOL})),
    **dict.fromkeys(("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split"), _PLAIN),
    **dict.fromkeys(("Transpose", "Unsqueeze", "Where"), _PLAIN),
    "ArgMax": frozenset({TensorProto.INT64}),
    "QuantizeLinear": frozenset({TensorProto.INT8}),
}
"""The operators a graph may use, each with the types it may give out. Zero points must be 0.

All are in docs/operators.md of github.com/onnx/onnx-tensorrt since 8.5 (commit 6d0ab7b); 10.0 added INT64. Look a new
operator up there before adding it here.
"""


class GraphWriter:
    """Collects nodes in the order they are added; a value has the name of the node that makes it."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def node(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        self._nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def copy(self, nodes: Iterable[NodeProto], tensors: Iterable[TensorProto] = ()) -> None:
        self._nodes.extend(nodes)
        self._tensors.update((tensor.name, tensor) for tensor in tensors)

    def split(self, name: str, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        parts = [f"{name}.{index}" for index in range(len(sizes))]
        self._nodes.append(helper.make_node("Split", [value, self.ints(*sizes)], parts, name=name, axis=axis))
        return parts

    def tensor(self, name: str, array: np.typing.NDArray[Any]) -> str:
        """The initialiser of that name, stored once however often it is used."""
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
        """Give a value the name of a graph output, wherever it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [name if other == value else other for other in names]

    def model(
        self, name: str, inputs: Sequence[onnx.ValueInfoProto], outputs: Sequence[onnx.ValueInfoProto]
    ) -> ModelProto:
        """The nodes that the outputs need, and the arrays that these use."""
        wanted, nodes = {value.name for value in outputs}, list[NodeProto]()
        for node in reversed(self._nodes):
            if not wanted.isdisjoint(node.output):
                nodes.append(node)
                wanted.update(node.input)
        tensors = [tensor for tensor in self._tensors.values() if tensor.name in wanted]
        graph = helper.make_graph(nodes[::-1], name, inputs, outputs, initializer=tensors)
        imports = [helper.make_opsetid("", OPSET)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION, producer_name="hrm-export")


def element_types(model: ModelProto) -> dict[str, int]:
    """The element type of every value: inputs, stored arrays and whatever a node makes."""
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    stored = {tensor.name: tensor.data_type for tensor in graph.initializer}
    return stored | {value.name: value.type.tensor_type.elem_type for value in values}


def stored_sizes(model: ModelProto) -> dict[str, int]:
    """Elements of every stored float array that is no lone number: the weights and tables of a float graph."""
    floats = (tensor for tensor in model.graph.initializer if tensor.data_type in FLOATS)
    return {tensor.name: size for tensor in floats if (size := math.prod(tensor.dims)) > 1}


def check_graph(model: ModelProto, stored: Mapping[str, int]) -> None:
    """Raise ValueError for a graph that is not valid ONNX, not for TensorRT, or holds other arrays than it should.

    `stored` gives the number of elements of every weight and table: each must be there once, and no other. A quantised
    one is NAME/int8, beside its scales.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the graph is not valid ONNX ({reason}); this is a fault of the exporter") from error
    versions = (model.ir_version, [(entry.domain, entry.version) for entry in model.opset_import])
    if versions != (IR_VERSION, [("", OPSET)]):
        raise ValueError(f"the graph has IR and opsets {versions}; write IR {IR_VERSION} and opset {OPSET}")
    types, tensors = element_types(model), {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        _check_types(node, types)
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 2:
            zero = tensors.get(node.input[2])
            if zero is None or numpy_helper.to_array(zero).any():
                raise ValueError(f"{node.name} has another zero point than a stored 0; quantise symmetrically")
    _check_stored(model.graph, stored)


def _check_types(node: NodeProto, types: Mapping[str, int]) -> None:
    """TensorRT must read the operator, and types that its definition calls one must be one.

    ONNX's own checker lets half and float meet.
    """
    made = {types[output] for output in node.output}
    if not made <= TENSORRT_OPERATORS.get(node.op_type, frozenset()):
        names = ", ".join(TensorProto.DataType.Name(code) for code in sorted(made))
        raise ValueError(
            f"{node.name} is {node.op_type} giving {names}, which TensorRT 10.3 may not read; use one that it reads"
        )
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    kinds: dict[str, set[int]] = {}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            formal = formals[min(index, len(formals) - 1)]  # the last one may stand for several
            kinds.setdefault(formal.type_str, set()).add(types[name])
    if any(len(found) > 1 for found in kinds.values()):
        meeting = {name: TensorProto.DataType.Name(types[name]) for name in (*node.input, *node.output)}
        raise ValueError(f"{node.name} mixes types ({meeting}), which a strongly typed network refuses; cast first")


def _check_stored(graph: GraphProto, stored: Mapping[str, int]) -> None:
    """A weight stored twice fills the device; one that is turned at run time is no weight to a quantiser."""
    sizes = {tensor.name: math.prod(tensor.dims) for tensor in graph.initializer if tensor.data_type in _STORED}
    found: dict[str, int] = {}
    for name, size in sizes.items():
        if size > 1 and not name.endswith(SCALE):
            matrix = name.removesuffix(INT8)
            found[matrix] = found.get(matrix, 0) + size
    if found != stored:
        odd = sorted(name for name in {*found, *stored} if found.get(name) != stored.get(name))[:3]
        detail = "; ".join(f"{name}: expected {stored.get(name)}, found {found.get(name)}" for name in odd)
        raise ValueError(f"the graph does not hold every weight exactly once ({detail}); share its initialisers")
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in sizes:
            raise ValueError(f"{node.name} turns the weight {node.input[0]}; store it as it is used")
