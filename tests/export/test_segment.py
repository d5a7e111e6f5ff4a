"""The step graph agrees with PyTorch for any carry; a graph that breaks a rule is rejected.

Shapes: B puzzles, S segments, T tokens, V vocabulary.
"""

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
from onnx import helper, numpy_helper

from hrm_export.onnx_graph import TENSORRT_OPERATORS, check_graph, stored_sizes
from hrm_export.segment import segment_graph
from hrm_export.torch_engine import record

MODELS: dict[str, dict[str, Any]] = {
    "rotary": {"positions": "rope"},
    "learned": {"positions": "learned"},
    "no-prefix": {"positions": "rope", "puzzle_vector_size": 0},
    "no-prefix-learned": {"positions": "learned", "puzzle_vector_size": 0},
    "padded-prefix-of-two": {"positions": "rope", "puzzle_vector_size": 40},
    "prefix-of-two-learned": {"positions": "learned", "puzzle_vector_size": 64},
    "single-cycles": {"high_cycles": 1, "low_cycles": 1, "low_layers": 1, "halt_rule": "q_halt"},
    "many-cycles": {"high_cycles": 2, "low_cycles": 3, "high_layers": 2},
    "transformer": {"arch": "transformer", "max_segments": 1, "high_layers": 2},
    "transformer-learned": {
        "arch": "transformer",
        "max_segments": 1,
        "positions": "learned",
        "halt_rule": "q_halt",
    },
    "trm": TRM,
    "trm-mixer": TRM_MIXER,
    "other-sizes": {
        "vocab_size": 11,
        "seq_len": 81,
        "hidden_size": 48,
        "num_heads": 3,
        "expansion": 2.0,
    },
}
MODELS |= {
    name: {**relational_sizes(name), "low_cycles": 1}
    for name in ("sudoku-4x4", "sudoku-6x6", "maze-8x8", "arc-7x7")
}
ADDED_LATER = {
    "QuantizeLinear",
    "DequantizeLinear",
    "And",
    "Greater",
    "Not",
}  # by quantising and unrolling
WEIGHT = "lm_head.weight"
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
    for answer_BT, margin_B, q_halt_B, logits_BTV in zip(
        truth.answer_SBT, truth.halt_margin_SB, truth.q_halt_SB, truth.logits_SBTV, strict=True
    ):
        output = engine.step(5)
        assert output.logits_BTV is not None
        assert np.abs(output.logits_BTV - logits_BTV).max() <= LOGIT_TOLERANCE
        assert (output.answer_BT == answer_BT).all()
        assert ((output.halt_margin_B > 0) == (margin_B > 0)).all()
        assert np.abs(output.halt_margin_B - margin_B).max() <= LOGIT_TOLERANCE
        assert np.abs(output.q_halt_B - q_halt_B).max() <= LOGIT_TOLERANCE


def test_the_models_compared_here_are_no_trivial_ones() -> None:
    """Answers differ and keep changing, margins have both signs, the puzzle's row matters."""
    model = small_model()
    questions = random_questions(model, 5)
    truth = record(model, questions)
    assert (truth.answer_SBT[:, 0] != truth.answer_SBT[:, 1]).any()
    assert np.abs(np.diff(truth.logits_SBTV, axis=0)).max(axis=(1, 2, 3)).min() > 0.01
    assert truth.halt_margin_SB.min() < 0 < truth.halt_margin_SB.max()
    model.puzzle_table.zero_()
    assert np.abs(record(model, questions).logits_SBTV - truth.logits_SBTV).max() > 0.1


@pytest.mark.parametrize("garbage", [np.nan, np.inf, 1e30])
def test_garbage_in_the_carry_of_a_fresh_row_never_leaks(garbage: float) -> None:
    model = small_model()
    graph = segment_graph(model)
    inputs = random_inputs(model, 4)
    inputs["fresh_B"][[1, 3]] = True
    clean = run_once(graph, inputs)
    for name in ("z_high_BND", "z_low_BND"):
        inputs[name][[1, 3]] = garbage
    spoilt = run_once(graph, inputs)
    for name, array in clean.items():
        assert np.array_equal(array, spoilt[name]), name


def test_a_row_that_is_not_fresh_goes_on_from_its_carry() -> None:
    model = small_model()
    graph = segment_graph(model)
    inputs = random_inputs(model, 2)
    going_on = run_once(graph, inputs)["logits_BTV"]
    afresh = run_once(graph, {**inputs, "fresh_B": np.ones(2, np.bool_)})["logits_BTV"]
    assert np.abs(going_on - afresh).max() > 0.01


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_puzzle_gets_the_same_answer_in_batches_of_1_3_and_8(positions: str) -> None:
    model = small_model(positions=positions)
    graph = segment_graph(model)
    inputs = random_inputs(model, 8)
    whole = run_once(graph, inputs)
    for size in (1, 3):
        part = run_once(graph, {name: array[:size] for name, array in inputs.items()})
        for name, array in part.items():
            assert np.allclose(array, whole[name][:size], atol=1e-5), (size, name)


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_every_weight_is_stored_once_however_often_it_is_used(positions: str) -> None:
    model = small_model(positions=positions, high_cycles=2, low_cycles=3)
    stored = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in segment_graph(model).graph.initializer
    }
    weights = {
        name: tensor for name, tensor in model.state_dict().items() if name != "puzzle_table"
    }
    tables = 2 * model.config.num_positions * model.config.head_size if positions == "rope" else 0
    arrays = [array for array in stored.values() if array.dtype == np.float32 and array.ndim > 0]
    assert (
        sum(array.size for array in arrays)
        == sum(tensor.numel() for tensor in weights.values()) + tables
    )
    assert set(weights) <= set(stored)


def test_the_carry_passes_a_transformer_by() -> None:
    model = small_model(arch="transformer", max_segments=1)
    inputs = random_inputs(model, 3)
    outputs = run_once(segment_graph(model), inputs)
    for name in ("z_high_BND", "z_low_BND"):
        assert np.array_equal(outputs[f"{name}_next"], inputs[name])


def test_matrices_are_stored_as_they_are_used() -> None:
    model = small_model()
    graph = segment_graph(model).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    name = "low_level.layers.1.mlp.down_proj.weight"
    assert np.array_equal(stored[name], model.state_dict()[name].numpy().T)
    assert not [
        node for node in graph.node if node.op_type == "Transpose" and node.input[0] in stored
    ]


def test_more_cycles_add_nodes_but_no_weights() -> None:
    few, many = (segment_graph(small_model(high_cycles=cycles)) for cycles in (1, 3))
    assert len(many.graph.node) > 2 * len(few.graph.node)
    assert len(many.SerializeToString()) - len(few.SerializeToString()) < 100 * len(many.graph.node)


def test_the_list_of_operators_is_what_the_graphs_use() -> None:
    used = {
        node.op_type
        for changes in MODELS.values()
        for node in segment_graph(small_model(**changes)).graph.node
    }
    assert used == set(TENSORRT_OPERATORS) - ADDED_LATER
    assert not used & {"Attention", "RMSNormalization", "RotaryEmbedding", "Shape", "Constant"}


def test_names_types_and_the_open_axis_are_the_runtimes_contract() -> None:
    graph = segment_graph(small_model(puzzle_vector_size=40)).graph
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {
        "tokens_BT": ["B", 16],
        "puzzle_vector_BE": ["B", 40],
        "fresh_B": ["B"],
        "z_high_BND": ["B", 18, 32],
        "z_low_BND": ["B", 18, 32],
        "z_high_BND_next": ["B", 18, 32],
        "z_low_BND_next": ["B", 18, 32],
        "answer_BT": ["B", 16],
        "halt_margin_B": ["B"],
        "q_halt_B": ["B"],
        "logits_BTV": ["B", 16, 6],
    }


def test_the_same_model_gives_the_same_bytes() -> None:
    assert (
        segment_graph(small_model()).SerializeToString()
        == segment_graph(small_model()).SerializeToString()
    )
    assert (
        segment_graph(small_model()).SerializeToString()
        != segment_graph(small_model(seed=1)).SerializeToString()
    )


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
    model.graph.node[-1].attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT16))
    model.graph.node.append(
        helper.make_node("Add", ["surplus", "logits_BTV"], ["sum"], name="meeting")
    )


def quantise_from_three(model: onnx.ModelProto) -> None:
    stored = {"one/scale": np.array(1, np.float32), "three": np.array(3, np.int8)}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in stored.items()
    )
    add_node(model, "QuantizeLinear", "logits_BTV", "one/scale", "three")


def store_in_int8_too(model: onnx.ModelProto) -> None:
    matrix = numpy_helper.to_array(initializer(model, WEIGHT)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(matrix, f"{WEIGHT}/int8"))


FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "unknown operator": (
        lambda model: add_node(model, "Gelu", "logits_BTV"),
        "surplus is Gelu giving FLOAT",
    ),
    "unknown type": (
        lambda model: add_node(model, "Mul", "answer_BT", "answer_BT"),
        "surplus is Mul giving INT32",
    ),
    "weight twice": (copy_weight, "copy: expected None, found 192"),
    "weight missing": (
        lambda model: model.graph.initializer.remove(initializer(model, WEIGHT)),
        "not valid ONNX",
    ),
    "weight turned": (
        lambda model: add_node(model, "Transpose", WEIGHT),
        f"turns the weight {WEIGHT}",
    ),
    "newer opset": (
        lambda model: setattr(model.opset_import[0], "version", 21),
        "write IR 10 and opset 20",
    ),
    "newer IR": (lambda model: setattr(model, "ir_version", 11), "write IR 10 and opset 20"),
    "value from nowhere": (lambda model: add_node(model, "Sqrt", "nowhere"), "not valid ONNX"),
    "half meets float": (halve, "meeting mixes types|not valid ONNX"),
    "asymmetric": (quantise_from_three, "surplus has another zero point"),
    "int8 beside float": (store_in_int8_too, f"{WEIGHT}: expected 192, found 384"),
}


@pytest.mark.parametrize(("change", "saying"), FAULTS.values(), ids=FAULTS)
def test_a_graph_that_breaks_a_rule_is_refused(
    change: Callable[[onnx.ModelProto], object], saying: str
) -> None:
    model = segment_graph(small_model())
    stored = stored_sizes(model)
    check_graph(model, stored)
    change(model)
    with pytest.raises(match=saying):
        check_graph(model, stored)
