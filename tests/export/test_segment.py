"""The step graph and its other forms agree with PyTorch; faulty graphs are rejected."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from export_tools import (
    SUDOKU,
    TRM,
    TRM_MIXER,
    engine_of,
    random_inputs,
    random_questions,
    ranges_of,
    relational_sizes,
    run,
    small_model,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from hrm_calibration.graph_rules import check_graph, element_types
from hrm_calibration.half import float32_nodes, half_graph
from hrm_calibration.quantize import call_sites, quantize
from hrm_calibration.rollouts import run_questions
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.operators import OPERATORS
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_export.onnx_graph import unrolled_graph
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record

MODELS = {
    "rotary": {"positions": "rope"},
    "no-prefix-learned": {"positions": "learned", "puzzle_vector_size": 0},
    "padded-prefix-of-two": {"positions": "rope", "puzzle_vector_size": 40},
    "single-cycles": {"high_cycles": 1, "low_cycles": 1, "low_layers": 1, "halt_rule": "q_halt"},
    "many-cycles": {"high_cycles": 2, "low_cycles": 3, "high_layers": 2},
    "transformer": {"arch": "transformer", "max_segments": 1, "high_layers": 2},
    "trm": TRM,
    "trm-mixer": TRM_MIXER,
    "nine-by-nine": {"vocab_size": 11, "seq_len": 81, "hidden_size": 48, "num_heads": 3},
}
for puzzle in ("sudoku-4x4", "sudoku-6x6", "maze-8x8", "arc-7x7"):
    MODELS[puzzle] = {**relational_sizes(puzzle), "low_cycles": 1}
ADDED_LATER = {"QuantizeLinear", "DequantizeLinear", "And", "Greater", "Not"}
"""Operators of quantizing and unrolling."""
MAX_RANK = 5
Change = Callable[[onnx.ModelProto], None]
LOGIT_TOLERANCE = 1e-4  # float32 sums in another order, carried through 16 segments
assert_near = partial(np.testing.assert_allclose, rtol=0, atol=LOGIT_TOLERANCE)


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_every_segment_agrees_with_pytorch(changes: dict[str, Any], tmp_path: Path):
    model = small_model(**changes)
    questions = random_questions(model, 5)
    truth = record(model, questions)
    engine = engine_of(segment_graph(model), model, questions, tmp_path)
    assert len(truth.answer_SBT) == model.config.max_segments
    for segment, answer_BT in enumerate(truth.answer_SBT):
        output = engine.step(5)
        margin_B = truth.halt_margin_SB[segment]
        assert_near(output.logits_BTV, truth.logits_SBTV[segment])
        assert_near(output.halt_margin_B, margin_B)
        assert_near(output.q_halt_B, truth.q_halt_SB[segment])
        assert np.array_equal(output.answer_BT, answer_BT)
        assert np.array_equal(output.halt_margin_B > 0, margin_B > 0)


def test_garbage_in_the_carry_of_a_fresh_row_never_leaks():
    model = small_model()
    graph = segment_graph(model)
    inputs = random_inputs(model, 4)
    inputs["fresh_B"][[1, 3]] = True
    clean = run(graph, inputs)
    for name in ("z_high_BND", "z_low_BND"):
        inputs[name][[1, 3]] = np.nan
    spoilt = run(graph, inputs)
    for name, array in clean.items():
        assert np.array_equal(array, spoilt[name]), name


def stored_sizes(model: onnx.ModelProto) -> dict[str, int]:
    """Values of each stored array but single numbers; half and single floats count alike."""
    sizes = {}
    for tensor in model.graph.initializer:
        if tensor.dims and tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16):
            assert tensor.name not in sizes
            sizes[tensor.name] = int(np.prod(tensor.dims))
    return sizes


def test_every_weight_is_stored_once_however_often_it_is_used():
    model = small_model(high_cycles=2, low_cycles=3)
    weights = dict(model.state_dict())
    del weights["puzzle_table"]
    num_values = 2 * model.config.num_positions * model.config.head_size  # tables of sine, cosine
    num_values += sum(tensor.numel() for tensor in weights.values())
    graph = segment_graph(model)
    stored = stored_sizes(graph)
    assert weights.keys() <= stored.keys()
    assert sum(stored.values()) == num_values
    for node in graph.graph.node:  # a quantizer does not see a turned weight as a weight
        assert node.op_type != "Transpose" or node.input[0] not in stored
    assert graph.ir_version == 10
    assert [(entry.domain, entry.version) for entry in graph.opset_import] == [("", 20)]


def test_the_list_of_operators_is_what_the_graphs_use_and_their_axes_are_few():
    """OpenVINO adds seven axes wrongly, without an error."""
    used = set()
    for name, changes in MODELS.items():
        model = segment_graph(small_model(**changes))
        assert largest_rank(model) <= MAX_RANK, name
        used.update(node.op_type for node in model.graph.node)
    assert used == OPERATORS - ADDED_LATER
    assert not used & {"Attention", "RMSNormalization", "RotaryEmbedding", "Shape", "Constant"}


def largest_rank(model: onnx.ModelProto) -> int:
    graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    assert len(values) > len(graph.node)
    return max(len(value.type.tensor_type.shape.dim) for value in values)


@pytest.mark.parametrize("path", sorted(SHIPPED_BUNDLES.glob("*.bundle/*.onnx")), ids=str)
def test_no_tensor_of_a_shipped_graph_has_more_axes(path: Path):
    assert largest_rank(onnx.load(path)) <= MAX_RANK


def add_node(model: onnx.ModelProto, operator: str, *inputs: str) -> None:
    model.graph.node.append(helper.make_node(operator, inputs, ["surplus"], name="surplus"))


def halve(model: onnx.ModelProto) -> None:
    add_node(model, "Cast", "logits_BTV")
    model.graph.node[-1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT16))
    meeting = helper.make_node("Add", ["surplus", "logits_BTV"], ["sum"], name="meeting")
    model.graph.node.append(meeting)


def adding(operator: str, *inputs: str) -> Change:
    return lambda model: add_node(model, operator, *inputs)


FAULTS = {
    "unknown operator": (adding("Gelu", "logits_BTV"), "surplus is Gelu giving FLOAT"),
    "unknown type": (adding("Mul", "answer_BT", "answer_BT"), "surplus is Mul giving INT32"),
    "half meets float": (halve, "meeting mixes types|not valid ONNX"),
}


@pytest.mark.parametrize(("change", "saying"), FAULTS.values(), ids=FAULTS)
def test_a_graph_that_breaks_a_rule_is_rejected(change: Change, saying: str):
    model = segment_graph(small_model())
    check_graph(model)
    change(model)
    with pytest.raises(match=saying):
        check_graph(model)


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
def test_rows_halt_where_the_loop_halts_them(changes: dict[str, Any], tmp_path: Path):
    model = small_model(max_segments=6, **changes)
    questions = random_questions(model, 12)
    table = model.puzzle_table.numpy()
    threshold = threshold_that_parts(record(model, questions).halt_margin_SB)
    policy = HaltingPolicy(kind="learned", threshold=threshold, max_segments=6)
    graph = segment_graph(model)
    engine = engine_of(graph, model, questions, tmp_path)
    ended = sorted(
        run_questions(engine, SUDOKU, questions, table, policy),
        key=lambda one: one.attempt_id,
    )
    inputs = {"tokens_BT": questions.tokens_NT}
    inputs["puzzle_vector_BE"] = table[questions.puzzle_ids_N]
    ours = run(unrolled_graph(graph, policy, 6), inputs)
    assert len(np.unique(ours["segments_B"])) > 2
    assert ours["segments_B"].tolist() == [one.segments for one in ended]
    assert np.array_equal(ours["answer_BT"], [one.answer_T for one in ended])
    # other fusions, other sums
    assert np.allclose(ours["halt_margin_B"], [one.margin for one in ended], atol=1e-5)
    assert np.allclose(ours["q_halt_B"], [one.q_halt for one in ended], atol=1e-5)


def test_more_segments_add_no_weights_and_repeat_nothing_that_no_carry_reaches():
    graph = segment_graph(small_model())
    whole = unrolled_graph(graph, HaltingPolicy(), 4)
    assert stored_sizes(whole) == stored_sizes(graph)
    names = [node.name for node in whole.graph.node]
    assert sum(name.endswith("embed/scaled") for name in names) == 1


def test_a_margin_equal_to_the_threshold_goes_on_as_in_the_loop():
    """The float32 nearest to 0.1 is larger, and the loop compares in float64, so it halts there."""
    model = small_model(halt_rule="q_halt")
    model.q_head.weight.data.zero_()
    model.q_head.bias.data.fill_(0.1)
    graph = segment_graph(model)
    for threshold, segments in ((0.1, 1), (float(np.float32(0.1)), 3)):
        whole = unrolled_graph(graph, HaltingPolicy(threshold=threshold), 3)
        outputs = run(whole, random_inputs(model, 2))
        assert outputs["segments_B"].tolist() == [segments, segments]


def test_one_segment_is_a_graph():
    model = small_model(arch="transformer", max_segments=1)
    graph = segment_graph(model)
    whole = unrolled_graph(graph, HaltingPolicy(), 1)
    assert run(whole, random_inputs(model, 3))["segments_B"].tolist() == [1, 1, 1]


NORMS = {"square", "mean", "steady", "rms", "norm"}
HALF_TOLERANCE = 0.1  # a hundred roundings to 11 bits of values near 4, in each of 16 segments


def computed_in_float(model: onnx.ModelProto) -> set[str]:
    types = element_types(model)
    names = set()
    for node in model.graph.node:
        if node.op_type != "Cast" and types[node.output[0]] == TensorProto.FLOAT:
            names.add(node.name)
    return names


def norms_of(graph: onnx.ModelProto) -> set[str]:
    return {node.name for node in graph.graph.node if node.name.rpartition("/")[2] in NORMS}


def test_it_takes_and_gives_the_same_and_stores_every_weight_once_in_half_the_bytes():
    graph = segment_graph(small_model(hidden_size=64, high_layers=2))
    half = half_graph(graph, ())
    check_graph(half)
    assert stored_sizes(half) == stored_sizes(graph)
    num_values = sum(stored_sizes(graph).values())
    num_saved = len(graph.SerializeToString()) - len(half.SerializeToString())
    assert num_saved == pytest.approx(2 * num_values, rel=0.05)
    assert computed_in_float(half) == set()
    assert list(half.graph.input) == list(graph.graph.input)
    assert list(half.graph.output) == list(graph.graph.output)


def test_within_the_range_of_float16_every_normalization_and_nothing_else_stays_float32():
    model = small_model()
    graph = segment_graph(model)
    assert norms_of(graph)
    assert float32_nodes(graph, ranges_of(model, SUDOKU, 4)) == norms_of(graph)


def logits_of(graph: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(over="ignore"):
        (logits_BTV,) = ReferenceEvaluator(graph).run(["logits_BTV"], inputs)
    assert isinstance(logits_BTV, np.ndarray)
    return logits_BTV


def test_a_float32_node_keeps_finite_what_would_overflow():
    model = small_model()
    for level in (model.low_level, model.high_level):
        for block in level.layers:  # its second normalization squares values beyond float16
            block.mlp.down_proj.weight.data *= 4000
    graph = segment_graph(model)
    inputs = random_inputs(model, 2)
    truth = logits_of(graph, inputs)
    spoilt = logits_of(half_graph(graph, ()), inputs)
    kept_ones = float32_nodes(graph, ranges_of(model, SUDOKU, 4))
    kept = logits_of(half_graph(graph, kept_ones), inputs)
    assert np.abs(spoilt - truth).max() > 5 * HALF_TOLERANCE
    # sums in the hundreds are rounded in float16 beside it
    assert np.abs(kept - truth).max() <= 2 * HALF_TOLERANCE


def test_a_quantized_graph_becomes_half_around_its_integers():
    graph = segment_graph(small_model())
    scales = {site.name: 0.05 for site in call_sites(graph)}
    signed = quantize(graph, scales)
    half = half_graph(signed, float32_nodes(signed, {}))
    check_graph(half)
    assert computed_in_float(half) == norms_of(signed)
    first = next(iter(scales))
    scales[first] = 1e-6
    signed = quantize(graph, scales)
    kept = float32_nodes(signed, {}) - norms_of(signed)
    assert kept == {f"{first}/quantize", f"{first}/dequantize"}
