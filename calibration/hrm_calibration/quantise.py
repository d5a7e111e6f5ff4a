"""Turn a float32 step graph into an INT8 one: Q/DQ around the linear products and nowhere else.

Symmetric and signed, as TensorRT wants it (Developer Guide, "Explicit Quantization"): weights per
output channel, activations per tensor with a scale for each call site. Residual sums read the
unquantized tensor. A "weight-only" matrix is stored in INT8 too, but its inputs are not rounded.
`ranges.py` chooses the scales. Shapes: I inputs and O outputs of a linear layer.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

IN_FLOAT = frozenset({"logits_BTV", "halting/product", "embed/vectors"})
"""Products too small to gain from INT8. They decide answers and halts, or reveal a NaN vector."""
LIMITS = {7: 64, 8: 127}
"""The largest quantized weight by `weight_bits`: 8 for TensorRT, 7 for the form for CPUs.

x86 processors without VNNI add two products of ONNX Runtime's fastest kernel in 16 bits, which
saturate: 255 (64 + 64) fits, 255 (127 + 127) does not (onnxruntime.ai, "Quantize ONNX models", on
U8S8). Seven bits cost little, because most of the error comes from activations.
"""
INT8 = "/int8"
"""Ending of the INT8 array that replaces a matrix."""
SCALE = "/scale"
"""Ending of a scale, of a matrix or of a call site."""
SIGNED_ZERO = "zero_int8"
UNSIGNED_ZERO = "zero_uint8"
UNSIGNED_SHIFT = 128
"""Zero point of unsigned activations."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A call of a linear layer: the node's name, the tensor it reads and the matrix it uses."""

    name: str
    tensor: str
    weight: str


def call_sites(graph: ModelProto) -> list[Site]:
    """Every product with a stored matrix except the heads, in the order they run.

    Raises ValueError if there is none.
    """
    stored: set[str] = set()
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2:
            stored.add(tensor.name)
    sites: list[Site] = []
    for node in graph.graph.node:
        if node.op_type != "MatMul" or node.name in IN_FLOAT:
            continue
        tensor_name, weight_name = node.input
        if weight_name in stored:
            site = Site(name=node.name, tensor=tensor_name, weight=weight_name)
            sites.append(site)
    if not sites:
        problem = "the graph has no product with a stored float matrix"
        raise ValueError(f"{problem}; give a step graph in float32")
    return sites


def quantise(
    graph: ModelProto,
    scales: Mapping[str, float],
    *,
    weight_only: Collection[str] = (),
    weight_bits: int = 8,
) -> ModelProto:
    """The signed Q/DQ graph; `scales` by call site, `weight_only` names matrices.

    Each matrix is stored once in INT8, even if several call sites use it. Raises ValueError for a
    call site without a scale, an unknown matrix in `weight_only`, and other `weight_bits` than 7
    and 8.
    """
    if weight_bits not in LIMITS:
        raise ValueError(f"weights of {weight_bits} bits are not supported; choose 7 or 8")
    sites = call_sites(graph)
    weights = {site.weight for site in sites}
    unknown = sorted(set(weight_only) - weights)
    if unknown:
        problem = f"{unknown[0]} is not a matrix of a linear layer"
        raise ValueError(f"{problem}; choose from {sorted(weights)}")
    rounded = {site.name: site for site in sites if site.weight not in weight_only}
    for name in rounded:
        if not scales.get(name, 0) > 0:
            raise ValueError(f"call site {name} has no scale above 0; calibrate this graph again")
    tensors: list[TensorProto] = []
    for tensor in graph.graph.initializer:
        if tensor.name in weights:
            tensors += _quantised_tensors(tensor, LIMITS[weight_bits])
        else:
            tensors.append(tensor)
    for name in rounded:
        scale = np.array(scales[name], np.float32)
        tensors.append(numpy_helper.from_array(scale, name + SCALE))
    zero = np.array(0, np.int8)
    tensors.append(numpy_helper.from_array(zero, SIGNED_ZERO))
    return with_nodes(graph, _quantised_nodes(graph, rounded, weights), tensors)


def _quantised_tensors(tensor: TensorProto, limit: int) -> list[TensorProto]:
    matrix_IO, scale_O = quantised_matrix(numpy_helper.to_array(tensor), limit)
    return [
        numpy_helper.from_array(matrix_IO, tensor.name + INT8),
        numpy_helper.from_array(scale_O, tensor.name + SCALE),
    ]


def quantised_matrix(
    weight_IO: NDArray[np.float32],
    limit: int,
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The matrix in -`limit`..`limit` with the scale of each output channel."""
    largest_O = np.abs(weight_IO).max(axis=0)
    scale_O = np.where(largest_O > 0, largest_O / limit, 1).astype(np.float32)
    rounded_IO = np.rint(weight_IO / scale_O)
    return rounded_IO.clip(-limit, limit).astype(np.int8), scale_O


def _quantised_nodes(
    graph: ModelProto,
    rounded: Mapping[str, Site],
    weights: set[str],
) -> Iterator[NodeProto]:
    """Dequantize every matrix, then the graph's nodes in order, with their inputs rounded."""
    for weight in sorted(weights):
        inputs = [weight + INT8, weight + SCALE]
        name = f"{weight}/dequantize"
        yield helper.make_node("DequantizeLinear", inputs, [weight], name=name, axis=1)
    for node in graph.graph.node:
        if node.name in rounded:
            yield from _rounded_product(node, rounded[node.name])
        else:
            yield node


def _rounded_product(node: NodeProto, site: Site) -> list[NodeProto]:
    name = site.name
    scale = name + SCALE
    small = f"{name}/quantized"
    back = f"{name}/dequantized"
    read = [site.tensor, scale, SIGNED_ZERO]
    stored = [small, scale, SIGNED_ZERO]
    quantize = helper.make_node("QuantizeLinear", read, [small], f"{name}/quantize")
    dequantize = helper.make_node("DequantizeLinear", stored, [back], f"{name}/dequantize")
    product = helper.make_node("MatMul", [back, site.weight], list(node.output), node.name)
    return [quantize, dequantize, product]


def unsigned(graph: ModelProto, weight_only: Collection[str] = ()) -> ModelProto:
    """The same function with activations in 0..255: zero points move by 128, scales stay.

    For weights of seven bits. A weight-only matrix becomes float by Cast and Mul, which ONNX
    Runtime computes once while it loads; it would run DequantizeLinear in every step.
    """
    zero = np.array(UNSIGNED_SHIFT, np.uint8)
    tensors = [*graph.graph.initializer, numpy_helper.from_array(zero, UNSIGNED_ZERO)]
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        if node.output[0] in weight_only:
            nodes += _float_matrix(node)
            continue
        ours = copy.deepcopy(node)
        for index, name in enumerate(node.input):
            if name == SIGNED_ZERO:
                ours.input[index] = UNSIGNED_ZERO
        nodes.append(ours)
    return with_nodes(graph, nodes, tensors)


def _float_matrix(dequantize: NodeProto) -> list[NodeProto]:
    matrix, scale = dequantize.input
    weight = dequantize.output[0]
    cast = f"{weight}/cast"
    to_float = helper.make_node("Cast", [matrix], [cast], cast, to=TensorProto.FLOAT)
    scaled = helper.make_node("Mul", [cast, scale], [weight], f"{weight}/scaled")
    return [to_float, scaled]


def with_nodes(
    model: ModelProto,
    nodes: Iterable[NodeProto],
    tensors: Iterable[TensorProto],
) -> ModelProto:
    """The model with other nodes, and those of `tensors` that they use."""
    changed = copy.deepcopy(model)
    for part in ("node", "initializer", "value_info"):
        changed.graph.ClearField(part)
    changed.graph.node.extend(nodes)
    used: set[str] = set()
    for node in changed.graph.node:
        used.update(node.input)
    for tensor in tensors:
        if tensor.name in used:
            changed.graph.initializer.append(tensor)
    return changed


def with_outputs(graph: ModelProto, tensors: Iterable[str]) -> ModelProto:
    """The graph with these tensors among its outputs."""
    shown = copy.deepcopy(graph)
    given = {value.name for value in graph.graph.output}
    for name in tensors:
        if name not in given:
            shown.graph.output.append(ValueInfoProto(name=name))
    return shown
