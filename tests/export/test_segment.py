"""The step graph agrees with PyTorch for any carry; a graph that breaks a rule is rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from export_tools import (
    TRM,
    TRM_MIXER,
    engine_of,
    random_inputs,
    random_questions,
    relational_sizes,
    run_once,
    small_model,
)
from onnx import TensorProto, helper, numpy_helper

from hrm_export.onnx_graph import TENSORRT_OPERATORS, check_graph, stored_sizes
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record

MODELS: dict[str, dict[str, Any]] = {
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
WEIGHT = "lm_head.weight"
Change = Callable[[onnx.ModelProto], None]
LOGIT_TOLERANCE = 1e-4  # float32 sums in another order, carried through 16 segments


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_onnx_runtime_says_what_pytorch_says_after_every_segment(
    changes: dict[str, Any], tmp_path: Path
) -> None:
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


def assert_near(ours: np.ndarray | None, theirs: np.ndarray) -> None:
    assert ours is not None
    assert np.abs(ours - theirs).max() <= LOGIT_TOLERANCE


def test_garbage_in_the_carry_of_a_fresh_row_never_leaks() -> None:
    model = small_model()
    graph = segment_graph(model)
    inputs = random_inputs(model, 4)
    inputs["fresh_B"][[1, 3]] = True
    clean = run_once(graph, inputs)
    for name in ("z_high_BND", "z_low_BND"):
        inputs[name][[1, 3]] = np.nan
    spoilt = run_once(graph, inputs)
    for name, array in clean.items():
        assert np.array_equal(array, spoilt[name]), name


def test_every_weight_is_stored_once_however_often_it_is_used() -> None:
    model = small_model(high_cycles=2, low_cycles=3)
    weights = dict(model.state_dict())
    del weights["puzzle_table"]
    num_values = 2 * model.config.num_positions * model.config.head_size  # tables of sine, cosine
    num_values += sum(tensor.numel() for tensor in weights.values())
    num_stored = 0
    for tensor in segment_graph(model).graph.initializer:
        weights.pop(tensor.name, None)
        if tensor.dims and tensor.data_type == TensorProto.FLOAT:
            num_stored += np.prod(tensor.dims)
    assert weights == {}
    assert num_stored == num_values


def test_the_list_of_operators_is_what_the_graphs_use() -> None:
    used: set[str] = set()
    for changes in MODELS.values():
        graph = segment_graph(small_model(**changes)).graph
        used.update(node.op_type for node in graph.node)
    assert used == set(TENSORRT_OPERATORS) - ADDED_LATER
    assert not used & {"Attention", "RMSNormalization", "RotaryEmbedding", "Shape", "Constant"}


def add_node(model: onnx.ModelProto, operator: str, *inputs: str) -> None:
    model.graph.node.append(helper.make_node(operator, inputs, ["surplus"], name="surplus"))


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def copy_weight(model: onnx.ModelProto) -> None:
    copy = model.graph.initializer.add()
    copy.CopyFrom(initializer(model, WEIGHT))
    copy.name = "copy"


def halve(model: onnx.ModelProto) -> None:
    add_node(model, "Cast", "logits_BTV")
    model.graph.node[-1].attribute.append(helper.make_attribute("to", TensorProto.FLOAT16))
    meeting = helper.make_node("Add", ["surplus", "logits_BTV"], ["sum"], name="meeting")
    model.graph.node.append(meeting)


def quantize_from_three(model: onnx.ModelProto) -> None:
    one = numpy_helper.from_array(np.array(1, np.float32), "one/scale")
    three = numpy_helper.from_array(np.array(3, np.int8), "three")
    model.graph.initializer.extend([one, three])
    add_node(model, "QuantizeLinear", "logits_BTV", "one/scale", "three")


def store_in_int8_too(model: onnx.ModelProto) -> None:
    matrix = numpy_helper.to_array(initializer(model, WEIGHT)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(matrix, f"{WEIGHT}/int8"))


def raise_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 21


def adding(operator: str, *inputs: str) -> Change:
    return lambda model: add_node(model, operator, *inputs)


FAULTS: dict[str, tuple[Change, str]] = {
    "unknown operator": (adding("Gelu", "logits_BTV"), "surplus is Gelu giving FLOAT"),
    "unknown type": (adding("Mul", "answer_BT", "answer_BT"), "surplus is Mul giving INT32"),
    "weight twice": (copy_weight, "copy: expected None, found 192"),
    "weight turned": (adding("Transpose", WEIGHT), f"transposes the weight {WEIGHT}"),
    "newer opset": (raise_opset, "write IR 10 and opset 20"),
    "half meets float": (halve, "meeting mixes types|not valid ONNX"),
    "asymmetric": (quantize_from_three, "surplus has a zero point other"),
    "int8 beside float": (store_in_int8_too, f"{WEIGHT}: expected 192, found 384"),
}


@pytest.mark.parametrize(("change", "saying"), FAULTS.values(), ids=FAULTS)
def test_a_graph_that_breaks_a_rule_is_rejected(change: Change, saying: str) -> None:
    model = segment_graph(small_model())
    stored = stored_sizes(model)
    check_graph(model, stored)
    change(model)
    with pytest.raises(match=saying):
        check_graph(model, stored)
