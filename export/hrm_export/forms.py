"""The forms of a finished step graph: INT8, strongly typed float16 as TensorRT wants it, and the whole loop unrolled.

In float16 some nodes stay float32. ONNX Runtime computes most float16 operators in float32 on a CPU, where an overflow
would go unseen, so which ones follows from ranges recorded over whole puzzles. Shapes: B batch, T tokens.
"""

import copy
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from hrm_calibration.halting_curve import Outcomes, PolicyScore, Rollout, Score
from hrm_calibration.int8 import Int8Settings, calibrate, for_cpus
from hrm_calibration.int8_report import Paired, paired
from hrm_calibration.quantise import with_nodes, with_outputs
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import CARRIES
from hrm_edge_runtime.parity.report import ParityReport
from hrm_export.onnx_graph import GraphWriter, check_graph, element_types, stored_sizes
from hrm_export.options import Options
from hrm_host.progress import OnProgress, Stages, unheard
from hrm_puzzles.data.sources import Questions

NUM_RANGE_PUZZLES = 64
HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
SUFFIX: dict[int, str] = {HALF: "half", SINGLE: "single"}
LARGEST, SMALLEST = 65504.0, 2.0**-14
"""Of float16's normal numbers; a GPU may treat smaller ones as 0."""
HEADROOM = 8.0
"""How much larger than anything recorded a value may become: the puzzles served are not those recorded."""
QUANTISERS = ("QuantizeLinear", "DequantizeLinear")
NORM = frozenset({"square", "mean", "steady", "rms", "norm"})
"""Local names of the nodes of a normalisation: squares and sums outgrow float16 first, and the epsilon is lost."""
FRESH, ANSWER, MARGIN, SEGMENTS = "fresh_B", "answer_BT", "halt_margin_B", "segments_B"
KEPT_AS = {ANSWER: "kept_answer", MARGIN: "kept_margin", "q_halt_B": "kept_q_halt"}
"""What a row keeps of its last segment, and the node's name."""
NEVER = float(np.finfo(np.float32).max)
"""A threshold that no margin exceeds: the fixed policy."""


@dataclass(kw_only=True, eq=False)
class Form:
    """One precision: the `portable` graph, its form for CPUs where there is another, and how it came about (`origin`).

    What it does is filled in as it goes into the bundle: `policy` holds the threshold chosen for it on the held-out
    puzzles, `parity` is with PyTorch by file name, `lost` against float32.
    """

    precision: str
    portable: ModelProto
    cpu: ModelProto | None = None
    origin: dict[str, Any] = field(default_factory=dict[str, Any])
    rollout: Rollout = field(init=False)
    curve: list[PolicyScore] = field(init=False)
    policy: HaltingPolicy = field(init=False)
    parity: dict[str, ParityReport] = field(init=False)
    lost: dict[str, Paired] | None = None

    @property
    def graphs(self) -> dict[str, ModelProto]:
        """By file name; the last one is what a CPU runs."""
        portable = {f"step.{self.precision}.onnx": self.portable}
        return portable if self.cpu is None else {**portable, f"step.{self.precision}.cpu.onnx": self.cpu}

    @property
    def on_cpu(self) -> ParityReport:
        """Of the file that was measured."""
        return list(self.parity.values())[-1]

    @property
    def outcomes(self) -> Outcomes:
        """Under the rule as served, as far as was measured."""
        return self.rollout.under(replace(self.policy, max_segments=self.rollout.num_segments))

    @property
    def score(self) -> Score:
        return self.outcomes.score()

    def losses_against(self, fp32: "Form") -> dict[str, Paired]:
        """Puzzle by puzzle, under the rule as served and after all segments, where no threshold plays a part."""
        one, other = fp32.outcomes, self.outcomes
        return {
            "exact": paired(one.exact_N, other.exact_N),
            "proven": paired(one.proven_N, other.proven_N),
            "exact_after_all_segments": paired(fp32.rollout.exact_SN[-1], self.rollout.exact_SN[-1]),
        }

    def halting_curve(self) -> dict[str, Any]:
        shown = ("exact", "proven", "mean_segments")
        points = [
            {"threshold": point.policy.threshold, **{name: getattr(point.total, name) for name in shown}}
            for point in self.curve
        ]
        return {"num_puzzles": self.score.num_puzzles, "threshold": self.policy.threshold, "points": points}

    def as_json(self) -> dict[str, Any]:
        """As parity.json holds it: against PyTorch on the golden traces, against float32 on held-out puzzles."""
        golden = {
            name: {**report.as_json(), "max_logit_gap": report.max_logit_gap} for name, report in self.parity.items()
        }
        held_out: dict[str, Any] = asdict(self.score)
        if self.lost is not None:
            held_out["lost_against_fp32"] = {name: asdict(lost) for name, lost in self.lost.items()}
        return {"golden": golden, "held_out": held_out, **self.origin}


def lower_precisions(
    served: ServedGraph, questions: Questions, options: Options, stages: Stages
) -> Iterator[Form]:
    """The other forms in the options, each made after the one before has been judged."""
    if not (options.fp16 or options.int8):
        return
    few, graph = questions.sample(NUM_RANGE_PUZZLES), served.graph
    ranges = record_ranges(served, few, progress=partial(stages.show, "recording ranges for float16"))
    if options.fp16:
        kept = float32_nodes(graph, ranges)
        half = half_graph(graph, kept)
        check_graph(half, stored_sizes(graph))
        yield Form(precision="fp16", portable=half, origin={"float32_nodes": sorted(kept)})
    if options.int8:
        settings = Int8Settings(budget=options.int8_budget / 100)
        signed, report = calibrate(served, questions, settings=settings, stages=stages, judges=False)
        if options.report is not None:
            report.save(options.report)
        kept = float32_nodes(signed, ranges)
        portable = half_graph(signed, kept)
        check_graph(portable, stored_sizes(graph))
        fields = ("num_calibration", "num_choice", "weight_only")
        summary = {"method": report.chosen, **{name: getattr(report, name) for name in fields}}
        origin = {"float32_nodes": sorted(kept), "calibration": summary}
        narrow = for_cpus(graph, report.scales, report.weight_only)
        yield Form(precision="int8", portable=portable, cpu=narrow, origin=origin)


def record_ranges(served: ServedGraph, questions: Questions, *, progress: OnProgress = unheard) -> dict[str, float]:
    """The largest magnitude of every float value over all segments that the puzzles reach under the halting rule."""
    types = element_types(served.graph)
    values = [name for node in served.graph.graph.node for name in node.output if types[name] == SINGLE]
    largest, nodes = dict.fromkeys(values, 0.0), list[NodeProto]()
    for node in served.graph.graph.node:
        nodes.append(node)
        for name in filter(largest.__contains__, node.output):  # right behind it, so that no value outlives its use
            nodes.append(helper.make_node("Abs", [name], [f"{name}/abs"]))
            nodes.append(helper.make_node("ReduceMax", [f"{name}/abs"], [f"{name}/largest"], keepdims=0))
    shown = with_nodes(served.graph, nodes, served.graph.graph.initializer)
    shown = with_outputs(shown, (f"{name}/largest" for name in values))

    def observe(arrays: Mapping[str, np.typing.NDArray[Any]]) -> None:
        for name in values:
            largest[name] = max(largest[name], float(arrays[f"{name}/largest"]))

    served.observed(questions, observe, shown=shown, progress=progress)
    return largest


def float32_nodes(graph: ModelProto, ranges: Mapping[str, float]) -> frozenset[str]:
    """Names of the nodes that float16 would overflow or whose scale it would lose, and every normalisation.

    NVIDIA's builder warns of an overflow in any normalisation in float16; in float32 it makes as many kernels.
    `ranges` may be those of the same graph before it was quantised.
    """
    return frozenset(
        node.name
        for node in graph.graph.node
        if node.name.rpartition("/")[2] in NORM or _needs_single(node, graph.graph, ranges)
    )


def half_graph(model: ModelProto, in_float32: Collection[str]) -> ModelProto:
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

    def __init__(self, model: ModelProto, in_float32: Collection[str]) -> None:
        self.in_float32 = in_float32
        self.floats = {name for name, kind in element_types(model).items() if kind == SINGLE}
        self.outputs = {value.name for value in model.graph.output}
        self.nodes: list[NodeProto] = []
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

    def add(self, node: NodeProto) -> None:
        """The node in its own type, with casts before it where its inputs are made in the other."""
        kind = SINGLE if node.name in self.in_float32 else HALF
        ours = copy.deepcopy(node)
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


def _needs_single(node: NodeProto, graph: GraphProto, ranges: Mapping[str, float]) -> bool:
    tensors = (numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name in node.input)
    stored = [np.abs(array) for array in tensors if array.dtype == np.float32]
    if any(array.max() > LARGEST for array in stored):
        return True
    if any(HEADROOM * ranges.get(name, 0.0) > LARGEST for name in node.output):
        return True
    return node.op_type in QUANTISERS and any(array.min() < SMALLEST for array in stored)


def unrolled_graph(step: ModelProto, policy: HaltingPolicy, num_segments: int) -> ModelProto:
    """From tokens_BT and puzzle_vector_BE to answer_BT, segments_B, halt_margin_B and q_halt_B, in one call.

    The nodes of the step graph, in any precision, are repeated; weights and what does not depend on the carry are there
    once. A row whose margin exceeds the threshold keeps its answer from then on; every segment is computed all the
    same. A `verified` policy halts as a learned one does, since a graph proves nothing. Refuses fewer than one segment.
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

    def __init__(self, step: ModelProto) -> None:
        fresh = _reached(step, {FRESH}, by_all={tensor.name for tensor in step.graph.initializer})
        self.renamed = _reached(step, {FRESH, *CARRIES})
        self.shared = [node for node in step.graph.node if not self.renamed & set(node.output)]
        own = [node for node in step.graph.node if self.renamed & set(node.output) and not fresh & set(node.output)]
        self.starts = {node.output[0]: node for node in own if node.op_type == "Where" and node.input[0] in fresh}
        self.nodes = [node for node in own if node.output[0] not in self.starts]

    def segment(self, number: int) -> Iterator[NodeProto]:
        for node in self.nodes:
            ours = copy.deepcopy(node)
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


def _reached(step: ModelProto, start: set[str], by_all: set[str] | None = None) -> set[str]:
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
