"""A float32 step graph becomes a strongly typed float16 one, as TensorRT wants it, with some nodes left in float32.

Inputs and outputs keep their names and types; scales of a quantised graph become float16 with the rest. ONNX Runtime
computes most float16 operators in float32 on a CPU, where an overflow would go unseen. Which nodes stay in float32
therefore follows from ranges recorded over whole puzzles.
"""

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hrm_calibration.quantise import with_nodes
from hrm_calibration.rollouts import ServedGraph
from hrm_export.onnx_graph import element_types
from hrm_host.progress import OnProgress, unheard
from hrm_puzzles.data.held_out import Questions

HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
SUFFIX: dict[int, str] = {HALF: "half", SINGLE: "single"}
LARGEST, SMALLEST = 65504.0, 2.0**-14
"""Of float16's normal numbers; a GPU may treat smaller ones as 0."""
HEADROOM = 8.0
"""How much larger than anything recorded a value may become: the puzzles served are not those recorded."""
ROUNDING = 2.0**-11
"""Relative, of float16: a constant may be off by so much of the smallest sum it is added to, like any other value."""
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")
CARRY = "z_high_BND_next"
NORM = frozenset({"square", "mean", "steady", "rms", "norm"})
"""Local names of the nodes of a normalisation, which TensorRT fuses where all are of one type."""


class Range(NamedTuple):
    """Smallest and largest magnitude that a value was seen to have."""

    low: float
    high: float


def record_ranges(served: ServedGraph, questions: Questions, *, progress: OnProgress = unheard) -> dict[str, Range]:
    """The range of every float value over all segments that the puzzles reach under the halting rule."""
    types = element_types(served.graph)
    values = [name for node in served.graph.graph.node for name in node.output if types[name] == SINGLE]
    low, high = dict.fromkeys(values, math.inf), dict.fromkeys(values, 0.0)

    nodes, ends = list(served.graph.graph.node), ((low, "low", "ReduceMin"), (high, "high", "ReduceMax"))
    for name in values:
        nodes.append(helper.make_node("Abs", [name], [f"{name}/abs"]))
        for _, end, operator in ends:
            nodes.append(helper.make_node(operator, [f"{name}/abs"], [f"{name}/{end}"], keepdims=0))
    shown = with_nodes(served.graph, nodes, served.graph.graph.initializer)
    names = (f"{name}/{end}" for name in values for _, end, _ in ends)
    shown.graph.output.extend(helper.make_tensor_value_info(name, SINGLE, []) for name in names)

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in values:
            low[name] = min(low[name], float(arrays[f"{name}/low"]))
            high[name] = max(high[name], float(arrays[f"{name}/high"]))

    served.observed(questions, observe, shown=shown, progress=progress)
    return {name: Range(low=low[name], high=high[name]) for name in values}


def float32_nodes(graph: onnx.ModelProto, ranges: Mapping[str, Range]) -> frozenset[str]:
    """Names of the nodes that float16 would overflow or whose small constant it would lose; a whole normalisation each.

    `ranges` may be those of the same graph before it was quantised.
    """
    needed = {node.name for node in graph.graph.node if _needs_single(node, graph.graph, ranges)}
    scopes = {name.rpartition("/")[0] for name in needed if name.rpartition("/")[2] in NORM}
    norms = {f"{scope}/{name}" for scope in scopes for name in NORM}
    return frozenset(node.name for node in graph.graph.node if node.name in needed | norms)


def half_graph(model: onnx.ModelProto, in_float32: Collection[str]) -> onnx.ModelProto:
    """The same function in float16 but for the nodes `in_float32`; refuses a name the graph does not have."""
    unknown = sorted(set(in_float32) - {node.name for node in model.graph.node})
    if unknown:
        raise ValueError(f"the graph has no node {unknown[0]!r} to leave in float32; choose nodes of this graph")
    conversion = _Conversion(model, in_float32)
    for node in model.graph.node:
        conversion.add(node)
    return with_nodes(model, conversion.nodes, list(conversion.tensors.values()))


class _Conversion:
    """`made_in` is the type each float value is made or stored in; where the other is needed it is cast, once."""

    def __init__(self, model: onnx.ModelProto, in_float32: Collection[str]) -> None:
        self.in_float32 = in_float32
        self.floats = {name for name, kind in element_types(model).items() if kind == SINGLE}
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, TensorProto] = {}
        self.made_in: dict[str, int] = {value.name: SINGLE for value in model.graph.input if value.name in self.floats}
        self.casts: dict[tuple[str, int], str] = {}
        used_in_single = {name for node in model.graph.node if node.name in in_float32 for name in node.input}
        for tensor in model.graph.initializer:
            if tensor.name in self.floats:  # in the type it is used in; one that is used in both in float32
                kind = self.made_in[tensor.name] = SINGLE if tensor.name in used_in_single else HALF
                if kind == HALF:
                    tensor = numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
            self.tensors[tensor.name] = tensor

    def add(self, node: onnx.NodeProto) -> None:
        """The node in its own type, with casts before it where its inputs are made in the other."""
        kind = SINGLE if node.name in self.in_float32 else HALF
        ours = onnx.NodeProto()
        ours.CopyFrom(node)
        ours.input[:] = [self.in_type(name, kind) for name in node.input]
        self.nodes.append(ours)
        for index, name in enumerate(node.output):
            if name in self.floats:
                self.made_in[name] = kind
                if kind == HALF and name in self.outputs:  # a graph output is always float32
                    ours.output[index] = inner = f"{name}/{SUFFIX[HALF]}"
                    self.cast(inner, name, SINGLE)
                    self.made_in[name], self.casts[name, HALF] = SINGLE, inner

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


def _needs_single(node: onnx.NodeProto, graph: onnx.GraphProto, ranges: Mapping[str, Range]) -> bool:
    tensors = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in node.input)
    stored = [np.abs(array) for array in tensors if array.dtype == np.float32]
    made = [ranges[name] for name in node.output if name in ranges]
    num_summands = 1
    if node.op_type == "ReduceMean":  # a mean over the hidden width is summed up before it is divided
        num_summands = {value.name: value for value in graph.output}[CARRY].type.tensor_type.shape.dim[-1].dim_value
    if any(array.max() > LARGEST for array in stored):
        return True
    if any(HEADROOM * num_summands * each.high > LARGEST for each in made):
        return True
    if node.op_type == "Add":
        smallest = min((each.low for each in made), default=math.inf)
        for number in (float(array) for array in stored if array.ndim == 0):
            kept = float(np.float16(number)) if number >= SMALLEST else 0.0  # a GPU may treat a smaller one as 0
            if abs(number - kept) > ROUNDING * smallest:
                return True
    return node.op_type in QUANTISERS and any(array.min() < SMALLEST for array in stored)
