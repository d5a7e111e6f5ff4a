"""The rules that every graph of a bundle keeps, in any precision.

Opset 20 and IR 10 are the newest that the TensorRT 10.3 parser (JetPack 6) and the ONNX Runtime
builds for it read.
"""

from collections.abc import Mapping

import onnx
from onnx import ModelProto, NodeProto, TensorProto, shape_inference

from hrm_edge_runtime.contract.operators import OPERATORS

OPSET = 20
IR_VERSION = 10
FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16})
BOOL = frozenset({TensorProto.BOOL})
PLAIN = FLOATS | BOOL | {TensorProto.INT32, TensorProto.INT64}
RETURNED: Mapping[str, frozenset[int]] = {
    "Add": FLOATS | {TensorProto.INT32},
    "And": BOOL,
    "ArgMax": frozenset({TensorProto.INT64}),
    "Cast": PLAIN,
    "Concat": PLAIN,
    "Gather": PLAIN,
    "Greater": BOOL,
    "Identity": PLAIN,
    "Not": BOOL,
    "QuantizeLinear": frozenset({TensorProto.INT8}),
    "Reshape": PLAIN,
    "Slice": PLAIN,
    "Split": PLAIN,
    "Transpose": PLAIN,
    "Unsqueeze": PLAIN,
    "Where": PLAIN,
}
"""The types that an operator may return for TensorRT; others of `OPERATORS` return floats.

All are in docs/operators.md of github.com/onnx/onnx-tensorrt since 8.5 (commit 6d0ab7b); 10.0 added
INT64. Look a new operator up there before adding it.
"""


def element_types(model: ModelProto) -> dict[str, int]:
    """The element type of every input, stored array and computed value."""
    graph = shape_inference.infer_shapes(model, strict_mode=True).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
    return types


def check_graph(model: ModelProto) -> None:
    """Raise ValueError for a graph that is not valid ONNX or that TensorRT 10.3 may not read."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        problem = f"the graph is not valid ONNX ({reason})"
        raise ValueError(f"{problem}; this is a bug in the exporter; please report it") from error
    types = element_types(model)
    for node in model.graph.node:
        _check_operator(node, types)
        _check_one_type(node, types)


def _check_operator(node: NodeProto, types: Mapping[str, int]) -> None:
    """Raise ValueError unless TensorRT reads the operator with its output types."""
    returned = {types[output] for output in node.output}
    allowed = RETURNED.get(node.op_type, FLOATS)
    if node.op_type not in OPERATORS or not returned <= allowed:
        names = ", ".join(map(TensorProto.DataType.Name, sorted(returned)))
        problem = f"{node.name} is {node.op_type} giving {names}, which TensorRT 10.3 may not read"
        raise ValueError(f"{problem}; use one that it reads")


def _check_one_type(node: NodeProto, types: Mapping[str, int]) -> None:
    """Raise ValueError if an operator mixes types where its definition names one type.

    ONNX's own checker accepts float16 beside float32.
    """
    schema = onnx.defs.get_schema(node.op_type, OPSET)
    kinds: dict[str, set[int]] = {}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        last = len(formals) - 1
        for index, name in enumerate(names):
            formal = formals[min(index, last)]  # the last formal may represent several
            kinds.setdefault(formal.type_str, set()).add(types[name])
    for found in kinds.values():
        if len(found) > 1:
            used = (*node.input, *node.output)
            meeting = {name: TensorProto.DataType.Name(types[name]) for name in used}
            problem = f"{node.name} mixes types ({meeting})"
            raise ValueError(f"{problem}, which a strongly typed network rejects; cast first")
