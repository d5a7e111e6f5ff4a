"""Write an ONNX graph node by node, or unroll the halting loop of a finished step graph.

Shapes: B batch, T tokens.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from hrm_calibration.graph_rules import IR_VERSION, OPSET
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import CARRIES

FRESH = "fresh_B"
ANSWER = "answer_BT"
MARGIN = "halt_margin_B"
SEGMENTS = "segments_B"
KEPT_AS = {ANSWER: "kept_answer", MARGIN: "kept_margin", "q_halt_B": "kept_q_halt"}
"""Outputs that a row keeps from its last segment, with the name of the node that keeps them."""
NEVER = float(np.finfo(np.float32).max)
"""A threshold that no margin exceeds: the fixed policy."""


class GraphWriter:
    """Collects nodes in order. A value has the name of the node that makes it."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def node(self, name: str, operator: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        node = helper.make_node(operator, inputs, [name], name=name, **attributes)
        self._nodes.append(node)
        return name

    def within(self, scope: str) -> Callable[..., str]:
        """`node`, with names that start with the scope."""

        def node(name: str, operator: str, *inputs: str, **attributes: Any) -> str:
            return self.node(f"{scope}/{name}", operator, *inputs, **attributes)

        return node

    def copy(self, nodes: Iterable[NodeProto], tensors: Iterable[TensorProto] = ()) -> None:
        self._nodes.extend(nodes)
        for tensor in tensors:
            self._tensors[tensor.name] = tensor

    def split(self, name: str, value: str, sizes: Sequence[int], axis: int) -> list[str]:
        parts = [f"{name}.{index}" for index in range(len(sizes))]
        inputs = [value, self.ints(*sizes)]
        node = helper.make_node("Split", inputs, parts, name=name, axis=axis)
        self._nodes.append(node)
        return parts

    def tensor(self, name: str, array: NDArray[Any]) -> str:
        """The initializer of that name, stored once even if it is used often."""
        if name not in self._tensors:
            in_order = np.array(array, order="C")
            self._tensors[name] = numpy_helper.from_array(in_order, name)
        return name

    def number(self, value: float) -> str:
        return self.tensor(f"number {value!r}", np.array(value, np.float32))

    def index(self, value: int) -> str:
        """A scalar int64; gathering with it drops the axis."""
        return self.tensor(f"index {value}", np.array(value, np.int64))

    def ints(self, *values: int) -> str:
        """Several int64, for shapes, axes and offsets."""
        text = " ".join(str(value) for value in values)
        return self.tensor(f"ints {text}", np.array(values, np.int64))

    def publish(self, value: str, name: str) -> None:
        """Give a value the name of a graph output, wherever it is used."""
        for node in self._nodes:
            for names in (node.input, node.output):
                for index, other in enumerate(names):
                    if other == value:
                        names[index] = name

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> ModelProto:
        """The nodes that the outputs need, and the arrays that these nodes use."""
        wanted = {value.name for value in outputs}
        nodes: list[NodeProto] = []
        for node in reversed(self._nodes):
            if not wanted.isdisjoint(node.output):
                nodes.append(node)
                wanted.update(node.input)
        nodes.reverse()
        tensors = [tensor for tensor in self._tensors.values() if tensor.name in wanted]
        graph = helper.make_graph(nodes, name, inputs, outputs, initializer=tensors)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="hrm-export",
        )


def unrolled_graph(step: ModelProto, policy: HaltingPolicy, num_segments: int) -> ModelProto:
    """Map tokens_BT and puzzle_vector_BE to answer_BT, segments_B, halt_margin_B and q_halt_B.

    The nodes of the step graph are repeated for each segment. Weights and values that do not depend
    on the carry are stored and computed once. A row whose margin exceeds the threshold keeps its
    answer; all segments run anyway. A `verified` policy halts like a `learned` one, because a graph
    cannot check an answer.
    """
    threshold = NEVER if policy.kind == "fixed" else _in_float32(policy.threshold)
    graph = GraphWriter()
    loop = _Loop(graph, _Body(step), threshold)
    graph.copy(loop.body.shared, step.graph.initializer)
    loop.first_segment()
    for segment in range(2, num_segments + 1):
        loop.next_segment(segment)
    for name, value in loop.kept.items():
        graph.publish(value, name)
    inputs = [value for value in step.graph.input if value.name not in (FRESH, *CARRIES)]
    outputs = [value for value in step.graph.output if value.name in KEPT_AS]
    outputs.insert(1, helper.make_tensor_value_info(SEGMENTS, TensorProto.INT32, ["B"]))
    model = graph.model("hrm_unrolled", inputs, outputs)
    properties = {"num_segments": str(num_segments), "threshold": repr(threshold)}
    helper.set_model_props(model, properties)
    return model


class _Loop:
    """Writes segment after segment; `kept` names the answer of each row so far."""

    def __init__(self, graph: GraphWriter, body: "_Body", threshold: float) -> None:
        self.graph = graph
        self.body = body
        self.threshold = threshold
        self.kept: dict[str, str] = {}
        self.running = ""

    def first_segment(self) -> None:
        scope = _scope(1)
        self.graph.copy(self.body.segment(1))
        self.running = self._goes_on(scope)
        one = self.graph.tensor("one", np.array(1, np.int32))
        self.kept = {name: f"{scope}/{name}" for name in KEPT_AS}
        # a 1 for each row of the batch
        ones = self.graph.node(f"{scope}/segments", "Where", self.running, one, one)
        self.kept[SEGMENTS] = ones

    def next_segment(self, segment: int) -> None:
        graph = self.graph
        scope = _scope(segment)
        node = graph.within(scope)
        graph.copy(self.body.segment(segment))
        running_B1 = node("running_B1", "Unsqueeze", self.running, graph.ints(1))
        counted = node("counted", "Cast", self.running, to=TensorProto.INT32)
        goes_on = self._goes_on(scope)
        for name, kept_as in KEPT_AS.items():
            is_running = running_B1 if name == ANSWER else self.running
            new = f"{scope}/{name}"
            self.kept[name] = node(kept_as, "Where", is_running, new, self.kept[name])
        self.kept[SEGMENTS] = node("segments", "Add", self.kept[SEGMENTS], counted)
        self.running = node("running", "And", self.running, goes_on)

    def _goes_on(self, scope: str) -> str:
        node = self.graph.within(scope)
        threshold = self.graph.number(self.threshold)
        halts = node("halts", "Greater", f"{scope}/{MARGIN}", threshold)
        return node("goes_on", "Not", halts)


class _Body:
    """The step graph's nodes: `shared` ones that no carry reaches, and those of each segment."""

    def __init__(self, step: ModelProto) -> None:
        stored = {tensor.name for tensor in step.graph.initializer}
        fresh = _made_of(step, {FRESH}, stored)
        self.renamed = _reached(step, {FRESH, *CARRIES})
        self.shared: list[NodeProto] = []
        self.nodes: list[NodeProto] = []
        self.starts: dict[str, NodeProto] = {}
        for node in step.graph.node:
            outputs = set(node.output)
            if not self.renamed & outputs:
                self.shared.append(node)
            elif fresh & outputs:
                continue  # every row starts in segment 1, so freshness is not checked
            elif node.op_type == "Where" and node.input[0] in fresh:
                self.starts[node.output[0]] = node
            else:
                self.nodes.append(node)

    def segment(self, number: int) -> Iterator[NodeProto]:
        for node in self.nodes:
            ours = copy.deepcopy(node)
            ours.name = f"{_scope(number)}/{node.name}"
            ours.input[:] = [self.name(value, number) for value in node.input]
            ours.output[:] = [self.name(value, number) for value in node.output]
            yield ours

    def name(self, value: str, segment: int) -> str:
        """The name of a value in a segment. Segment 1 reads the initial state, others the carry."""
        if value in self.starts:
            _, initial, carry = self.starts[value].input
            if segment == 1:
                return initial
            return self.name(carry, segment)
        if value in CARRIES:
            return self.name(f"{value}_next", segment - 1)
        if value in self.renamed:
            return f"{_scope(segment)}/{value}"
        return value


def _reached(step: ModelProto, start: set[str]) -> set[str]:
    """Values that depend on any of `start`."""
    reached = set(start)
    for node in step.graph.node:
        if not reached.isdisjoint(node.input):
            reached.update(node.output)
    return reached


def _made_of(step: ModelProto, start: set[str], stored: set[str]) -> set[str]:
    """Values that depend on any of `start` and otherwise only on `stored` arrays."""
    made = set(start)
    for node in step.graph.node:
        inputs = set(node.input)
        if made & inputs and inputs <= made | stored:
            made.update(node.output)
    return made


def _scope(segment: int) -> str:
    return f"segment_{segment}"


def _in_float32(threshold: float) -> float:
    """The greatest float32 at or below the threshold: a float32 margin exceeds both or neither."""
    nearest = np.float32(threshold)
    if float(nearest) > threshold:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    return float(nearest)
