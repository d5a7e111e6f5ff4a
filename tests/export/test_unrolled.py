"""The unrolled graph answers in one call what the runtime's loop answers segment by segment.

Shapes: B puzzles, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from export_tools import (
    engine_of,
    made_questions,
    random_inputs,
    random_questions,
    relational_sizes,
    run_once,
    small_model,
)
from onnx import numpy_helper

from hrm_calibration.quantise import call_sites, quantise
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy, stops_B
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_export.half import half_graph
from hrm_export.onnx_graph import check_graph, stored_sizes
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record
from hrm_export.unrolled import unrolled_graph
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import UNKNOWN

Outputs = dict[str, np.ndarray]


def inputs_of(questions: Questions, table: np.ndarray) -> Outputs:
    return {"tokens_BT": questions.tokens_NT, "puzzle_vector_BE": table[questions.puzzle_ids_N]}


def looped(engine: Engine, inputs: Outputs, policy: HaltingPolicy) -> Outputs:
    """The runtime's loop over all rows, each with its output of the segment that halted it."""
    count = len(inputs["tokens_BT"])
    for slot in range(count):
        engine.load(slot, inputs["tokens_BT"][slot], inputs["puzzle_vector_BE"][slot])
    names = ("answer_BT", "halt_margin_B", "q_halt_B")
    said: Outputs = {}
    segments_B = np.zeros(count, np.int32)
    unproven_B = np.full(count, UNKNOWN, np.int8)
    for segment in range(1, policy.max_segments + 1):
        output = engine.step(count)
        new_B = segments_B == 0
        stopping_B = new_B & stops_B(output.halt_margin_B, segment, unproven_B, policy)
        for name in names:
            said.setdefault(name, getattr(output, name).copy())[new_B] = getattr(output, name)[
                new_B
            ]
        segments_B[stopping_B] = segment
    return {**said, "segments_B": segments_B}


def assert_same(ours: Outputs, theirs: Outputs) -> None:
    assert set(ours) == set(theirs)
    for name in ("answer_BT", "segments_B"):
        assert np.array_equal(ours[name], theirs[name]), name
    for name in ("halt_margin_B", "q_halt_B"):
        assert np.allclose(ours[name], theirs[name], atol=1e-5), name  # other fusions, other sums


def threshold_that_parts(margin_SB: np.ndarray) -> float:
    """The margin at which rows halt after the most different numbers of segments."""
    margins = np.unique(margin_SB).tolist()
    return max(
        margins, key=lambda threshold: len(set((margin_SB > threshold).argmax(axis=0).tolist()))
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": "rope"},
        {"positions": "learned", "puzzle_vector_size": 0},
        {"high_cycles": 1, "low_cycles": 3},
    ],
    ids=["rotary", "no-prefix", "cycles"],
)
def test_rows_halt_where_the_loop_halts_them(changes: dict[str, Any], tmp_path: Path) -> None:
    model = small_model(max_segments=6, **changes)
    questions = random_questions(model, 12)
    threshold = threshold_that_parts(record(model, questions).halt_margin_SB)
    policy = HaltingPolicy(kind="learned", threshold=threshold, max_segments=6)
    graph = segment_graph(model)
    theirs = looped(
        engine_of(graph, model, questions, tmp_path),
        inputs_of(questions, model.puzzle_table.numpy()),
        policy,
    )
    assert len(set(theirs["segments_B"].tolist())) > 2
    ours = run_once(
        unrolled_graph(graph, policy, 6), inputs_of(questions, model.puzzle_table.numpy())
    )
    assert_same(ours, theirs)


@pytest.mark.parametrize("kind", ["learned", "fixed"])
def test_a_trained_model_answers_in_one_call_as_in_the_loop(kind: Any) -> None:
    bundle = Bundle.open(find_bundle("sudoku-6x6"))
    policy = HaltingPolicy(kind=kind, threshold=0.0, max_segments=8)
    inputs = inputs_of(made_questions(bundle.puzzle, 48), bundle.puzzle_table)
    theirs = looped(engine_from_bundle(bundle, num_slots=48, num_threads=1), inputs, policy)
    assert (len(set(theirs["segments_B"].tolist())) > 2) == (kind == "learned")
    ours = run_once(unrolled_graph(onnx.load(bundle.graph_path("fp32")), policy, 8), inputs)
    assert_same(ours, theirs)


def as_half(graph: onnx.ModelProto) -> onnx.ModelProto:
    return half_graph(graph, ())


def as_int8(graph: onnx.ModelProto) -> onnx.ModelProto:
    return quantise(graph, {site.name: 0.05 for site in call_sites(graph)})


@pytest.mark.parametrize(
    "changes", [{}, relational_sizes("sudoku-4x4"), relational_sizes("maze-8x8")]
)
@pytest.mark.parametrize("form", [as_half, as_int8])
def test_other_precisions_unroll_as_well(
    form: Callable[[onnx.ModelProto], onnx.ModelProto], changes: dict[str, Any], tmp_path: Path
) -> None:
    model = small_model(max_segments=4, **changes)
    questions = random_questions(model, 6)
    graph = segment_graph(model)
    policy = HaltingPolicy(kind="fixed", max_segments=2)
    inputs = inputs_of(questions, model.puzzle_table.numpy())
    theirs = looped(engine_of(form(graph), model, questions, tmp_path), inputs, policy)
    whole = unrolled_graph(form(graph), policy, 2)
    check_graph(whole, stored_sizes(graph))
    ours = run_once(whole, inputs)
    assert (ours["answer_BT"] == theirs["answer_BT"]).mean() > 0.9
    assert np.abs(ours["q_halt_B"] - theirs["q_halt_B"]).max() < 0.1


def test_more_segments_add_nodes_but_no_weights() -> None:
    graph = segment_graph(small_model())
    policy = HaltingPolicy()
    few, many = (unrolled_graph(graph, policy, count) for count in (2, 16))
    check_graph(many, stored_sizes(graph))
    assert stored_sizes(many) == stored_sizes(few) == stored_sizes(graph)


def test_what_no_carry_reaches_is_computed_once() -> None:
    whole = unrolled_graph(segment_graph(small_model()), HaltingPolicy(), 4)
    assert [
        node.name for node in whole.graph.node if "embed/" in node.name and "segment_" in node.name
    ] == []
    assert sum(node.name == "embed/scaled" for node in whole.graph.node) == 1


def test_it_takes_no_carry_and_says_how_long_it_may_run() -> None:
    whole = unrolled_graph(segment_graph(small_model()), HaltingPolicy(threshold=0.5), 4)
    assert [value.name for value in whole.graph.input] == ["tokens_BT", "puzzle_vector_BE"]
    assert [value.name for value in whole.graph.output] == [
        "answer_BT",
        "segments_B",
        "halt_margin_B",
        "q_halt_B",
    ]
    assert {entry.key: entry.value for entry in whole.metadata_props} == {
        "num_segments": "4",
        "threshold": "0.5",
    }


def test_a_margin_equal_to_the_threshold_goes_on_as_in_the_loop() -> None:
    """The float32 nearest to 0.1 is larger, and the loop compares in float64, so it halts there."""
    model = small_model(halt_rule="q_halt")
    graph = segment_graph(model)
    for name, values in (("q_head.weight", np.zeros((32, 2))), ("q_head.bias", np.full(2, 0.1))):
        tensor = next(tensor for tensor in graph.graph.initializer if tensor.name == name)
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float32), name))
    for threshold, segments in ((0.1, 1), (float(np.float32(0.1)), 3)):
        whole = unrolled_graph(graph, HaltingPolicy(threshold=threshold), 3)
        assert run_once(whole, random_inputs(model, 2))["segments_B"].tolist() == [segments] * 2


def test_no_segment_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 1 or more segments, not 0"):
        unrolled_graph(segment_graph(small_model()), HaltingPolicy(), 0)


def test_one_segment_is_a_graph_as_well() -> None:
    model = small_model(arch="transformer", max_segments=1)
    whole = unrolled_graph(segment_graph(model), HaltingPolicy(), 1)
    assert ort.InferenceSession(whole.SerializeToString()).get_outputs()[1].name == "segments_B"
    assert run_once(whole, random_inputs(model, 3))["segments_B"].tolist() == [1, 1, 1]
