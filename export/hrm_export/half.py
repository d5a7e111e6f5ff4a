"""A float32 step graph becomes a float16 one whose types are in the graph, with some nodes left in float32.

Strongly typed, as TensorRT wants it (and from version 11 knows nothing else): every node computes in one type, with a
Cast wherever two meet. Inputs and outputs of the graph keep their names and types. The graph may hold Q/DQ already: its
scales become float16 with the rest.

On a CPU ONNX Runtime computes most float16 operators in float32, so that what would overflow on a GPU passes there
unseen. Which nodes stay in float32 therefore follows from ranges, recorded over whole puzzles, and not from answers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, kw_only=True)
class Range:
    """Smallest and largest magnitude that a value was seen to have."""

    low: float
    high: float


def record_ranges(served: ServedGraph, questions: Questions, *, progress: OnProgress = unheard) -> dict[str, Range]:
    """The range of every float value over all segments that the puzzles reach under the halting rule."""
    types = element_types(served.graph)
    values = [name for node in served.graph.graph.node for name in node.output if types[name] == SINGLE]
    low, high = dict.fromkeys(values, math.inf), dict.fromkeys(values, 0.0)

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in values:
            low[name] = min(low[name], float(arrays[f"{name}/low"]))
            high[name] = max(high[name], float(arrays[f"{name}/high"]))

    served.observed(questions, observe, shown=_with_ranges(served.graph, values), progress=progress)
    return {name: Range(low=low[name], high=high[name]) for name in values}


def float32_nodes(graph: onnx.ModelProto, ranges: Mapping[str, Range]) -> frozenset[str]:
    """Names of the nodes that float16 would overflow or whose small constant it would lose; a whole normalisation each.

    `ranges` may be those of the same graph before it was quantised.
    """
    needed = {node.name for node in graph.graph.node if _needs_single(node, graph.graph, ranges)}
    norms = {_scope(name) for name in needed if _is_norm(name)}
    return frozenset(
        node.name
        for node in graph.graph.node
        if node.name in needed or (_is_norm(node.name) and _scope(node.name) in norms)
    )


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
        kind = SINGLE if node.name in self.in_float32 else HALF
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
        """Cast what becomes a graph output, which is float32 always; returns the name of what is cast."""
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


def _needs_single(node: onnx.NodeProto, graph: onnx.GraphProto, ranges: Mapping[str, Range]) -> bool:
    tensors = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in node.input)
    stored = [np.abs(array) for array in tensors if array.dtype == np.float32]
    made = [ranges[name] for name in node.output if name in ranges]
    if any(array.max() > LARGEST for array in stored):
        return True
    if any(HEADROOM * _num_summands(node, graph) * each.high > LARGEST for each in made):
        return True
    if node.op_type == "Add":
        smallest = min((each.low for each in made), default=math.inf)
        return any(_lost(float(array)) > ROUNDING * smallest for array in stored if array.ndim == 0)
    return node.op_type in QUANTISERS and any(array.min() < SMALLEST for array in stored)


def _num_summands(node: onnx.NodeProto, graph: onnx.GraphProto) -> int:
    """A mean over the hidden width is summed up before it is divided."""
    if node.op_type != "ReduceMean":
        return 1
    return next(value.type.tensor_type.shape.dim[-1].dim_value for value in graph.output if value.name == CARRY)


def _lost(number: float) -> float:
    """What float16 loses of a constant; all of one that a GPU may treat as 0."""
    return abs(number) if abs(number) < SMALLEST else abs(number - float(np.float16(number)))


def _scope(name: str) -> str:
    return name.rpartition("/")[0]


def _is_norm(name: str) -> bool:
    return name.rpartition("/")[2] in NORM


def _with_ranges(graph: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    """The graph with the smallest and the largest magnitude of each value as outputs, which take no memory."""
    nodes = list(graph.graph.node)
    for name in values:
        nodes.append(helper.make_node("Abs", [name], [f"{name}/abs"]))
        for end, operator in (("low", "ReduceMin"), ("high", "ReduceMax")):
            nodes.append(helper.make_node(operator, [f"{name}/abs"], [f"{name}/{end}"], keepdims=0))
    shown = with_nodes(graph, nodes, graph.graph.initializer)
    ends = (f"{name}/{end}" for name in values for end in ("low", "high"))
    shown.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, []) for name in ends)
    return shown
