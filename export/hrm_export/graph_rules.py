"""What must hold of every graph this project hands out: what TensorRT 10.3 reads, strongly typed, each weight once."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import TensorProto, numpy_helper, shape_inference

from hrm_export.onnx_graph import FLOATS, IR_VERSION, OPSET, element_types

_PLAIN = FLOATS | {TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL}
_STORED = FLOATS | {TensorProto.INT8}
TENSORRT_OPERATORS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("Div", "Mul", "Pow", "Sub"), FLOATS),
    "Add": FLOATS | {TensorProto.INT32},
    **dict.fromkeys(("And", "Greater", "Not"), frozenset({TensorProto.BOOL})),
    **dict.fromkeys(("MatMul", "Pad", "ReduceMean", "Sigmoid", "Softmax", "Sqrt"), FLOATS),
    **dict.fromkeys(("Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Split"), _PLAIN),
    **dict.fromkeys(("Transpose", "Unsqueeze", "Where"), _PLAIN),
    "ArgMax": frozenset({TensorProto.INT64}),
    "QuantizeLinear": frozenset({TensorProto.INT8}),
    "DequantizeLinear": FLOATS,
}
"""The operators a graph may use, each with the types it may give out.

All of them stand in docs/operators.md of github.com/onnx/onnx-tensorrt since 8.5 (commit 6d0ab7b); 10.0 added INT64,
and the parser has only grown since. Zero points must be 0 there. The list is what we use: look a new operator up there
before adding it here.
"""
INT8, SCALE = "/int8", "/scale"
"""Endings of what stands in the place of a quantised matrix, and of a call site's range."""


class GraphError(ValueError):
    """A graph that must not leave this program; the message names the rule it breaks."""


def check_graph(model: onnx.ModelProto, stored: Mapping[str, int]) -> None:
    """Raises GraphError for a graph that is not valid ONNX, not for TensorRT, or holds other arrays than it should.

    `stored` gives the number of elements of every weight and table: each must be there once, and no other. A quantised
    one stands under NAME/int8, beside its scales.
    """
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        raise GraphError(f"the graph is not valid ONNX ({reason}); this is a fault of the exporter") from error
    _check_versions(model)
    types = element_types(model)
    _check_operators(model, types)
    _check_strongly_typed(model, types)
    _check_zero_points(model.graph)
    _check_stored(model.graph, stored)


def _check_versions(model: onnx.ModelProto) -> None:
    found = (model.ir_version, [(entry.domain, entry.version) for entry in model.opset_import])
    if found != (IR_VERSION, [("", OPSET)]):
        raise GraphError(f"the graph has IR and opsets {found}; write IR {IR_VERSION} and opset {OPSET}")


def _check_operators(model: onnx.ModelProto, types: Mapping[str, int]) -> None:
    for node in model.graph.node:
        found = {types[output] for output in node.output}
        if not found <= TENSORRT_OPERATORS.get(node.op_type, frozenset()):
            names = ", ".join(TensorProto.DataType.Name(code) for code in sorted(found))
            raise GraphError(
                f"{node.name} is {node.op_type} giving {names}, which TensorRT 10.3 may not read; use one that it reads"
            )


def _check_strongly_typed(model: onnx.ModelProto, types: Mapping[str, int]) -> None:
    """What an operator's definition gives one type must have one: ONNX's own checker lets half and float meet."""
    for node in model.graph.node:
        schema = onnx.defs.get_schema(node.op_type, OPSET)
        kinds: dict[str, set[int]] = {}
        for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
            for index, name in enumerate(names):
                formal = formals[min(index, len(formals) - 1)]  # the last one may stand for several
                kinds.setdefault(formal.type_str, set()).add(types[name])
        if any(len(found) > 1 for found in kinds.values()):
            meeting = {name: TensorProto.DataType.Name(types[name]) for name in (*node.input, *node.output)}
            raise GraphError(f"{node.name} mixes types ({meeting}), which a strongly typed network refuses; cast first")


def _check_zero_points(graph: onnx.GraphProto) -> None:
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and len(node.input) > 2:
            zero = stored.get(node.input[2])
            if zero is None or numpy_helper.to_array(zero).any():
                raise GraphError(f"{node.name} has another zero point than a stored 0; quantise symmetrically")


def _check_stored(graph: onnx.GraphProto, stored: Mapping[str, int]) -> None:
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
        raise GraphError(f"the graph does not hold every weight exactly once ({detail}); share its initialisers")
    for node in graph.node:
        if node.op_type == "Transpose" and node.input[0] in sizes:
            raise GraphError(f"{node.name} turns the weight {node.input[0]}; store it as it is used")
