"""A bundle's graphs hold what hrm-export writes; anything else is rejected when it is opened."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from bundle_tools import restate
from onnx import TensorProto, helper

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.manifest import BundleError
from hrm_edge_runtime.contract.operators import check_operators
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES

Change = Callable[[onnx.ModelProto], object]


def test_an_interruption_is_not_replaced(monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hrm_edge_runtime.contract.operators._check_node", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_operators(next(SHIPPED_BUNDLES.glob("*.bundle/*.onnx")))


def body() -> onnx.GraphProto:
    made = helper.make_node("Identity", ["answer_BT"], ["inner"])
    out = helper.make_tensor_value_info("inner", TensorProto.INT32, None)
    return helper.make_graph([made], "body", [], [out])


def with_node(operator: str, *inputs: str, **attributes: object) -> Change:
    node = helper.make_node(operator, inputs, ["more"], **attributes)
    return lambda model: model.graph.node.append(node)


def with_function(model: onnx.ModelProto) -> None:
    opset = helper.make_opsetid("", 20)
    nodes = [helper.make_node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function("own", "F", ["a"], ["b"], nodes, [opset]))


def with_sparse_weights(model: onnx.ModelProto) -> None:
    model.graph.sparse_initializer.add().dims.append(3)


def with_a_second_operator(model: onnx.ModelProto) -> bytes:
    """Two fields for one text: the last one counts, so both must be on the list."""
    node = model.graph.node[0]
    second = onnx.NodeProto(op_type="Scan").SerializeToString()
    both = node.SerializeToString() + second + onnx.NodeProto(op_type="Add").SerializeToString()
    rest = onnx.GraphProto()
    rest.CopyFrom(model.graph)
    del rest.node[:]
    graph = rest.SerializeToString() + b"\x0a" + varint(len(both)) + both
    model.ClearField("graph")
    return model.SerializeToString() + b"\x3a" + varint(len(graph)) + graph


def varint(number: int) -> bytes:
    content = bytearray()
    while number > 0x7F:
        content.append(number & 0x7F | 0x80)
        number >>= 7
    content.append(number)
    return bytes(content)


OWN_DOMAIN = helper.make_opsetid("com.microsoft", 1)
CHANGES = {
    "loop": (with_node("Loop", "", "", body=body()), "the operator 'Loop'"),
    "if": (with_node("If", "fresh_B", then_branch=body(), else_branch=body()), "operator 'If'"),
    "scan": (with_node("Scan", "x", body=body(), num_scan_inputs=1), "the operator 'Scan'"),
    "other operator": (with_node("RandomNormal", shape=[1 << 30]), "operator 'RandomNormal'"),
    "domain": (with_node("Add", "a", "b", domain="com.microsoft"), "of 'com.microsoft'"),
    "named domain": (with_node("Add", "a", "b", domain="ai.onnx.ml"), "of 'ai.onnx.ml'"),
    "imported domain": (lambda model: model.opset_import.append(OWN_DOMAIN), "'com.microsoft'"),
    "subgraph": (with_node("Add", "a", "b", inner=body()), "a graph inside an operator"),
    "subgraphs": (with_node("Add", "a", "b", inner=[body()]), "a graph inside an operator"),
    "function": (with_function, "holds functions"),
    "sparse weights": (with_sparse_weights, "sparse weights"),
    "shape from data": (with_node("Reshape", "z_high_BND", "tokens_BT"), "a shape of Reshape"),
    "padding from data": (with_node("Pad", "z_high_BND", "tokens_BT"), "a shape of Pad"),
    "slice from data": (with_node("Slice", "a", "tokens_BT", "tokens_BT"), "a shape of Slice"),
    "two fields": (with_a_second_operator, "the operator 'Scan'"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_other_graphs_are_rejected_by_name(copied: Path, name: str):
    change, problem = CHANGES[name]
    graph = copied / "step.fp32.onnx"
    model = onnx.load(graph)
    forged = change(model)
    graph.write_bytes(forged if isinstance(forged, bytes) else model.SerializeToString())
    restate(copied)
    with pytest.raises(BundleError, match=problem):
        Bundle.open(copied)


@pytest.mark.parametrize(
    "content", [b"no graph", b"\x3a\x7f", b"\x08", b"\x08" + b"\xff" * 11, b"\x3b", b"\x3d\x00"]
)
def test_bytes_that_are_no_message_are_rejected(tmp_path: Path, content: bytes):
    file = tmp_path / "step.onnx"
    file.write_bytes(content)
    with pytest.raises(BundleError, match="is not an ONNX graph"):
        check_operators(file)
