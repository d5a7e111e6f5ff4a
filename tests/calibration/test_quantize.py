"""The Q/DQ graph: what is quantized, what stays as it is, and that both forms are one function."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from bundle_tools import step_graph
from export_tools import random_inputs, relational_sizes, run, small_graph, small_model
from onnx import TensorProto, numpy_helper

from hrm_calibration.half import float32_nodes, half_graph
from hrm_calibration.int8 import for_cpus
from hrm_calibration.quantize import (
    call_sites,
    quantize,
    quantized_weight,
    unsigned,
    with_products,
)
from hrm_export.segment import segment_graph

GRAPH = small_graph()
SITES = call_sites(GRAPH)
WEIGHTS = {site.weight for site in SITES}


def near_calibrated(site: str) -> float:
    """A scale near the one that calibration gives: few values are clipped."""
    if "down" in site:
        return 0.15
    if "/qkv" in site:
        return 0.1
    return 0.035


SCALES = {site.name: near_calibrated(site.name) for site in SITES}
SIGNED = quantize(GRAPH, SCALES)
Nodes = dict[str, onnx.NodeProto]
Tensors = dict[str, TensorProto]


LONE = """
<ir_version: 10, opset_import: ["" : 20]>
lone (float[B,64] x) => (float[B,32] y) { y = MatMul (x, W) }
"""


def lone_product() -> onnx.ModelProto:
    """y = x W with 64 inputs and 32 outputs, every weight 1 or -1; those of output 0 are all 1."""
    weight_IO = np.random.default_rng(1).choice([-1.0, 1.0], (64, 32)).astype(np.float32)
    weight_IO[:, 0] = 1
    graph = step_graph(LONE, {"W": weight_IO})
    graph.graph.node[0].name = "product"
    return graph


def producers(graph: onnx.ModelProto) -> Nodes:
    makers = {}
    for node in graph.graph.node:
        for output in node.output:
            makers[output] = node
    return makers


def stored(graph: onnx.ModelProto) -> Tensors:
    return {tensor.name: tensor for tensor in graph.graph.initializer}


def test_every_linear_product_is_a_call_site_and_no_head_and_no_attention():
    parts = ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    expected = {}
    for part in parts:
        expected[f"low_level.layers.0.{part}.weight"] = 4
        expected[f"high_level.layers.0.{part}.weight"] = 2
    assert Counter(site.weight for site in SITES) == expected
    assert len(SCALES) == len(SITES)


def test_every_linear_product_and_nothing_else_reads_int8():
    makers = producers(SIGNED)
    tensors = stored(SIGNED)
    for site in SITES:
        activation_name, weight_name = makers[site.name].input
        activation = makers[activation_name]
        assert activation.op_type == "DequantizeLinear"
        assert makers[weight_name].op_type == "DequantizeLinear"
        quantize = makers[activation.input[0]]
        assert quantize.input[0] == site.tensor
        scale = numpy_helper.to_array(tensors[f"{site.name}/scale"])
        assert scale == np.float32(SCALES[site.name])
    onnx.checker.check_model(SIGNED, full_check=True)
    rounded = set()
    for node in SIGNED.graph.node:
        if node.op_type == "DequantizeLinear":
            rounded.add(node.output[0])
    readers = set()
    for node in SIGNED.graph.node:
        if not rounded.isdisjoint(node.input):
            readers.add(node.op_type)
    assert readers == {"MatMul"}


def test_a_matrix_is_stored_once_in_int8_only_with_a_scale_for_each_output_channel():
    tensors = stored(SIGNED)
    originals = stored(GRAPH)
    for weight in WEIGHTS:
        weight_IO = numpy_helper.to_array(originals[weight])
        scale_O = numpy_helper.to_array(tensors[f"{weight}/scale"])
        assert weight not in tensors
        assert len(tensors[f"{weight}/int8"].raw_data) == weight_IO.size
        assert np.allclose(scale_O * 127, np.abs(weight_IO).max(axis=0))


def test_a_matrix_comes_back_within_half_a_step_with_normal_scales():
    weight_IO = np.array([[1.27, 0.0, -3.0], [-0.005, 0.0, 1.0]], np.float32)
    matrix_IO, scale_O = quantized_weight(weight_IO, 127)
    assert matrix_IO.tolist() == [[127, 0, -127], [0, 0, 42]]
    error_IO = np.abs(matrix_IO * scale_O - weight_IO)
    assert error_IO.max() <= scale_O.max() / 2
    assert scale_O[1] == 1
    matrix = np.array([[1e-4, 1.0], [-7e-3, 0.5]], np.float32)
    rounded, scale_O = quantized_weight(matrix, 127)
    assert (scale_O >= np.finfo(np.float16).tiny).all()
    assert (np.abs(rounded * scale_O - matrix).max(axis=0) <= scale_O / 2 + 1e-7).all()


def assert_same(
    one: onnx.ModelProto, other: onnx.ModelProto, inputs: dict[str, np.ndarray]
) -> None:
    """Both graphs compute the same values to the last bit."""
    expected = run(other, inputs)
    for name, values in run(one, inputs).items():
        assert np.array_equal(values, expected[name]), name


def test_signed_and_unsigned_are_the_same_function_to_the_last_bit():
    signed = quantize(GRAPH, SCALES, weight_bits=7)
    inputs = random_inputs(small_model(), 5)
    inputs["fresh_B"][::3] = True
    inputs["z_high_BND"][0] *= 40  # far beyond every scale: clipping is the same too
    moved = unsigned(signed)
    assert_same(signed, moved, inputs)
    zeros = [tensor for name, tensor in stored(moved).items() if name.startswith("zero_")]
    assert [zero.data_type for zero in zeros] == [TensorProto.UINT8]


def test_the_unsigned_form_on_integer_kernels_adds_nothing_but_rounding():
    """With the largest operands there are: a kernel that saturates is off by a third here."""
    signed = quantize(lone_product(), {"product": 1.0}, weight_bits=7)
    x_BI = np.random.default_rng(0).choice([-127.0, 127.0], (16, 64)).astype(np.float32)
    x_BI[0] = 127
    exact = run(signed, {"x": x_BI})["y"]
    integer = run(unsigned(signed), {"x": x_BI}, optimized=True)["y"]
    tolerance = 1e-3 * np.abs(exact).max()
    assert np.allclose(exact, integer, rtol=1e-5, atol=tolerance)
    assert exact[0].max() == pytest.approx(64 * 127, rel=1e-5)


@pytest.mark.parametrize("puzzle", ["maze-8x8", "arc-7x7"])
def test_a_product_of_cells_is_the_convolution_that_it_replaces(puzzle: str):
    model = small_model(**relational_sizes(puzzle))
    graph = segment_graph(model)
    scales = {site.name: 0.05 for site in call_sites(graph)}
    signed = quantize(graph, scales, weight_bits=7)
    inputs = random_inputs(model, 3)
    products = with_products(signed)
    assert num_convolutions(products) < num_convolutions(signed)
    one = run(signed, inputs)
    other = run(products, inputs)
    for name, values in one.items():
        np.testing.assert_allclose(other[name], values, rtol=1e-4, atol=1e-4, err_msg=name)


def num_convolutions(graph: onnx.ModelProto) -> int:
    return sum(node.op_type == "Conv" for node in graph.graph.node)


def with_rounded_weights(graph: onnx.ModelProto, limit: int) -> onnx.ModelProto:
    rounded = onnx.ModelProto.FromString(graph.SerializeToString())
    weights = {site.weight for site in call_sites(graph)}
    for tensor in rounded.graph.initializer:
        if tensor.name in weights:
            weight, scale_O = quantized_weight(numpy_helper.to_array(tensor), limit)
            axes = (1, 2, 3) if weight.ndim == 4 else 0
            array = weight * np.expand_dims(scale_O, axes)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return rounded


@pytest.mark.parametrize("sizes", [{}, relational_sizes("maze-8x8")], ids=["matrices", "kernels"])
def test_weight_only_all_through_is_the_float_graph_with_rounded_weights(
    sizes: dict[str, Any],
):
    model = small_model(**sizes, low_layers=1)
    graph = segment_graph(model)
    weights = {site.weight for site in call_sites(graph)}
    inputs = random_inputs(model, 3)
    forms = {127: quantize(graph, {}, weight_only=weights), 64: for_cpus(graph, {}, weights)}
    for limit, form in forms.items():
        assert_same(form, with_rounded_weights(graph, limit), inputs)


def test_a_graph_that_is_quantized_already_is_rejected():
    with pytest.raises(match="give a step graph in float32"):
        call_sites(SIGNED)


GRID = small_model(**relational_sizes("maze-8x8"), low_layers=1)
GRID_GRAPH = segment_graph(GRID)
GRID_SITES = call_sites(GRID_GRAPH)
CLIPS_NOTHING = {site.name: 0.5 for site in GRID_SITES}
FORMS = {
    "fp32": GRID_GRAPH,
    "fp16": half_graph(GRID_GRAPH, float32_nodes(GRID_GRAPH, {})),
    "int8": for_cpus(GRID_GRAPH, CLIPS_NOTHING, []),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_every_batch(form: str):
    inputs = random_inputs(GRID, 8)
    together = run(FORMS[form], inputs, optimized=True)
    for size in (1, 3):
        few = {name: rows_B[:size] for name, rows_B in inputs.items()}
        for name, rows_B in run(FORMS[form], few, optimized=True).items():
            assert np.array_equal(rows_B, together[name][:size]), name


def test_the_form_for_cpus_is_the_signed_function_if_nothing_is_clipped():
    signed = quantize(GRID_GRAPH, CLIPS_NOTHING, weight_bits=7)
    assert_same(FORMS["int8"], signed, random_inputs(GRID, 3))


def test_every_convolution_for_cpus_runs_in_integers(tmp_path: Path):
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "fused.onnx")
    options.log_severity_level = 3
    text = FORMS["int8"].SerializeToString()
    ort.InferenceSession(text, options, providers=["CPUExecutionProvider"])
    fused = onnx.load(tmp_path / "fused.onnx")
    operators = Counter(node.op_type for node in fused.graph.node)
    assert operators["QLinearConv"] == operators["MatMulIntegerToFloat"] == len(GRID_SITES) / 2
    assert operators["QuantizeLinear"] == len(GRID_SITES) / 2
    assert not {"Conv", "FusedConv", "Transpose"} & set(operators)
