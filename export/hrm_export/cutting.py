"""A graph cut into pieces at every value that another graph knows by the same name.

A piece makes one such value from others of them, so that it can be run on values from elsewhere. The nodes of a float
graph are a piece each; where a graph quantises or casts on the way, these nodes belong to the piece they serve.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper, shape_inference

from hrm_export.onnx_graph import element_types, with_nodes

OWN = "|own"
MAX_BYTES = 256 << 20
"""Of values kept at a time: a full-size graph at 900 tokens makes gigabytes of them."""
LIMITS = {"fp32": 1e-5, "fp16": 1e-2, "int8": 0.2}
"""Relative error of one piece given the reference's inputs, by the coarsest number it uses.

Honest graphs of the shipped models stay below 2e-7 in float32, and in INT8 below 0.04 with min-max scales and 0.15 with
scales that clip.
"""

Shape = tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """The nodes that make `value` out of `reads`; `name` and `operator` are those of the reference's node for it."""

    value: str
    name: str
    operator: str
    precision: str
    nodes: tuple[onnx.NodeProto, ...]
    reads: tuple[str, ...]

    @property
    def limit(self) -> float:
        return LIMITS[self.precision]


class Cut:
    """Two graphs of one function; the candidate is cut at the values they share."""

    def __init__(self, reference: onnx.ModelProto, candidate: onnx.ModelProto) -> None:
        self.reference, self.candidate = reference, candidate
        self.types = element_types(candidate)
        self._shapes = _shapes_of(reference)
        self._makers = {name: node for node in candidate.graph.node for name in node.output}
        self._inputs = {value.name for value in candidate.graph.input}
        self._stored = {tensor.name for tensor in candidate.graph.initializer}
        theirs = {name: node for node in reference.graph.node for name in node.output}
        shapes = _shapes_of(candidate)
        self.shared = {
            name: theirs[name] for name in self._makers if name in theirs and shapes.get(name) == self._shapes[name]
        }

    def pieces(self) -> Iterator[Piece]:
        """Every piece, in the order the candidate runs them."""
        for value, node in self.shared.items():
            nodes, reads = self._back_from(value)
            yield Piece(
                value=value,
                name=node.name,
                operator=node.op_type,
                precision=self._precision(nodes),
                nodes=nodes,
                reads=reads,
            )

    def batches(self) -> Iterator[list[Piece]]:
        """The pieces in groups whose values fit into MAX_BYTES."""
        batch: list[Piece] = []
        for piece in self.pieces():
            if batch and self._size_bytes([*batch, piece]) > MAX_BYTES:
                yield batch
                batch = []
            batch.append(piece)
        yield batch

    def reference_part(self, pieces: Iterable[Piece]) -> onnx.ModelProto:
        """The reference, giving out all that the pieces make and read."""
        names = {name: None for piece in pieces for name in (*piece.reads, piece.value) if name in self.shared}
        types = element_types(self.reference)
        return _with_ends(self.reference, self.reference.graph.input, _values(names, types))

    def candidate_part(self, pieces: Iterable[Piece]) -> onnx.ModelProto:
        """The candidate's pieces, each fed with what it reads; a piece's value leaves it under another name."""
        pieces = list(pieces)
        wanted = {node.output[0] for piece in pieces for node in piece.nodes}
        nodes = [self._loose(node) for node in self.candidate.graph.node if node.output[0] in wanted]
        part = with_nodes(self.candidate, nodes, self.candidate.graph.initializer)
        fed = _values({name: None for piece in pieces for name in piece.reads}, self.types)
        own = {f"{piece.value}{OWN}": self.types[piece.value] for piece in pieces}
        return _with_ends(part, fed, _values(own, own))

    def _loose(self, node: onnx.NodeProto) -> onnx.NodeProto:
        loose = onnx.NodeProto()
        loose.CopyFrom(node)
        loose.output[:] = [f"{name}{OWN}" if name in self.shared else name for name in node.output]
        return loose

    def _back_from(self, value: str) -> tuple[tuple[onnx.NodeProto, ...], tuple[str, ...]]:
        """The nodes that lead to a value, and the values they begin with."""
        nodes: dict[str, onnx.NodeProto] = {}
        reads: dict[str, None] = {}
        waiting = [value]
        while waiting:
            node = self._makers[waiting.pop()]
            nodes[node.output[0]] = node
            for name in (name for name in node.input if name and name not in self._stored):
                if name in self.shared or name in self._inputs:
                    reads[name] = None
                else:
                    waiting.append(name)
        return tuple(nodes.values()), tuple(reads)

    def _precision(self, nodes: Iterable[onnx.NodeProto]) -> str:
        nodes = list(nodes)
        if any(node.op_type == "QuantizeLinear" for node in nodes):
            return "int8"
        kinds = {self.types.get(name) for node in nodes for name in (*node.input, *node.output)}
        return "fp16" if TensorProto.FLOAT16 in kinds else "fp32"

    def _size_bytes(self, pieces: Iterable[Piece]) -> int:
        names = {name for piece in pieces for name in (*piece.reads, piece.value)}
        sizes = [[size for size in self._shapes.get(name, ()) if isinstance(size, int)] for name in names]
        return 8 * sum(math.prod(size) for size in sizes)  # the reference's and the candidate's, four bytes each


def _shapes_of(model: onnx.ModelProto) -> dict[str, Shape]:
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    return {
        value.name: tuple(size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def _values(names: Iterable[str], types: Mapping[str, int]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, types[name], None) for name in names]


def _with_ends(
    model: onnx.ModelProto, inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for field, values in (("input", inputs), ("output", outputs)):
        kept = list(values)
        changed.graph.ClearField(field)
        getattr(changed.graph, field).extend(kept)
    changed.graph.ClearField("value_info")
    return changed
