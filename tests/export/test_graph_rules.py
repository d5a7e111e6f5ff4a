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
    model.graph.node.append(helper.make_node("Add", ["surplus", "logits_BTV"], ["sum"], name="meeting"))


def quantise_from_three(model: onnx.ModelProto) -> None:
    stored = {"one/scale": np.array(1, np.float32), "three": np.array(3, np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in stored.items())
    add_node(model, "QuantizeLinear", "logits_BTV", "one/scale", "three")


def store_in_int8_too(model: onnx.ModelProto) -> None:
    matrix = numpy_helper.to_array(initializer(model, WEIGHT)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(matrix, f"{WEIGHT}/int8"))


FAULTS: dict[str, tuple[Callable[[onnx.ModelProto], object], str]] = {
    "unknown operator": (lambda model: add_node(model, "Gelu", "logits_BTV"), "surplus is Gelu giving FLOAT"),
    "unknown type": (lambda model: add_node(model, "Mul", "answer_BT", "answer_BT"), "surplus is Mul giving INT32"),
    "weight twice": (copy_weight, "copy: expected None, found 192"),
    "weight missing": (
        lambda model: model.graph.initializer.remove(initializer(model, WEIGHT)),
        "not valid ONNX",
    ),
    "weight turned": (lambda model: add_node(model, "Transpose", WEIGHT), f"turns the weight {WEIGHT}"),
    "newer opset": (lambda model: setattr(model.opset_import[0], "version", 21), "write IR 10 and opset 20"),
    "newer IR": (lambda model: setattr(model, "ir_version", 11), "write IR 10 and opset 20"),
    "value from nowhere": (lambda model: add_node(model, "Sqrt", "nowhere"), "not valid ONNX"),
    "half meets float": (halve, "meeting mixes types|not valid ONNX"),
    "asymmetric": (quantise_from_three, "surplus has another zero point"),
    "int8 beside float": (store_in_int8_too, f"{WEIGHT}: expected 192, found 384"),
}


@pytest.mark.parametrize(("change", "saying"), FAULTS.values(), ids=FAULTS)
def test_a_graph_that_breaks_a_rule_is_refused(change: Callable[[onnx.ModelProto], object], saying: str) -> None:
    model = segment_graph(small_model())
    stored = stored_sizes(model)
    check_graph(model, stored)
    change(model)
    with pytest.raises(GraphError, match=saying):
        check_graph(model, stored)
