"""Float16 with some nodes in float32: the same function within rounding, in half the bytes."""

import numpy as np
import onnx
import pytest
from export_tools import random_inputs, random_questions, small_model
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator

from hrm_calibration.quantize import call_sites, quantize
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_export.contents import served_graph
from hrm_export.half import float32_nodes, half_graph, record_ranges
from hrm_export.onnx_graph import check_graph, element_types, stored_sizes
from hrm_export.segment import segment_graph
from hrm_model.hrm import HRM
from hrm_puzzles import registry

NORMS = {"square", "mean", "steady", "rms", "norm"}
LOGIT_TOLERANCE = 0.1  # a hundred roundings to 11 bits of values near 4, in each of 16 segments


def large_model() -> HRM:
    """Return a model whose second normalization squares values beyond float16."""
    model = small_model()
    for level in (model.low_level, model.high_level):
        for block in level.blocks:
            block.mlp.down_proj.weight.data *= 4000
    return model


def ranges_of(model: HRM) -> dict[str, float]:
    policy = HaltingPolicy(kind="fixed", max_segments=4)
    served = served_graph(model, registry.get("sudoku-4x4"), policy)
    return record_ranges(served, random_questions(model, 6))


def half_of(model: HRM) -> onnx.ModelProto:
    graph = segment_graph(model)
    return half_graph(graph, float32_nodes(graph, ranges_of(model)))


def computed_in_float(model: onnx.ModelProto) -> set[str]:
    types = element_types(model)
    names: set[str] = set()
    for node in model.graph.node:
        if node.op_type != "Cast" and types[node.output[0]] == TensorProto.FLOAT:
            names.add(node.name)
    return names


def norms_of(graph: onnx.ModelProto) -> set[str]:
    return {node.name for node in graph.graph.node if node.name.rpartition("/")[2] in NORMS}


def test_it_takes_and_gives_the_same_and_stores_every_weight_once_in_half_the_bytes() -> None:
    graph = segment_graph(small_model(hidden_size=64, high_layers=2))
    half = half_graph(graph, ())
    check_graph(half, stored_sizes(graph))
    num_values = sum(stored_sizes(graph).values())
    num_saved = len(graph.SerializeToString()) - len(half.SerializeToString())
    assert num_saved == pytest.approx(2 * num_values, rel=0.05)
    assert computed_in_float(half) == set()
    assert list(half.graph.input) == list(graph.graph.input)
    assert list(half.graph.output) == list(graph.graph.output)


def test_within_the_range_of_float16_every_normalization_and_nothing_else_stays_float32() -> None:
    model = small_model()
    graph = segment_graph(model)
    assert norms_of(graph)
    assert float32_nodes(graph, ranges_of(model)) == norms_of(graph)


def logits_of(graph: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    with np.errstate(over="ignore"):
        (logits_BTV,) = ReferenceEvaluator(graph).run(["logits_BTV"], inputs)
    assert isinstance(logits_BTV, np.ndarray)
    return logits_BTV


def test_a_float32_node_keeps_finite_what_would_overflow() -> None:
    model = large_model()
    graph = segment_graph(model)
    inputs = random_inputs(model, 2)
    truth = logits_of(graph, inputs)
    spoilt = logits_of(half_graph(graph, ()), inputs)
    kept = logits_of(half_of(model), inputs)
    assert np.abs(spoilt - truth).max() > 5 * LOGIT_TOLERANCE
    # sums in the hundreds are rounded in float16 beside it
    assert np.abs(kept - truth).max() <= 2 * LOGIT_TOLERANCE


def test_a_quantized_graph_becomes_half_around_its_integers() -> None:
    graph = segment_graph(small_model())
    signed = quantize(graph, {site.name: 0.05 for site in call_sites(graph)})
    half = half_graph(signed, float32_nodes(signed, {}))
    check_graph(half, stored_sizes(graph))
    assert computed_in_float(half) == norms_of(signed)


def test_a_scale_too_small_for_half_stays_float() -> None:
    graph = segment_graph(small_model())
    scales = {site.name: 0.05 for site in call_sites(graph)}
    first = next(iter(scales))
    scales[first] = 1e-6
    signed = quantize(graph, scales)
    kept = float32_nodes(signed, {}) - norms_of(signed)
    assert kept == {f"{first}/quantize", f"{first}/dequantize"}
