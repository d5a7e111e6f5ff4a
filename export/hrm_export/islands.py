"""Which nodes of a step graph stay in float32 when the rest becomes float16, from what they were seen to compute.

The float32 graph itself is made to hand out the range of every float value, and runs whole puzzles through the lane
that serves. On a CPU ONNX Runtime computes most float16 operators in float32, so that what would overflow on a GPU
passes there unseen: hence a rule on ranges and not on answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from hrm_calibration.recording import RecordingEngine
from hrm_calibration.rollouts import solve
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Checker
from hrm_export.onnx_graph import element_types, with_nodes
from hrm_puzzles.data.held_out import Questions

LARGEST, SMALLEST = 65504.0, 2.0**-14
"""Of float16's normal numbers; a GPU may treat smaller ones as 0."""
HEADROOM = 8.0
"""How much larger than anything recorded a value may become: the puzzles served are not those recorded."""
ROUNDING = 2.0**-11
"""Relative, of float16: a constant may be off by so much of the smallest sum it is added to, like any other value."""
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")
CARRY = "z_high_BND_next"
NORM = frozenset({"square", "mean", "steady", "rms", "norm"})
"""Local names of the nodes of a normalisation, which TensorRT fuses where it stands in one type."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """Smallest and largest magnitude that a value was seen to have."""

    low: float
    high: float


def record_ranges(
    graph: onnx.ModelProto,
    puzzle: Checker,
    puzzle_table: NDArray[np.float32],
    questions: Questions,
    policy: HaltingPolicy,
    *,
    num_threads: int = 1,
    progress: Callable[[int], object] | None = None,
) -> dict[str, Range]:
    """The range of every float value over all segments that the puzzles reach under the policy."""
    types = element_types(graph)
    values = [name for node in graph.graph.node for name in node.output if types[name] == TensorProto.FLOAT]
    low, high = dict.fromkeys(values, math.inf), dict.fromkeys(values, 0.0)

    def observe(arrays: Mapping[str, NDArray[Any]]) -> None:
        for name in values:
            low[name] = min(low[name], float(arrays[f"{name}/low"]))
            high[name] = max(high[name], float(arrays[f"{name}/high"]))

    shown = [f"{name}/{end}" for name in values for end in ("low", "high")]
    engine = RecordingEngine(_with_ranges(graph, values), num_threads=num_threads, observe=observe, shown=shown)
    try:
        solve(engine, puzzle, puzzle_table, questions, policy, progress=progress)
    finally:
        engine.close()
    return {name: Range(low=low[name], high=high[name]) for name in values}


def islands(graph: onnx.ModelProto, ranges: Mapping[str, Range]) -> frozenset[str]:
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
