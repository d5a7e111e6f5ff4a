"""What a step graph may hold: the operators that hrm-export writes, with stored shapes.

A trial runs a graph on a few puzzles only. A graph of these operators does the same work for every
puzzle: none of them repeats, branches or takes a shape from data. So what the trial measures holds.

The file is read without the package onnx, which a board lacks. It is a protobuf message: fields of
a number and a value. A field may come several times, and protobuf merges them, so each one counts.
Numbers are those of onnx.proto.
"""

from mmap import ACCESS_READ, mmap
from pathlib import Path

from hrm_edge_runtime.contract.manifest import BundleError

OPERATORS = frozenset(
    {
        "Add",
        "And",
        "ArgMax",
        "Cast",
        "Concat",
        "Conv",
        "DequantizeLinear",
        "Div",
        "Gather",
        "Greater",
        "Identity",
        "MatMul",
        "Mul",
        "Not",
        "Pad",
        "Pow",
        "QuantizeLinear",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Relu",
        "Reshape",
        "Sigmoid",
        "Slice",
        "Softmax",
        "Split",
        "Sqrt",
        "Sub",
        "Transpose",
        "Unsqueeze",
        "Where",
    }
)
SHAPED_BY_INPUTS = frozenset(
    {
        "Pad",
        "ReduceMean",
        "ReduceMin",
        "ReduceSum",
        "Reshape",
        "Slice",
        "Split",
        "Unsqueeze",
    }
)
"""Operators whose inputs after the first give shapes, axes or offsets."""

# fields of ModelProto
GRAPH = 7
OPSET_IMPORT = 8
TRAINING_INFO = 20
FUNCTIONS = 25
# fields of OperatorSetIdProto
OPSET_DOMAIN = 1
# fields of GraphProto
NODE = 1
INITIALIZER = 5
SPARSE_INITIALIZER = 15
# fields of TensorProto
TENSOR_NAME = 8
# fields of NodeProto
INPUT = 1
OP_TYPE = 4
ATTRIBUTE = 5
NODE_DOMAIN = 7
# fields of AttributeProto
SUBGRAPHS = frozenset({6, 11})

VARINT = 0
FIXED64 = 1
BYTES = 2
FIXED32 = 5
MAX_VARINT_BITS = 64

Fields = dict[int, list[memoryview]]
"""The fields of bytes in a message: their contents (texts or other messages) by number."""


def check_operators(file: Path) -> None:
    """Raise BundleError unless a graph holds only what hrm-export writes."""
    with (
        file.open("rb") as stream,
        mmap(stream.fileno(), 0, access=ACCESS_READ) as content,
        memoryview(content) as message,
    ):
        problem = _problem_of(message)
    if problem:
        raise BundleError(f"{file} {problem}: export it again.")


def _problem_of(message: memoryview) -> str | None:
    try:
        return _problem_of_model(message)
    except ValueError:
        return "is not an ONNX graph"


def _problem_of_model(message: memoryview) -> str | None:
    model = _fields(message)
    if TRAINING_INFO in model or FUNCTIONS in model:
        return "holds functions, which hrm-export does not write"
    for opset in model.get(OPSET_IMPORT, ()):
        problem = _problem_of_domain(_fields(opset), OPSET_DOMAIN)
        if problem:
            return problem
    for graph in model.get(GRAPH, ()):
        problem = _problem_of_graph(_fields(graph))
        if problem:
            return problem
    return None


def _problem_of_graph(graph: Fields) -> str | None:
    if SPARSE_INITIALIZER in graph:
        return "holds sparse weights, which hrm-export does not write"
    stored: set[str] = set()
    for tensor in graph.get(INITIALIZER, ()):
        stored.update(_texts(_fields(tensor), TENSOR_NAME))
    for node in graph.get(NODE, ()):
        problem = _problem_of_node(_fields(node), stored)
        if problem:
            return problem
    return None


def _problem_of_node(node: Fields, stored: set[str]) -> str | None:
    problem = _problem_of_domain(node, NODE_DOMAIN)
    if problem:
        return problem
    for operator in _texts(node, OP_TYPE):
        if operator not in OPERATORS:
            return f"uses the operator {operator[:100]!r}, which hrm-export does not write"
        shapes = set(_texts(node, INPUT)[1:]) - {""}  # an omitted input has an empty name
        if operator in SHAPED_BY_INPUTS and not shapes <= stored:
            return f"computes a shape of {operator}, which hrm-export stores"
    for attribute in node.get(ATTRIBUTE, ()):
        if not SUBGRAPHS.isdisjoint(_fields(attribute)):
            return "holds a graph inside an operator, which hrm-export does not write"
    return None


def _problem_of_domain(fields: Fields, number: int) -> str | None:
    for domain in _texts(fields, number):
        if domain:
            return f"uses operators of {domain[:100]!r}, which hrm-export does not write"
    return None


def _texts(fields: Fields, number: int) -> list[str]:
    return [bytes(text).decode(errors="replace") for text in fields.get(number, ())]


def _fields(message: memoryview) -> Fields:
    """Read a message; raises ValueError if it is malformed."""
    fields: Fields = {}
    position = 0
    while position < len(message):
        key, position = _number(message, position)
        kind = key & 7
        if kind == BYTES:
            size, start = _number(message, position)
            position = start + size
            fields.setdefault(key >> 3, []).append(message[start:position])
        elif kind == VARINT:
            _, position = _number(message, position)
        elif kind == FIXED64:
            position += 8
        elif kind == FIXED32:
            position += 4
        else:
            raise ValueError(f"there is no field of kind {kind}")
        if position > len(message):
            raise ValueError("a field ends behind its message")
    return fields


def _number(message: memoryview, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position behind it."""
    value = 0
    for shift in range(0, MAX_VARINT_BITS, 7):
        if position == len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("a number does not end")
