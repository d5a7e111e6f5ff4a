"""Find the first wrong node of a step graph by comparing it with another precision of the same function.

Rounding grows from node to node, so comparing running values would blame a late node. The candidate is therefore cut at
every value that both graphs know by the same name, and each piece runs on the reference's inputs. Nodes that quantise
or cast belong to the piece they serve. Shapes: T tokens, E puzzle-vector width; all with one row.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, load, numpy_helper, shape_inference

from hrm_calibration import quantise, rollouts
from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.engines.engine import CARRIES
from hrm_edge_runtime.parity.measures import relative_error
from hrm_export.onnx_graph import element_types
from hrm_export.segment import segment_graph
from hrm_model import checkpoint

OWN = "|own"
MAX_BYTES = 256 << 20
"""Of values kept at a time: a full-size graph at 900 tokens makes gigabytes of them."""
LIMITS = {"fp32": 1e-5, "fp16": 1e-2, "int8": 0.2}
"""Relative error of one piece given the reference's inputs, by the coarsest number it uses.

The shipped models stay below 2e-7 in float32, and in INT8 below 0.04 with min-max and 0.15 with clipping scales.
"""
STEP = 0.6
"""Half a step of rounding; the rest is for a scale that was itself rounded to float16."""

Values = dict[str, np.typing.NDArray[Any]]
Shape = tuple[int | str, ...]


def bisect(*, reference: Path, candidate: Path, tokens_T: Int32, puzzle_vector_E: Float32, segment: int) -> str:
    """The first node that diverges in that segment of that puzzle, on the reference's carry, in a sentence.

    `reference` is a graph, a checkpoint or a run's file latest or best.
    """
    if reference.suffix == ".onnx":
        graph = load(reference)
    else:
        graph = segment_graph(checkpoint.load(checkpoint.resolve(reference))[0])
    return bisect_graphs(graph, load(candidate), _inputs(graph, tokens_T, puzzle_vector_E, segment))


def bisect_graphs(reference: ModelProto, candidate: ModelProto, fed: Values) -> str:
    """A node diverges where it is off by more than its kind of number explains, or holds other weights.

    Where none does, the sentence names the one that comes nearest to its limit.
    """
    cut = Cut(reference, candidate)
    nearest, nearest_share = "", -1.0
    for pieces in cut.batches():
        expected = {**fed, **_run(cut.reference_part(pieces), fed)}
        found = _run(cut.candidate_part(pieces), expected)
        for piece in pieces:
            error = relative_error(found[f"{piece.value}{OWN}"], expected[piece.value])
            if expected[piece.value].dtype.kind != "f" and piece.precision != "fp32":
                error = 0.0  # whole numbers made from coarse floats: a tie may fall either way
            limit, wrong = LIMITS[piece.precision], cut.wrong_weights(piece)
            name, operator = piece.maker.name, piece.maker.op_type
            off = f"{name} ({operator}) is off by {error:.2g} of its norm where {limit:g} is allowed"
            if error > limit or wrong:
                return "; ".join((off, *wrong, *cut.coarse_scales(piece, expected)))
            if error / limit > nearest_share:
                nearest, nearest_share = "; ".join((off, *cut.coarse_scales(piece, expected))), error / limit
    if not nearest:
        raise ValueError("the two graphs have no value in common; compare precisions of one bundle.")
    return (
        "no node diverges: given the same carry the graphs agree, so look at what happens between segments, at the "
        f"puzzle's row, or at the engine itself (nearest to its limit: {nearest})"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Piece:
    """The nodes that make `value` out of `reads`; `maker` is the reference's node for it."""

    value: str
    maker: NodeProto
    precision: str
    nodes: tuple[NodeProto, ...]
    reads: tuple[str, ...]


class Cut:
    """Two graphs of one function; the candidate is cut at the values they share."""

    def __init__(self, reference: ModelProto, candidate: ModelProto) -> None:
        self.reference, self.candidate = reference, candidate
        self.types = element_types(candidate)
        self._shapes, shapes = _shapes_of(reference), _shapes_of(candidate)
        self._weights, self._stored = (
            {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
            for model in (reference, candidate)
        )
        theirs, self._makers = (
            {name: node for node in model.graph.node for name in node.output} for model in (reference, candidate)
        )
        self.shared = {
            name: theirs[name] for name in self._makers if name in theirs and shapes.get(name) == self._shapes[name]
        }

    def pieces(self) -> Iterator[Piece]:
        for value, node in self.shared.items():
            nodes, reads = self._back_from(value)
            kinds = {self.types.get(name) for one in nodes for name in (*one.input, *one.output)}
            precision = "fp16" if TensorProto.FLOAT16 in kinds else "fp32"
            if any(one.op_type == "QuantizeLinear" for one in nodes):
                precision = "int8"
            yield Piece(value=value, maker=node, precision=precision, nodes=nodes, reads=reads)

    def batches(self) -> Iterator[list[Piece]]:
        """The pieces in groups whose values fit into MAX_BYTES."""
        batch: list[Piece] = []
        for piece in self.pieces():
            names = {name for one in (*batch, piece) for name in (*one.reads, one.value)}
            shapes = [[size for size in self._shapes.get(name, ()) if isinstance(size, int)] for name in names]
            # the reference's and the candidate's, four bytes each
            if batch and 8 * sum(int(np.prod(shape)) for shape in shapes) > MAX_BYTES:
                yield batch
                batch = []
            batch.append(piece)
        yield batch

    def reference_part(self, pieces: list[Piece]) -> ModelProto:
        names = {name: None for piece in pieces for name in (*piece.reads, piece.value) if name in self.shared}
        graph = self.reference.graph
        return quantise.with_nodes(self.reference, graph.node, graph.initializer, outputs=names)

    def candidate_part(self, pieces: list[Piece]) -> ModelProto:
        """The candidate's pieces, each fed with what it reads; a piece's value leaves it under another name."""
        wanted = {node.output[0] for piece in pieces for node in piece.nodes}
        nodes = [copy.deepcopy(node) for node in self.candidate.graph.node if node.output[0] in wanted]
        for node in nodes:
            node.output[:] = [f"{name}{OWN}" if name in self.shared else name for name in node.output]
        reads = {name: None for piece in pieces for name in piece.reads}
        fed = [helper.make_tensor_value_info(name, self.types[name], None) for name in reads]
        own = [f"{piece.value}{OWN}" for piece in pieces]
        return quantise.with_nodes(self.candidate, nodes, self.candidate.graph.initializer, inputs=fed, outputs=own)

    def wrong_weights(self, piece: Piece) -> list[str]:
        """A sentence for each weight of a piece that is not the reference's, in the number it is kept in.

        A float32 weight is the same, a float16 one the same rounded, an INT8 one within half a step of its grid.
        """
        sentences: list[str] = []
        for name, ours, scale in self._kept_by(piece):
            theirs = self._weights[name]
            if ours.shape != theirs.shape:
                sentences.append(f"{name} has shape {ours.shape} where the reference has {theirs.shape}")
                continue
            with np.errstate(all="ignore"):
                is_same = (ours == theirs.astype(ours.dtype)) | (np.isnan(ours) & np.isnan(theirs))
                is_right = is_same if scale is None else np.abs(ours - theirs) <= STEP * np.abs(scale)
            if not is_right.all():
                first = tuple(np.argwhere(~is_right)[0].tolist())
                change = f"{float(theirs[first]):.6g} became {float(ours[first]):.6g}"
                count = f"{int((~is_right).sum())} of {is_right.size} values of {name}"
                sentences.append(f"{count} are not the reference's, first at {list(first)}: {change}")
        return sentences

    def coarse_scales(self, piece: Piece, values: Values) -> list[str]:
        """A sentence for each activation scale of a piece, with what it does to the reference's values."""
        sentences: list[str] = []
        for node in piece.nodes:
            if node.op_type == "QuantizeLinear" and node.input[0] in values:
                scale = float(self._stored[node.input[1]])
                size = np.abs(values[node.input[0]]) / (quantise.STEPS * scale)
                reach = f"reaches to {1 / size.max():.2g} times the largest value"
                sentences.append(f"the scale {scale:.3g} of its input {reach} and clips {(size > 1).mean():.1%} of all")
        return sentences

    def _kept_by(self, piece: Piece) -> Iterator[tuple[str, np.typing.NDArray[Any], np.typing.NDArray[Any] | None]]:
        """Each weight by its name in the reference, with the scale of its grid where it is an INT8 one."""
        for node in piece.nodes:
            for name in node.input:
                if name in self._weights and name in self._stored:
                    yield name, self._stored[name], None
            if node.op_type == "DequantizeLinear" and node.output[0] in self._weights and node.input[0] in self._stored:
                scale = self._stored[node.input[1]].astype(np.float64)
                yield node.output[0], self._stored[node.input[0]] * scale, scale

    def _back_from(self, value: str) -> tuple[tuple[NodeProto, ...], tuple[str, ...]]:
        """The nodes that lead to a value, and the values they begin with."""
        nodes: dict[str, NodeProto] = {}
        reads: dict[str, None] = {}
        waiting = [value]
        while waiting:
            node = self._makers[waiting.pop()]
            nodes[node.output[0]] = node
            for name in (name for name in node.input if name and name not in self._stored):
                if name in self.shared or name not in self._makers:
                    reads[name] = None
                else:
                    waiting.append(name)
        return tuple(nodes.values()), tuple(reads)


def _inputs(graph: ModelProto, tokens_T: Int32, puzzle_vector_E: Float32, segment: int) -> Values:
    """What the graph is given in that segment, run up to there by itself."""
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in graph.graph.input}
    fed: Values = {name: np.zeros((1, *shapes[name][1:]), np.float32) for name in CARRIES}
    fed |= {"tokens_BT": tokens_T[None], "puzzle_vector_BE": np.array(puzzle_vector_E)[None]}
    session = rollouts.session_of(graph)
    for step in range(1, segment):
        fed["fresh_B"] = np.array([step == 1])
        carry = session.run([f"{name}_next" for name in CARRIES], fed)
        fed |= cast(Values, dict(zip(CARRIES, carry, strict=True)))
    return {**fed, "fresh_B": np.array([segment == 1])}


def _run(graph: ModelProto, fed: Values) -> Values:
    session = rollouts.session_of(graph)
    names = [value.name for value in session.get_outputs()]
    with np.errstate(over="ignore"):
        types = {value.name: np.float16 if "float16" in value.type else None for value in session.get_inputs()}
        inputs = {name: np.asarray(fed[name], kind) for name, kind in types.items()}
    return cast(Values, dict(zip(names, session.run(names, inputs), strict=True)))


def _shapes_of(model: ModelProto) -> dict[str, Shape]:
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    return {
        value.name: tuple(size.dim_value or size.dim_param for size in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.value_info, *graph.output)
    }
