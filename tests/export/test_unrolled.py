"""The unrolled graph answers in one call what the runtime's loop answers segment by segment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_tools import engine_of, random_inputs, random_questions, run_once, small_model

from hrm_edge_runtime.contract.halting import HaltingPolicy, stops_B
from hrm_edge_runtime.engines.engine import Engine
from hrm_export.onnx_graph import stored_sizes
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record
from hrm_export.unrolled import unrolled_graph
from hrm_puzzles.data.sources import Questions
from hrm_puzzles.puzzle import UNKNOWN

Outputs = dict[str, np.ndarray]


def inputs_of(questions: Questions, table: np.ndarray) -> Outputs:
    return {"tokens_BT": questions.tokens_NT, "puzzle_vector_BE": table[questions.puzzle_ids_N]}


def looped(engine: Engine, inputs: Outputs, policy: HaltingPolicy) -> Outputs:
    """Run the runtime's loop; keep each row's output of the segment that halted it."""
    count = len(inputs["tokens_BT"])
    for slot in range(count):
        engine.load(slot, inputs["tokens_BT"][slot], inputs["puzzle_vector_BE"][slot])
    segments_B = np.zeros(count, np.int32)
    unproven_B = np.full(count, UNKNOWN, np.int8)
    kept: Outputs = {}
    for segment in range(1, policy.max_segments + 1):
        output = engine.step(count)
        runs_B = segments_B == 0
        for name in ("answer_BT", "halt_margin_B", "q_halt_B"):
            values = getattr(output, name)
            kept.setdefault(name, values.copy())[runs_B] = values[runs_B]
        stops = stops_B(output.halt_margin_B, segment, unproven_B, policy)
        segments_B[runs_B & stops] = segment
    kept["segments_B"] = segments_B
    return kept


def assert_same(ours: Outputs, theirs: Outputs) -> None:
    assert set(ours) == set(theirs)
    for name in ("answer_BT", "segments_B"):
        assert np.array_equal(ours[name], theirs[name]), name
    for name in ("halt_margin_B", "q_halt_B"):
        assert np.allclose(ours[name], theirs[name], atol=1e-5), name  # other fusions, other sums


def threshold_that_parts(margin_SB: np.ndarray) -> float:
    """Return the margin at which rows halt after the most different numbers of segments."""

    def num_ends(threshold: float) -> int:
        segments_B = (margin_SB > threshold).argmax(axis=0)
        return len(np.unique(segments_B))

    return max(np.unique(margin_SB).tolist(), key=num_ends)


@pytest.mark.parametrize(
    "changes",
    [{"low_cycles": 1}, {"low_cycles": 1, "positions": "learned", "puzzle_vector_size": 0}],
    ids=["rotary", "no-prefix"],
)
def test_rows_halt_in_the_segment_in_which_the_loop_halts_them(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    model = small_model(max_segments=6, **changes)
    questions = random_questions(model, 12)
    inputs = inputs_of(questions, model.puzzle_table.numpy())
    threshold = threshold_that_parts(record(model, questions).halt_margin_SB)
    policy = HaltingPolicy(kind="learned", threshold=threshold, max_segments=6)
    graph = segment_graph(model)
    theirs = looped(engine_of(graph, model, questions, tmp_path), inputs, policy)
    assert len(np.unique(theirs["segments_B"])) > 2
    assert_same(run_once(unrolled_graph(graph, policy, 6), inputs), theirs)


def test_more_segments_add_no_weights_and_repeat_nothing_that_no_carry_reaches() -> None:
    graph = segment_graph(small_model())
    whole = unrolled_graph(graph, HaltingPolicy(), 4)
    assert stored_sizes(whole) == stored_sizes(graph)
    names = [node.name for node in whole.graph.node]
    assert sum(name.endswith("embed/scaled") for name in names) == 1


def test_a_margin_equal_to_the_threshold_goes_on_as_in_the_loop() -> None:
    """The float32 nearest to 0.1 is larger, and the loop compares in float64, so it halts there."""
    model = small_model(halt_rule="q_halt")
    model.q_head.weight.data.zero_()
    model.q_head.bias.data.fill_(0.1)
    graph = segment_graph(model)
    for threshold, segments in ((0.1, 1), (float(np.float32(0.1)), 3)):
        whole = unrolled_graph(graph, HaltingPolicy(threshold=threshold), 3)
        outputs = run_once(whole, random_inputs(model, 2))
        assert outputs["segments_B"].tolist() == [segments, segments]


def test_one_segment_is_a_graph_and_none_is_rejected() -> None:
    model = small_model(arch="transformer", max_segments=1)
    graph = segment_graph(model)
    whole = unrolled_graph(graph, HaltingPolicy(), 1)
    assert run_once(whole, random_inputs(model, 3))["segments_B"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="needs 1 or more segments, not 0"):
        unrolled_graph(graph, HaltingPolicy(), 0)
