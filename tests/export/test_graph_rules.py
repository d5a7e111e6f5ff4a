"""A graph that breaks a rule is refused by name, so the rules cannot be lost unnoticed."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from export_tools import small_model
from onnx import helper, numpy_helper

from hrm_export.onnx_graph import GraphError, check_graph, stored_sizes
from hrm_export.segment import segment_graph

WEIGHT = "lm_head.weight"


def refused(change: Callable[[onnx.ModelProto], object], saying: str) -> None:
    model = segment_graph(small_model())
    stored = stored_sizes(model)
    check_graph(model, stored)
    change(model)
    with pytest.raises(GraphError, match=saying):
        check_graph(model, stored)


def add_node(model: onnx.ModelProto, operator: str, *inputs: str) -> None:
    model.graph.node.append(helper.make_node(operator, inputs, ["surplus"], name="surplus"))


def initializer(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == name)


def test_an_operator_that_tensorrt_10_3_may_not_read_is_refused() -> None:
    refused(lambda model: add_node(model, "Gelu", "logits_BTV"), "surplus is Gelu giving FLOAT")


def test_a_known_operator_with_an_unknown_type_is_refused() -> None:
    refused(lambda model: add_node(model, "Mul", "answer_BT", "answer_BT"), "surplus is Mul giving INT32")


def test_a_weight_stored_twice_is_refused() -> None:
    def copy_weight(model: onnx.ModelProto) -> None:
        copy = model.graph.initializer.add()
        copy.CopyFrom(initializer(model, WEIGHT))
        copy.name = "copy"

    refused(copy_weight, "copy: expected None, found 192")


def test_a_missing_weight_is_refused() -> None:
    refused(lambda model: model.graph.initializer.remove(initializer(model, WEIGHT)), "not valid ONNX")


def test_a_weight_turned_at_run_time_is_refused() -> None:
    refused(lambda model: add_node(model, "Transpose", WEIGHT), f"turns the weight {WEIGHT}")


def test_a_newer_opset_is_refused() -> None:
    refused(lambda model: setattr(model.opset_import[0], "version", 21), "write IR 10 and opset 20")


def test_a_newer_ir_is_refused() -> None:
    refused(lambda model: setattr(model, "ir_version", 11), "write IR 10 and opset 20")


def test_a_value_from_nowhere_is_refused() -> None:
    refused(lambda model: add_node(model, "Sqrt", "nowhere"), "not valid ONNX")


def test_a_half_that_meets_a_float_is_refused() -> None:
    def halve(model: onnx.ModelProto) -> None:
        add_node(model, "Cast", "logits_BTV")
        model.graph.node[-1].attribute.append(helper.make_attribute("to", onnx.TensorProto.FLOAT16))
        model.graph.node.append(helper.make_node("Add", ["surplus", "logits_BTV"], ["sum"], name="meeting"))

    refused(halve, "meeting mixes types|not valid ONNX")


def test_an_asymmetric_quantiser_is_refused() -> None:
    def quantise(model: onnx.ModelProto) -> None:
        stored = {"one/scale": np.array(1, np.float32), "three": np.array(3, np.int8)}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
        add_node(model, "QuantizeLinear", "logits_BTV", "one/scale", "three")

    refused(quantise, "surplus has another zero point")


def test_a_matrix_in_int8_beside_its_float_original_is_refused() -> None:
    def quantise(model: onnx.ModelProto) -> None:
        matrix = numpy_helper.to_array(initializer(model, WEIGHT)).astype(np.int8)
        model.graph.initializer.append(numpy_helper.from_array(matrix, f"{WEIGHT}/int8"))

    refused(quantise, f"{WEIGHT}: expected 192, found 384")
