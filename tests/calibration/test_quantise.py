"""The Q/DQ graph: what is quantised, what is left alone, and that both forms are one function."""

from collections import Counter

import numpy as np
import onnx
import pytest
from calibration_tools import random_inputs, run, small_graph
from onnx import TensorProto, helper, numpy_helper

from hrm_calibration.quantise import call_sites, quantise, quantised_matrix, unsigned

GRAPH = small_graph()
SITES = call_sites(GRAPH)
SCALES = {site.name: (0.15 if "down" in site.name else 0.1 if "/qkv" in site.name else 0.035) for site in SITES}
"""Near what calibration gives for this graph: few values are clipped."""
SIGNED = quantise(GRAPH, SCALES)


def lone_product() -> onnx.ModelProto:
    """y = x W with 64 inputs and 32 outputs, every weight 1 or -1; those of output 0 are all 1."""
    weight_IO = np.random.default_rng(1).choice([-1.0, 1.0], (64, 32)).astype(np.float32)
    weight_IO[:, 0] = 1
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", size]) for name, size in (("x", 64), ("y", 32))
    ]
    node = helper.make_node("MatMul", ["x", "W"], ["y"], name="product")
    graph = helper.make_graph([node], "lone", values[:1], values[1:], [numpy_helper.from_array(weight_IO, "W")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def producers(graph: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    return {output: node for node in graph.graph.node for output in node.output}


def stored(graph: onnx.ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in graph.graph.initializer}


def test_every_linear_product_is_a_call_site_and_no_head_and_no_attention() -> None:
    assert Counter(site.weight for site in SITES) == {
        f"{level}_level.layers.0.{part}.weight": calls
        for level, calls in (("low", 4), ("high", 2))
        for part in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj")
    }
    assert len({site.name for site in SITES}) == len(SITES)


def test_both_inputs_of_every_linear_product_come_from_int8() -> None:
    made_by = producers(SIGNED)
    for site in SITES:
        node = made_by[site.name]
        assert [made_by[name].op_type for name in node.input] == ["DequantizeLinear"] * 2
        assert made_by[made_by[node.input[0]].input[0]].input[0] == site.tensor
    onnx.checker.check_model(SIGNED, full_check=True)


def test_nothing_but_linear_products_reads_a_quantised_tensor() -> None:
    """Residual sums too read the tensor from before the rounding."""
    rounded = {node.output[0] for node in SIGNED.graph.node if node.op_type == "DequantizeLinear"}
    readers = {node.op_type for node in SIGNED.graph.node if rounded & set(node.input)}
    assert readers == {"MatMul"}


def test_nothing_is_quantised_that_no_product_reads() -> None:
    counts = Counter(node.op_type for node in SIGNED.graph.node)
    num_weights = len({site.weight for site in SITES})
    assert (counts["QuantizeLinear"], counts["DequantizeLinear"]) == (len(SITES), len(SITES) + num_weights)


def test_a_matrix_of_several_call_sites_is_stored_once_and_in_int8_only() -> None:
    tensors = stored(SIGNED)
    for weight in {site.weight for site in SITES}:
        assert weight not in tensors
        assert tensors[f"{weight}/int8"].data_type == TensorProto.INT8
    small = sum(len(tensors[f"{weight}/int8"].raw_data) for weight in {site.weight for site in SITES})
    assert small == sum(np.prod(stored(GRAPH)[weight].dims) for weight in {site.weight for site in SITES})


def test_each_call_site_has_its_own_scale_and_each_output_channel_its_own() -> None:
    tensors = stored(SIGNED)
    for site in SITES:
        assert numpy_helper.to_array(tensors[f"{site.name}/scale"]) == np.float32(SCALES[site.name])
    weight = numpy_helper.to_array(stored(GRAPH)[SITES[0].weight])
    scale_O = numpy_helper.to_array(tensors[f"{SITES[0].weight}/scale"])
    assert np.allclose(scale_O * 127, np.abs(weight).max(axis=0))


def test_a_matrix_comes_back_within_half_a_step_and_keeps_zeros() -> None:
    weight_IO = np.array([[1.27, 0.0, -3.0], [-0.005, 0.0, 1.0]], np.float32)
    matrix_IO, scale_O = quantised_matrix(weight_IO, 127)
    assert matrix_IO.tolist() == [[127, 0, -127], [0, 0, 42]]
    assert np.abs(matrix_IO * scale_O - weight_IO).max() <= scale_O.max() / 2
    assert scale_O[1] == 1


def test_signed_and_unsigned_are_the_same_function_to_the_last_bit() -> None:
    signed, inputs = quantise(GRAPH, SCALES, weight_bits=7), random_inputs(5)
    inputs["z_high_BND"][0] *= 40  # far beyond every scale: clipping is the same too
    one, other = run(signed, inputs), run(unsigned(signed), inputs)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_unsigned_form_on_integer_kernels_adds_nothing_but_rounding() -> None:
    """On one product with the largest operands there are: a kernel that saturates is off by a third here."""
    signed = quantise(lone_product(), {"product": 1.0}, weight_bits=7)
    x_BI = np.random.default_rng(0).choice([-127.0, 127.0], (16, 64)).astype(np.float32)
    x_BI[0] = 127
    exact, integer = (run(form, {"x": x_BI}, optimised=form is not signed)["y"] for form in (signed, unsigned(signed)))
    assert np.allclose(exact, integer, rtol=1e-5, atol=1e-3 * np.abs(exact).max())
    assert exact[0].max() == pytest.approx(64 * 127, rel=1e-5)


def test_the_unsigned_form_has_no_signed_activation_and_the_same_scales() -> None:
    signed = quantise(GRAPH, SCALES, weight_bits=7)
    form = unsigned(signed)
    zeros = [tensor for tensor in form.graph.initializer if tensor.name.startswith("zero_")]
    assert [(zero.data_type, int(numpy_helper.to_array(zero))) for zero in zeros] == [(TensorProto.UINT8, 128)]
    scales = [{t.name: t for t in graph.graph.initializer if "/scale" in t.name} for graph in (form, signed)]
    assert scales[0] == scales[1]


def test_weights_of_other_widths_are_refused() -> None:
    with pytest.raises(match="choose 7 or 8"):
        quantise(GRAPH, SCALES, weight_bits=4)


def test_the_quantised_graph_stays_near_the_float_graph() -> None:
    inputs = random_inputs(6)
    exact, rounded = run(GRAPH, inputs), run(SIGNED, inputs)
    drift = np.linalg.norm(exact["z_high_BND_next"] - rounded["z_high_BND_next"])
    assert 0 < drift < 0.25 * np.linalg.norm(exact["z_high_BND_next"])


def test_a_weight_only_matrix_is_stored_in_int8_and_reads_what_it_is_given() -> None:
    weight = "low_level.layers.0.mlp.down_proj.weight"
    graph = quantise(GRAPH, SCALES, weight_only=[weight])
    assert stored(graph)[f"{weight}/int8"] == stored(SIGNED)[f"{weight}/int8"]
    made_by = producers(graph)
    for site in SITES:
        if site.weight == weight:
            assert list(made_by[site.name].input) == [site.tensor, weight]
    assert Counter(node.op_type for node in graph.graph.node)["QuantizeLinear"] == len(SITES) - 4
    onnx.checker.check_model(graph, full_check=True)


def test_weight_only_all_through_is_the_float_graph_with_rounded_weights() -> None:
    weights = {site.weight for site in SITES}
    rounded = onnx.ModelProto.FromString(GRAPH.SerializeToString())
    for tensor in rounded.graph.initializer:
        if tensor.name in weights:
            matrix_IO, scale_O = quantised_matrix(numpy_helper.to_array(tensor), 127)
            tensor.CopyFrom(numpy_helper.from_array(matrix_IO * scale_O, tensor.name))
    inputs = random_inputs(3)
    ours, plain = run(unsigned(quantise(GRAPH, {}, weight_only=weights), weights), inputs), run(rounded, inputs)
    assert all(np.array_equal(ours[name], plain[name]) for name in plain)


@pytest.mark.parametrize(
    ("scales", "weight_only", "saying"),
    [
        ({**SCALES, SITES[3].name: 0.0}, [], f"{SITES[3].name} has no scale"),
        ({}, [], f"{SITES[0].name} has no scale"),
        (SCALES, ["lm_head.weight"], "lm_head.weight is not a matrix of a linear layer"),
    ],
)
def test_ranges_that_do_not_fit_the_graph_are_refused(
    scales: dict[str, float], weight_only: list[str], saying: str
) -> None:
    with pytest.raises(match=saying):
        quantise(GRAPH, scales, weight_only=weight_only)


def test_a_graph_that_is_quantised_already_is_refused() -> None:
    with pytest.raises(match="give a step graph in float32"):
        call_sites(SIGNED)
