"""Which node of a step graph is wrong? Two graphs compared node by node, each node on the reference's own inputs.

Rounding grows from node to node, so comparing running values would name whatever comes late. Here the candidate is cut
at every value both graphs know by the same name: each piece gets the reference's value and gives its own, so an error
shows where it is made and nowhere else. Both run on ONNX Runtime's CPU kernels.
Shapes: T tokens, E puzzle-vector width; all with one row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import CARRIES, Float32, Int32
from hrm_edge_runtime.parity.desktop import Bisection, NodeError
from hrm_export.cutting import OWN, Cut, Piece
from hrm_export.segment import segment_graph
from hrm_export.stored import StoredWeights
from hrm_model import checkpoint

Values = dict[str, NDArray[Any]]


def bisect(*, reference: Path, candidate: Path, tokens_T: Int32, puzzle_vector_E: Float32, segment: int) -> Bisection:
    """Compares in that segment of that puzzle, on the reference's carry."""
    theirs, ours = _graph(reference), onnx.load(candidate)
    return bisect_graphs(theirs, ours, _inputs(theirs, tokens_T, puzzle_vector_E, segment))


def bisect_graphs(reference: onnx.ModelProto, candidate: onnx.ModelProto, fed: Values) -> Bisection:
    """A piece diverges where it is off by more than its kind of number explains, or holds other weights."""
    cut, weights = Cut(reference, candidate), StoredWeights(reference, candidate)
    nearest: NodeError | None = None
    for pieces in cut.batches():
        expected = {**fed, **_run(cut.reference_part(pieces), fed)}
        found = _run(cut.candidate_part(pieces), expected)
        for piece in pieces:
            error = _error(piece, found[f"{piece.value}{OWN}"], expected[piece.value])
            wrong = weights.wrong(piece)
            if error > piece.limit or wrong:
                first = _node_error(piece, error, [*wrong, *weights.coarse(piece, expected)])
                return Bisection(first=first, nearest=first)
            if nearest is None or error / piece.limit > nearest.error / nearest.limit:
                nearest = _node_error(piece, error, weights.coarse(piece, expected))
    if nearest is None:
        raise ValueError("the two graphs have no value in common; compare precisions of one bundle.")
    return Bisection(first=None, nearest=nearest)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Norm of the difference relative to the expected norm; infinite where anything is not finite."""
    with np.errstate(all="ignore"):
        wide, norm = expected.astype(np.float64), float(np.linalg.norm(expected.astype(np.float64)))
        apart = np.linalg.norm(found.astype(np.float64) - wide)
        error = float(apart / max(norm, np.finfo(np.float64).tiny))
    return error if np.isfinite(error) else float("inf")


def _error(piece: Piece, found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The relative error; none for whole numbers behind coarse floats, where a tie may fall either way."""
    if expected.dtype.kind != "f" and piece.precision != "fp32":
        return 0.0
    return relative_error(found, expected)


def _node_error(piece: Piece, error: float, reasons: list[str]) -> NodeError:
    return NodeError(node=piece.name, operator=piece.operator, error=error, limit=piece.limit, reasons=tuple(reasons))


def _graph(path: Path) -> onnx.ModelProto:
    path = checkpoint.resolve(path) if path.suffix != ".onnx" else path
    return segment_graph(checkpoint.load(path)[0]) if path.is_dir() else onnx.load(path)


def _inputs(graph: onnx.ModelProto, tokens_T: Int32, puzzle_vector_E: Float32, segment: int) -> Values:
    """What the graph is given in that segment, run up to there by itself."""
    shapes = {value.name: [size.dim_value for size in value.type.tensor_type.shape.dim] for value in graph.graph.input}
    fed: Values = {name: np.zeros((1, *shapes[name][1:]), np.float32) for name in CARRIES}
    fed |= {"tokens_BT": tokens_T[None], "puzzle_vector_BE": np.array(puzzle_vector_E)[None]}
    session = _session(graph)
    for step in range(1, segment):
        fed["fresh_B"] = np.array([step == 1])
        carry = session.run([f"{name}_next" for name in CARRIES], fed)
        fed |= cast(Values, dict(zip(CARRIES, carry, strict=True)))
    return {**fed, "fresh_B": np.array([segment == 1])}


def _run(graph: onnx.ModelProto, fed: Values) -> Values:
    session = _session(graph)
    names = [value.name for value in session.get_outputs()]
    kinds = {value.name: value.type for value in session.get_inputs()}
    outputs = session.run(names, {name: _as(kind, fed[name]) for name, kind in kinds.items()})
    return cast(Values, dict(zip(names, outputs, strict=True)))


def _session(graph: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


def _as(kind: str, array: NDArray[Any]) -> NDArray[Any]:
    if kind != "tensor(float16)":
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16)
