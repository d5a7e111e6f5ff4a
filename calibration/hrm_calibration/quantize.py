"""Turn a float32 step graph into an INT8 one: Q/DQ around the linear products and nowhere else.

Symmetric and signed, as TensorRT wants it (Developer Guide, "Explicit Quantization"): weights per
output channel, activations per tensor with a scale for each call site. Residual sums read the
unquantized tensor. A "weight-only" matrix is stored in INT8 too, but its inputs are not rounded.
`ranges.py` chooses the scales. Shapes: I inputs and O outputs of a linear layer; a matrix is [I, O]
and a kernel of a convolution [O, I, rows, columns].
"""

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

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
SMALLEST_SCALE = 2.0**-14
"""Smallest normal float16: TensorRT rejects a product with one scale in float16, one in float32."""
SIGNED_ZERO = "zero_int8"
UNSIGNED_ZERO = "zero_uint8"
"""Unsigned 128, for activations."""
RELU_ZERO = "zero_relu"
"""Unsigned 0, for what a convolution keeps after its ReLU."""
NUM_AXES = {"MatMul": 2, "Conv": 4}
"""Axes of the weight that a linear operator stores."""
KERNEL_AXES = "kernel_axes"
"""Axes behind the outputs of a kernel."""


class Site(NamedTuple):
    """A call of a linear layer: the node's name, the tensor it reads and the matrix it uses.

    `num_inputs` are the channels that it reads.
    """

    name: str
    tensor: str
    weight: str
    num_inputs: int


def call_sites(graph: ModelProto) -> list[Site]:
    """Every product and convolution with a stored weight except the heads, in the order they run.

    Raises ValueError if there is none.
    """
    shapes: dict[str, Sequence[int]] = {}
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            shapes[tensor.name] = tensor.dims
    sites: list[Site] = []
    for node in graph.graph.node:
        if node.op_type not in NUM_AXES or node.name in IN_FLOAT:
            continue
        tensor_name, weight_name, *_ = node.input
        shape = shapes.get(weight_name, ())
        if len(shape) == NUM_AXES[node.op_type]:
            num_inputs = shape[1 - output_axis(len(shape))]
            site = Site(
                name=node.name, tensor=tensor_name, weight=weight_name, num_inputs=num_inputs
            )
            sites.append(site)
    if not sites:
        problem = "the graph has no product with a stored float matrix"
        raise ValueError(f"{problem}; give a step graph in float32")
    return sites


def output_axis(num_axes: int) -> int:
    """The axis of the outputs in a weight with this number of axes: a matrix or a kernel."""
    return 1 if num_axes == NUM_AXES["MatMul"] else 0


def quantize(
    graph: ModelProto,
    scales: Mapping[str, float],
    *,
    weight_only: Collection[str] = (),
    weight_bits: int = 8,
) -> ModelProto:
    """The signed Q/DQ graph; `scales` are by call site; `weight_only` names matrices.

    Each matrix is stored once in INT8, even if several call sites use it.
    """
    sites = call_sites(graph)
    weights: set[str] = set()
    rounded: dict[str, Site] = {}
    for site in sites:
        weights.add(site.weight)
        if site.weight not in weight_only:
            rounded[site.name] = site
    tensors: list[TensorProto] = []
    for tensor in graph.graph.initializer:
        if tensor.name in weights:
            weight, scale_O = quantized_weight(numpy_helper.to_array(tensor), LIMITS[weight_bits])
            tensors.append(numpy_helper.from_array(weight, tensor.name + INT8))
            tensors.append(numpy_helper.from_array(scale_O, tensor.name + SCALE))
        else:
            tensors.append(tensor)
    for name in rounded:
        scale = np.array(scales[name], np.float32)
        tensors.append(numpy_helper.from_array(scale, name + SCALE))
    zero = np.array(0, np.int8)
    tensors.append(numpy_helper.from_array(zero, SIGNED_ZERO))
    return with_nodes(graph, _quantized_nodes(graph, rounded, weights), tensors)


def quantized_weight(
    weight: NDArray[np.float32],
    limit: int,
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix or kernel in -`limit`..`limit` with the scale of each output channel."""
    last_O = np.moveaxis(weight, output_axis(weight.ndim), -1)
    largest_O = np.abs(last_O).max(axis=tuple(range(weight.ndim - 1)))
    least_O = np.maximum(largest_O / limit, SMALLEST_SCALE)
    scale_O = np.where(largest_O > 0, least_O, 1).astype(np.float32)
    rounded_O = np.rint(last_O / scale_O).clip(-limit, limit).astype(np.int8)
    return np.moveaxis(rounded_O, -1, output_axis(weight.ndim)), scale_O


def _quantized_nodes(
    graph: ModelProto,
    rounded: Mapping[str, Site],
    weights: set[str],
) -> Iterator[NodeProto]:
    """Dequantize every matrix, then the graph's nodes in order, with their inputs rounded."""
    for tensor in sorted(graph.graph.initializer, key=attrgetter("name")):
        if tensor.name in weights:
            yield _dequantized(tensor.name, output_axis(len(tensor.dims)))
    for node in graph.graph.node:
        if node.name in rounded:
            yield from _rounded_product(node, rounded[node.name])
        else:
            yield node


def _dequantized(weight: str, axis: int) -> NodeProto:
    inputs = [weight + INT8, weight + SCALE]
    name = f"{weight}/dequantize"
    return helper.make_node("DequantizeLinear", inputs, [weight], name=name, axis=axis)


def _rounded_product(node: NodeProto, site: Site) -> list[NodeProto]:
    name = site.name
    scale = name + SCALE
    small = f"{name}/quantized"
    back = f"{name}/dequantized"
    read = [site.tensor, scale, SIGNED_ZERO]
    stored = [small, scale, SIGNED_ZERO]
    quantize = helper.make_node("QuantizeLinear", read, [small], f"{name}/quantize")
    dequantize = helper.make_node("DequantizeLinear", stored, [back], f"{name}/dequantize")
    product = copy.deepcopy(node)
    product.input[0] = back
    return [quantize, dequantize, product]


def with_products(graph: ModelProto, weight_only: Collection[str] = ()) -> ModelProto:
    """The graph with a matrix product in place of each 1x1 convolution of quantized inputs.

    ONNX Runtime's integer convolution returns only integers; its integer matrix product can return
    floats.
    """
    pointwise: set[str] = set()
    tensors: list[TensorProto] = []
    for tensor in graph.graph.initializer:
        weight = tensor.name.removesuffix(INT8)
        is_kernel = tensor.data_type == TensorProto.INT8 and list(tensor.dims[2:]) == [1, 1]
        if is_kernel and weight not in weight_only:
            pointwise.add(weight)
            matrix_IO = numpy_helper.to_array(tensor)[:, :, 0, 0].T
            tensor = numpy_helper.from_array(np.ascontiguousarray(matrix_IO), tensor.name)
        tensors.append(tensor)
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        if node.output[0] in pointwise:
            nodes.append(_dequantized(node.output[0], output_axis(2)))
        elif node.op_type == "Conv" and node.input[1] in pointwise:
            nodes += _product_of_cells(node)
        else:
            nodes.append(node)
    return with_nodes(graph, nodes, tensors)


def _product_of_cells(node: NodeProto) -> list[NodeProto]:
    """Move channels last, multiply, move them first: ONNX Runtime cancels paired transposes."""
    images, weight, *bias = node.input
    cells = f"{node.name}/cells"
    product = f"{node.name}/product"
    nodes = [
        helper.make_node("Transpose", [images], [cells], cells, perm=(0, 2, 3, 1)),
        helper.make_node("MatMul", [cells, weight], [product], product),
    ]
    if bias:
        biased = f"{node.name}/biased"
        nodes.append(helper.make_node("Add", [product, *bias], [biased], biased))
        product = biased
    nodes.append(
        helper.make_node("Transpose", [product], node.output, node.name, perm=(0, 3, 1, 2))
    )
    return nodes


def unsigned(graph: ModelProto, weight_only: Collection[str] = ()) -> ModelProto:
    """The same function with activations in 0..255: zero points move by 128, scales stay.

    Use it with weights of seven bits. A weight-only matrix becomes float by Cast and Mul, which
    ONNX Runtime computes once while it loads; it would run DequantizeLinear in every step. The ReLU
    of a convolution is rounded from 0, so that ONNX Runtime makes one integer kernel of
    convolution, ReLU and rounding. Then the clip is 255 instead of 127 steps.
    """
    zeros = {UNSIGNED_ZERO: 128, RELU_ZERO: 0}
    tensors = list(graph.graph.initializer)
    for name, zero in zeros.items():
        tensors.append(numpy_helper.from_array(np.array(zero, np.uint8), name))
    axes = np.arange(1, NUM_AXES["Conv"], dtype=np.int64)
    tensors.append(numpy_helper.from_array(axes, KERNEL_AXES))
    positive = _kept_by_convolutions(graph)
    nodes: list[NodeProto] = []
    for node in graph.graph.node:
        if node.output[0] in weight_only:
            nodes += _float_matrix(node)
            continue
        ours = copy.deepcopy(node)
        if SIGNED_ZERO in node.input:
            ours.input[2] = RELU_ZERO if node.input[0] in positive else UNSIGNED_ZERO
        nodes.append(ours)
    return with_nodes(graph, nodes, tensors)


def _kept_by_convolutions(graph: ModelProto) -> set[str]:
    """The ReLUs of convolutions, and their quantized forms."""
    convolutions: set[str] = set()
    kept: set[str] = set()
    sources_of = {"Relu": convolutions, "QuantizeLinear": kept}
    for node in graph.graph.node:
        if node.op_type == "Conv":
            convolutions.update(node.output)
        elif node.input[0] in sources_of.get(node.op_type, ()):
            kept.update(node.output)
    return kept


def _float_matrix(dequantize: NodeProto) -> list[NodeProto]:
    matrix, scale = dequantize.input
    weight = dequantize.output[0]
    cast = f"{weight}/cast"
    nodes = [helper.make_node("Cast", [matrix], [cast], cast, to=TensorProto.FLOAT)]
    if dequantize.attribute[0].i != output_axis(NUM_AXES["MatMul"]):
        wide = f"{weight}/scale_of_kernel"
        nodes.append(helper.make_node("Unsqueeze", [scale, KERNEL_AXES], [wide], wide))
        scale = wide
    nodes.append(helper.make_node("Mul", [cast, scale], [weight], f"{weight}/scaled"))
    return nodes


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
