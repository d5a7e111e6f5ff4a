"""The strongly typed float16 form of a step graph. Nodes that it would break stay float32.

ONNX Runtime computes most float16 operators in float32 on a CPU, so an overflow would stay unseen.
The choice of nodes therefore follows from ranges that are recorded over whole puzzles.
"""

import copy
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from hrm_calibration.graph_rules import element_types
from hrm_calibration.quantize import with_nodes, with_outputs
from hrm_calibration.rollouts import ServedGraph
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.sources import Questions

HALF = TensorProto.FLOAT16
SINGLE = TensorProto.FLOAT
SUFFIX: dict[int, str] = {HALF: "half", SINGLE: "single"}
LARGEST = 65504.0
"""Largest float16."""
SMALLEST = 2.0**-14
"""Smallest normal float16. A GPU may treat smaller numbers as 0."""
HEADROOM = 8.0
"""A served puzzle may exceed the recorded magnitudes by this factor."""
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
NORM = frozenset({"square", "mean", "steady", "rms", "norm"})
"""Local names of a normalization's nodes: squares and sums overflow first, and epsilon is lost."""
LARGE_CONVOLUTIONS = frozenset({"near", "seen", "out"})
"""Local names of the convolutions that compute most of a segment with attention over images."""


def record_ranges(
    served: ServedGraph,
    questions: Questions,
    *,
    progress: OnProgress = unheard,
) -> dict[str, float]:
    """The largest magnitude of every float value in all segments that the puzzles reach."""
    types = element_types(served.graph)
    values: list[str] = []
    nodes: list[NodeProto] = []
    for node in served.graph.graph.node:
        nodes.append(node)
        for name in node.output:
            if types[name] == SINGLE:
                values.append(name)
                # directly after the node, so that memory holds each value only briefly
                nodes += _largest_of(name)
    shown = with_nodes(served.graph, nodes, served.graph.graph.initializer)
    shown = with_outputs(shown, [_largest(name) for name in values])
    ranges = dict.fromkeys(values, 0.0)

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in values:
            ranges[name] = max(ranges[name], float(arrays[_largest(name)]))

    served.observed(questions, observe, shown, progress)
    return ranges


def _largest(name: str) -> str:
    return f"{name}/largest"


def _largest_of(name: str) -> list[NodeProto]:
    magnitudes = f"{name}/abs"
    return [
        helper.make_node("Abs", [name], [magnitudes]),
        helper.make_node("ReduceMax", [magnitudes], [_largest(name)], keepdims=0),
    ]


def float32_nodes(graph: ModelProto, ranges: Mapping[str, float]) -> frozenset[str]:
    """Names of the nodes that must stay float32.

    These are all normalizations, nodes whose output or weights overflow, and quantizers with tiny
    scales. Attention over images (ARC) amplifies rounding, so there only the large convolutions
    become float16.

    NVIDIA's builder warns of overflow in every float16 normalization; in float32 it builds the same
    number of kernels. `ranges` may be those of the graph before it was quantized.
    """
    operators = {node.op_type for node in graph.graph.node}
    has_attention = {"Conv", "Softmax"} <= operators  # over images
    # INT8 rounds more than float16 beside it
    amplifies = has_attention and operators.isdisjoint(QUANTIZERS)
    names: set[str] = set()
    for node in graph.graph.node:
        local_name = node.name.rpartition("/")[2]
        is_exact = local_name in NORM or (amplifies and local_name not in LARGE_CONVOLUTIONS)
        if is_exact or _needs_single(node, graph.graph, ranges):
            names.add(node.name)
    return frozenset(names)


def _needs_single(node: NodeProto, graph: GraphProto, ranges: Mapping[str, float]) -> bool:
    for name in node.output:
        if HEADROOM * ranges.get(name, 0.0) > LARGEST:
            return True
    for tensor in graph.initializer:
        if tensor.name not in node.input or tensor.data_type != SINGLE:
            continue
        magnitudes = np.abs(numpy_helper.to_array(tensor))
        if magnitudes.max() > LARGEST:
            return True
        if node.op_type in QUANTIZERS and magnitudes.min() < SMALLEST:
            return True
    return False


def half_graph(model: ModelProto, in_float32: Collection[str]) -> ModelProto:
    """The same function in float16 except for the nodes `in_float32`."""
    conversion = _Conversion(model, in_float32)
    for node in model.graph.node:
        conversion.add(node)
    return with_nodes(model, conversion.nodes, list(conversion.tensors.values()))


class _Conversion:
    """Casts each float value once where a node needs it in the other type.

    `made_in` is the type in which each float value is computed or stored.
    """

    def __init__(self, model: ModelProto, in_float32: Collection[str]) -> None:
        types = element_types(model)
        self.in_float32 = in_float32
        self.floats = {name for name, kind in types.items() if kind == SINGLE}
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[NodeProto] = []
        self.tensors: dict[str, TensorProto] = {}
        self.casts: dict[tuple[str, int], str] = {}
        self.made_in: dict[str, int] = {}
        for value in model.graph.input:
            if value.name in self.floats:
                self.made_in[value.name] = SINGLE
        used_in_single: set[str] = set()
        for node in model.graph.node:
            if node.name in in_float32:
                used_in_single.update(node.input)
        for tensor in model.graph.initializer:
            self._store(tensor, used_in_single)

    def _store(self, tensor: TensorProto, used_in_single: set[str]) -> None:
        """Store an array in the type that uses it; in float32 if both types do."""
        name = tensor.name
        if name in self.floats:
            self.made_in[name] = SINGLE if name in used_in_single else HALF
        if self.made_in.get(name) == HALF:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor = numpy_helper.from_array(array, name)
        self.tensors[name] = tensor

    def add(self, node: NodeProto) -> None:
        """Add a node in its own type, behind casts of the inputs that have the other type."""
        kind = SINGLE if node.name in self.in_float32 else HALF
        ours = copy.deepcopy(node)
        ours.input[:] = [self.in_type(name, kind) for name in node.input]
        self.nodes.append(ours)
        for index, name in enumerate(node.output):
            if name not in self.floats:
                continue
            self.made_in[name] = kind
            if kind == HALF and name in self.outputs:
                # a graph output is always float32
                inner = f"{name}/{SUFFIX[HALF]}"
                ours.output[index] = inner
                self.cast(inner, name, SINGLE)
                self.made_in[name] = SINGLE
                self.casts[name, HALF] = inner

    def in_type(self, name: str, kind: int) -> str:
        """The name of a value in that type. Integers and booleans are never cast."""
        if self.made_in.get(name, kind) == kind:
            return name
        if (name, kind) not in self.casts:
            self.casts[name, kind] = self.cast(name, f"{name}/{SUFFIX[kind]}", kind)
        return self.casts[name, kind]

    def cast(self, value: str, name: str, kind: int) -> str:
        node = helper.make_node("Cast", [value], [name], name=f"{name}/cast", to=kind)
        self.nodes.append(node)
        return name
