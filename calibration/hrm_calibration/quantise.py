"""A float step graph becomes an INT8 one: Q/DQ around the linear products and nowhere else.

Symmetric and signed, as TensorRT wants it (Developer Guide, "Explicit Quantization"): weights per output channel,
activations per tensor with a scale for each call site. Residual sums read the unquantised tensor. A "weight-only"
matrix is stored in INT8 too, but its inputs are not rounded. Shapes: I inputs and O outputs of a linear layer.
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

HEADS = frozenset({"logits_BTV", "halting/product"})
"""Products that stay in float: a handful of outputs saves nothing, and they decide the answer and the halt."""
LIMITS = {7: 64, 8: 127}
"""The largest quantised weight by `weight_bits`.

x86 processors without VNNI add two products of ONNX Runtime's quickest kernel in 16 bits, which saturate: 255 (64 + 64)
still fits, 255 (127 + 127) does not (onnxruntime.ai, "Quantize ONNX models", on U8S8). Seven bits cost little, since
most of the error comes from activations.
"""
SIGNED_ZERO, UNSIGNED_ZERO = "zero_int8", "zero_uint8"
MIDDLE = 128


class QuantisationError(ValueError):
    """A graph or ranges that cannot be quantised; one sentence with value, expectation and remedy."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One place where a linear layer is called: the node's name, the tensor it reads and the matrix it uses."""

    name: str
    tensor: str
    weight: str


def call_sites(graph: onnx.ModelProto) -> list[Site]:
    """Every product with a stored matrix but the heads, in the order they run; refuses a graph without any."""
    floats = (tensor for tensor in graph.graph.initializer if tensor.data_type == TensorProto.FLOAT)
    stored = {tensor.name for tensor in floats if len(tensor.dims) == 2}
    sites = [
        Site(name=node.name, tensor=node.input[0], weight=node.input[1])
        for node in graph.graph.node
        if node.op_type == "MatMul" and node.input[1] in stored and node.name not in HEADS
    ]
    if not sites:
        raise QuantisationError("the graph has no product with a stored float matrix; give a step graph in float32.")
    return sites


def quantise(
    graph: onnx.ModelProto, scales: Mapping[str, float], *, weight_only: Collection[str] = (), weight_bits: int = 7
) -> onnx.ModelProto:
    """The signed Q/DQ graph; `scales` by call site, `weight_only` names matrices whose inputs stay as they are.

    Each matrix is stored once in INT8, however many call sites use it. Refuses a call site without a scale, a matrix of
    `weight_only` that the graph does not use, and other `weight_bits` than 7 and 8.
    """
    if weight_bits not in LIMITS:
        raise QuantisationError(f"weights of {weight_bits} bits are not made; choose 7 or 8.")
    sites = call_sites(graph)
    weights = {site.weight for site in sites}
    unknown = sorted(set(weight_only) - weights)
    if unknown:
        raise QuantisationError(f"{unknown[0]} is no matrix of a linear layer; choose among {sorted(weights)}.")
    chosen = {site.name: site for site in sites if site.weight not in weight_only}
    missing = [name for name in chosen if not scales.get(name, 0) > 0]
    if missing:
        raise QuantisationError(f"call site {missing[0]} has no scale above 0; calibrate this very graph again.")
    tensors: list[TensorProto] = []
    for tensor in graph.graph.initializer:
        if tensor.name in weights:
            matrix_IO, scale_O = quantised_matrix(numpy_helper.to_array(tensor), LIMITS[weight_bits])
            tensors.append(numpy_helper.from_array(matrix_IO, _stored(tensor.name)))
            tensors.append(numpy_helper.from_array(scale_O, _scale(tensor.name)))
        else:
            tensors.append(tensor)
    tensors += [numpy_helper.from_array(np.array(scales[name], np.float32), _scale(name)) for name in chosen]
    tensors.append(numpy_helper.from_array(np.array(0, np.int8), SIGNED_ZERO))
    return with_nodes(graph, _nodes(graph, chosen, weights), tensors)


def unsigned(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same function with activations in 0..255: every zero point moves by 128, and no scale changes.

    A matrix with 8-bit weights moves too: beside unsigned weights no processor saturates, though the kernel is slower.
    A weight-only matrix becomes float by Cast and Mul, which ONNX Runtime does once, as it loads: DequantizeLinear it
    would leave to every step.
    """
    weight_only = _weight_only(graph)
    tensors: list[TensorProto] = []
    moved: set[str] = set()
    for tensor in graph.graph.initializer:
        is_matrix = tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2
        matrix_IO = numpy_helper.to_array(tensor).astype(np.int16) if is_matrix else np.zeros((1, 1), np.int16)
        if np.abs(matrix_IO).max() > LIMITS[7] and tensor.name.removesuffix(_stored("")) not in weight_only:
            moved.add(tensor.name)
            tensors.append(numpy_helper.from_array((matrix_IO + MIDDLE).astype(np.uint8), tensor.name))
            zero_O = np.full(matrix_IO.shape[1], MIDDLE, np.uint8)
            tensors.append(numpy_helper.from_array(zero_O, f"{tensor.name}/zero"))
        else:
            tensors.append(tensor)
    tensors.append(numpy_helper.from_array(np.array(MIDDLE, np.uint8), UNSIGNED_ZERO))
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        weight = node.output[0]
        if weight in weight_only:
            matrix, scale = node.input
            nodes.append(helper.make_node("Cast", [matrix], [f"{weight}/cast"], f"{weight}/cast", to=TensorProto.FLOAT))
            nodes.append(helper.make_node("Mul", [f"{weight}/cast", scale], [weight], f"{weight}/scaled"))
            continue
        ours = copy.deepcopy(node)
        ours.input[:] = [UNSIGNED_ZERO if name == SIGNED_ZERO else name for name in node.input]
        if node.input[0] in moved:
            ours.input.append(f"{node.input[0]}/zero")
        nodes.append(ours)
    return with_nodes(graph, nodes, tensors)


def quantised_matrix(weight_IO: NDArray[np.float32], limit: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """The matrix in -`limit`..`limit` with the scale of each output channel."""
    largest_O = np.abs(weight_IO).max(axis=0)
    scale_O = np.where(largest_O > 0, largest_O / limit, 1).astype(np.float32)
    return np.rint(weight_IO / scale_O).clip(-limit, limit).astype(np.int8), scale_O


def _nodes(graph: onnx.ModelProto, chosen: Mapping[str, Site], weights: set[str]) -> Iterator[onnx.NodeProto]:
    """The graph's nodes in order, weights made float again first and each call site's input on the way to it."""
    for weight in sorted(weights):
        inputs = [_stored(weight), _scale(weight)]
        yield helper.make_node("DequantizeLinear", inputs, [weight], name=f"{weight}/dequantize", axis=1)
    for node in graph.graph.node:
        site = chosen.get(node.name)
        if site is None:
            yield node
            continue
        grid = [_scale(site.name), SIGNED_ZERO]
        small, back = f"{site.name}/quantized", f"{site.name}/dequantized"
        yield helper.make_node("QuantizeLinear", [site.tensor, *grid], [small], name=f"{site.name}/quantize")
        yield helper.make_node("DequantizeLinear", [small, *grid], [back], name=f"{site.name}/dequantize")
        yield helper.make_node("MatMul", [back, site.weight], list(node.output), name=node.name)


def _weight_only(graph: onnx.ModelProto) -> set[str]:
    """The matrices whose products read a tensor that was not rounded."""
    stored = {tensor.name for tensor in graph.graph.initializer}
    made_by = {node.output[0]: node.op_type for node in graph.graph.node}
    return {
        node.input[1]
        for node in graph.graph.node
        if node.op_type == "MatMul" and _stored(node.input[1]) in stored
        if made_by.get(node.input[0]) != "DequantizeLinear"
    }


def _stored(weight: str) -> str:
    return f"{weight}/int8"


def _scale(name: str) -> str:
    return f"{name}/scale"


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
