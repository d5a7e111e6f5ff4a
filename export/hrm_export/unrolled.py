"""The whole solver loop as one graph: N segments in a row, and each row of the batch halts for itself.

The nodes of the finished step graph, in any precision, are repeated; weights and what does not depend on the carry are
there once. A row whose margin exceeds the threshold keeps its answer from then on: the learned rule of `halting.py`.
Every segment is computed all the same, and no proof can stop it. Shapes: B batch, T tokens.
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_export.onnx_graph import GraphWriter

FRESH, CARRIES = "fresh_B", ("z_high_BND", "z_low_BND")
ANSWER, MARGIN, SEGMENTS = "answer_BT", "halt_margin_B", "segments_B"
KEPT_AS = {ANSWER: "kept_answer", MARGIN: "kept_margin", "q_halt_B": "kept_q_halt"}
"""What a row keeps of its last segment, and the node's name."""
NEVER = float(np.finfo(np.float32).max)
"""A threshold that no margin exceeds: the fixed policy."""


def unrolled_graph(step: onnx.ModelProto, policy: HaltingPolicy, num_segments: int) -> onnx.ModelProto:
    """From tokens_BT and puzzle_vector_BE to answer_BT, segments_B, halt_margin_B and q_halt_B, in one call.

    A `verified` policy halts as a learned one does, since a graph proves nothing. Refuses fewer than one segment.
    """
    if num_segments < 1:
        raise ValueError(f"an unrolled graph of {num_segments} segments answers nothing; give 1 or more")
    threshold = NEVER if policy.kind == "fixed" else _in_float32(policy.threshold)
    body, graph = _Body(step), GraphWriter()
    graph.copy(body.shared, step.graph.initializer)
    graph.copy(body.segment(1))
    running, one = _goes_on(graph, 1, threshold), graph.tensor("one", np.array(1, np.int32))
    kept = {name: f"{_in(1)}/{name}" for name in KEPT_AS}
    kept[SEGMENTS] = graph.node(f"{_in(1)}/segments", "Where", running, one, one)  # a 1 for each row of the batch
    for segment in range(2, num_segments + 1):
        scope = _in(segment)
        graph.copy(body.segment(segment))
        running_B1 = graph.node(f"{scope}/running_B1", "Unsqueeze", running, graph.ints(1))
        counted = graph.node(f"{scope}/counted", "Cast", running, to=TensorProto.INT32)
        goes_on = _goes_on(graph, segment, threshold)
        for name, kept_as in KEPT_AS.items():
            rows = running_B1 if name == ANSWER else running
            kept[name] = graph.node(f"{scope}/{kept_as}", "Where", rows, f"{scope}/{name}", kept[name])
        kept[SEGMENTS] = graph.node(f"{scope}/segments", "Add", kept[SEGMENTS], counted)
        running = graph.node(f"{scope}/running", "And", running, goes_on)
    outputs = [value for value in step.graph.output if value.name in KEPT_AS]
    outputs.insert(1, helper.make_tensor_value_info(SEGMENTS, TensorProto.INT32, ["B"]))
    for name, value in kept.items():
        graph.publish(value, name)
    inputs = [value for value in step.graph.input if value.name not in (FRESH, *CARRIES)]
    model = graph.model("hrm_unrolled", inputs, outputs)
    helper.set_model_props(model, {"num_segments": str(num_segments), "threshold": repr(threshold)})
    return model


def _goes_on(graph: GraphWriter, segment: int, threshold: float) -> str:
    scope = _in(segment)
    halts = graph.node(f"{scope}/halts", "Greater", f"{scope}/{MARGIN}", graph.number(threshold))
    return graph.node(f"{scope}/goes_on", "Not", halts)


class _Body:
    """The step graph's nodes: `shared` ones that no carry reaches, and the others for each segment."""

    def __init__(self, step: onnx.ModelProto) -> None:
        fresh = _reached(step, {FRESH}, by_all={tensor.name for tensor in step.graph.initializer})
        self.renamed = _reached(step, {FRESH, *CARRIES})
        self.shared = [node for node in step.graph.node if not self.renamed & set(node.output)]
        own = [node for node in step.graph.node if self.renamed & set(node.output) and not fresh & set(node.output)]
        self.starts = {node.output[0]: node for node in own if node.op_type == "Where" and node.input[0] in fresh}
        self.nodes = [node for node in own if node.output[0] not in self.starts]

    def segment(self, number: int) -> Iterator[onnx.NodeProto]:
        for node in self.nodes:
            ours = onnx.NodeProto()
            ours.CopyFrom(node)
            ours.name = f"{_in(number)}/{node.name}"
            ours.input[:] = [self.name(value, number) for value in node.input]
            ours.output[:] = [self.name(value, number) for value in node.output]
            yield ours

    def name(self, value: str, segment: int) -> str:
        """The first segment starts from the initial state, each other one from the carry before it."""
        if value in self.starts:
            _, initial, carry = self.starts[value].input
            return initial if segment == 1 else self.name(carry, segment)
        if value in CARRIES:
            return self.name(f"{value}_next", segment - 1)
        return f"{_in(segment)}/{value}" if value in self.renamed else value


def _reached(step: onnx.ModelProto, start: set[str], by_all: set[str] | None = None) -> set[str]:
    """Values that depend on those of `start`; with `by_all`, on nothing but them and these."""
    reached = set(start)
    for node in step.graph.node:
        inputs = set(node.input)
        if reached & inputs and (by_all is None or inputs <= reached | by_all):
            reached |= set(node.output)
    return reached


def _in(segment: int) -> str:
    return f"segment_{segment}"


def _in_float32(threshold: float) -> float:
    """The greatest float32 not above it: a float32 margin exceeds the one exactly where it exceeds the other."""
    nearest = np.float32(threshold)
    return float(nearest if float(nearest) <= threshold else np.nextafter(nearest, np.float32(-np.inf)))
