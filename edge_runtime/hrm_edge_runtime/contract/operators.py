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

# types of a field
VARINT = 0
BYTES = 2
SIZE_OF = {1: 8, 5: 4}  # bytes of a number of fixed size
MALFORMED = "is not an ONNX graph"
NOT_WRITTEN = ", which hrm-export does not write"

Message = dict[int, list[memoryview]]
"""The fields of bytes in a message: their contents (texts or other messages) by number."""


def check_operators(file: Path) -> None:
    """Raise BundleError unless a graph holds only what hrm-export writes, and all its weights.

    ONNX Runtime 1.23 follows the name of a file of weights out of the bundle (1.31 does not).
    Protobuf keeps a string in one piece, so a graph without the key's bytes names no file.
    """
    problem = _problem_of(file)
    if problem:
        raise BundleError(f"{file} {problem}: export it again.")


def _problem_of(file: Path) -> str | None:
    with file.open("rb") as stream:
        # not closed: closing fails while an interruption holds a part of it
        content = mmap(stream.fileno(), 0, access=ACCESS_READ)
    if content.find(b"location") >= 0:
        return "keeps weights in another file"
    try:
        model = _fields(memoryview(content))
        if TRAINING_INFO in model or FUNCTIONS in model:
            return f"holds functions{NOT_WRITTEN}"
        for opset in model.get(OPSET_IMPORT, ()):
            _check_domain(_fields(opset), OPSET_DOMAIN)
        for graph in model.get(GRAPH, ()):
            _check_graph(_fields(graph))
    except ValueError as error:
        return str(error)  # the error itself would keep the file mapped
    return None


def _check_graph(graph: Message) -> None:
    if SPARSE_INITIALIZER in graph:
        raise ValueError(f"holds sparse weights{NOT_WRITTEN}")
    stored: set[str] = set()
    for tensor in graph.get(INITIALIZER, ()):
        stored.update(_texts(_fields(tensor), TENSOR_NAME))
    for node in graph.get(NODE, ()):
        _check_node(_fields(node), stored)


def _check_node(node: Message, stored: set[str]) -> None:
    _check_domain(node, NODE_DOMAIN)
    for operator in _texts(node, OP_TYPE):
        if operator not in OPERATORS:
            raise ValueError(f"uses the operator {operator[:100]!r}{NOT_WRITTEN}")
        shapes = set(_texts(node, INPUT)[1:]) - {""}  # an omitted input has an empty name
        if operator in SHAPED_BY_INPUTS and not shapes <= stored:
            raise ValueError(f"computes a shape of {operator}, which hrm-export stores")
    for attribute in node.get(ATTRIBUTE, ()):
        if not SUBGRAPHS.isdisjoint(_fields(attribute)):
            raise ValueError(f"holds a graph inside an operator{NOT_WRITTEN}")


def _check_domain(fields: Message, number: int) -> None:
    for domain in _texts(fields, number):
        if domain:
            raise ValueError(f"uses operators of {domain[:100]!r}{NOT_WRITTEN}")


def _texts(fields: Message, number: int) -> list[str]:
    return [bytes(text).decode(errors="replace") for text in fields.get(number, ())]


def _fields(message: memoryview) -> Message:
    """Read a message; raises ValueError if it is malformed."""
    fields: Message = {}
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
        elif kind in SIZE_OF:
            position += SIZE_OF[kind]
        else:
            raise ValueError(MALFORMED)
        if position > len(message):
            raise ValueError(MALFORMED)
    return fields


def _number(message: memoryview, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and the position behind it."""
    value = 0
    for shift in range(0, 64, 7):
        if position == len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError(MALFORMED)
