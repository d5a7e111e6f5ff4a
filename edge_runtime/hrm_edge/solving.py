"""Solving in this process, and every other name that `hrm_edge` offers on first use."""

import functools
from collections.abc import Iterable
from pathlib import Path

from hrm_edge.client import Client, in_order
from hrm_edge.errors import (
    RefusedError,
    ServerError,
    UnavailableError,
    UnreachableError,
)
from hrm_edge.requests import Reply, request_from, requests_from
from hrm_edge.solvers import Solver, from_bundles
from hrm_edge_runtime.api.schema import ErrorDetail as Refusal
from hrm_edge_runtime.api.schema import ModelView as Model
from hrm_edge_runtime.api.schema import SegmentView as Segment
from hrm_edge_runtime.api.schema import SolveAnswer as Answer
from hrm_edge_runtime.api.schema import SolveRequest as Request
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.errors import Error
from hrm_edge_runtime.contract.manifest import MANIFEST_NAME, BundleError
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines.engine import EngineUnavailableError

__all__ = [
    "Answer",
    "BundleError",
    "Client",
    "EngineUnavailableError",
    "Error",
    "Model",
    "Refusal",
    "RefusedError",
    "Request",
    "Segment",
    "ServerError",
    "UnavailableError",
    "UnreachableError",
    "solve",
    "solve_many",
]


def solve(puzzle: object, *, bundle: Path | str | None = None, **fields: object) -> Answer:
    """Solve one puzzle in this process; raises RefusedError.

    `fields` are the other fields of a request. Without `bundle`, the first shipped model that can
    read the puzzle solves it.
    """
    (reply,) = solve_many([request_from(puzzle, fields)], bundle=bundle)
    if isinstance(reply, Refusal):
        raise RefusedError(reply)
    return reply


def solve_many(
    puzzles: Iterable[object], *, bundle: Path | str | None = None, **fields: object
) -> list[Reply]:
    """Answers or refusals in the order of the puzzles; puzzles of one model share its batch."""
    solver = _solver_of(bundle)
    return in_order(solver.solve_all(requests_from(puzzles, fields)))


def _solver_of(bundle: Path | str | None) -> Solver:
    """A solver with one bundle, or with all shipped ones."""
    if bundle is None:
        paths = list(shipped_bundles().values())
    else:
        paths = [find_bundle(str(bundle)).resolve()]
    return _opened(*[(path, _write_time_ns(path)) for path in paths])


def _write_time_ns(path: Path) -> int:
    """When a bundle was written, which changes if an export replaces it. 0 if it is not a
    bundle."""
    manifest = path / MANIFEST_NAME
    return manifest.stat().st_mtime_ns if manifest.exists() else 0


@functools.cache
def _opened(*written: tuple[Path, int]) -> Solver:
    """Open bundles once for each time that they are written."""
    return from_bundles([Bundle.open(path) for path, _ in written])
