"""What `import hrm_edge` offers: solve here with a bundle, or ask a server."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import candidate_models, parse_request
from hrm_edge_runtime.api.schema import ErrorDetail as Refusal
from hrm_edge_runtime.api.schema import ModelView as Model
from hrm_edge_runtime.api.schema import SegmentView as Segment
from hrm_edge_runtime.api.schema import SolveAnswer as Answer
from hrm_edge_runtime.api.schema import SolveRequest as Request
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.errors import Error
from hrm_edge_runtime.contract.manifest import MANIFEST_NAME, BundleError
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.factory import prepare, presumed
from hrm_edge_runtime.solve.async_client import AsyncClient
from hrm_edge_runtime.solve.client import Client, Reply
from hrm_edge_runtime.solve.errors import (
    RefusedError,
    ServerError,
    UnavailableError,
    UnreachableError,
)
from hrm_edge_runtime.solve.requests import numbered_requests, request_from
from hrm_edge_runtime.solve.solvers import MAX_ATTEMPTS, Solver, from_bundle

__all__ = [
    "Answer",
    "AsyncClient",
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

NUM_SLOTS = 4  # puzzles in one batch


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
    opened = _opened(bundle)
    models = [one.model for one in opened.values()]
    replies: dict[int, Reply] = {}
    requests_of: dict[str, dict[int, Request]] = {name: {} for name in opened}
    for position, request in numbered_requests(puzzles, fields):
        if isinstance(request, Refusal):
            replies[position] = request
            continue
        try:
            name = _model_for(models, request, position)
        except ServiceError as refusal:
            replies[position] = refusal.detail
        else:
            requests_of[name][position] = request
    for name, requests in requests_of.items():
        if requests:
            replies |= _solved(opened[name].solver, requests)
    return [replies[position] for position in sorted(replies)]


def _model_for(models: Sequence[ServedModel], request: Request, position: int) -> str:
    """The name of the model that reads this puzzle; raises ServiceError."""
    candidates = candidate_models(models, request)
    parsed = parse_request(candidates, request, task_id=position, arrival_s=0.0)
    return parsed.model.name


def _solved(solver: Solver, requests: Mapping[int, Request]) -> dict[int, Reply]:
    """Solve requests; returns their replies by position."""
    positions = list(requests)
    replies: dict[int, Reply] = {}
    for index, reply in solver.solve_all(requests.values()):
        replies[positions[index]] = reply
    return replies


@dataclass(frozen=True, kw_only=True, eq=False)
class _Opened:
    model: ServedModel
    bundle: Bundle

    @functools.cached_property
    def solver(self) -> Solver:
        """The solver, opened at the first puzzle; TensorRT then builds its engine, for minutes."""
        choice = prepare(self.bundle, "auto", num_slots=NUM_SLOTS)
        return from_bundle(self.bundle, choice, num_slots=NUM_SLOTS)


def _opened(bundle: Path | str | None) -> dict[str, _Opened]:
    """Open one bundle, or every shipped one; returns them by model name."""
    opened: dict[str, _Opened] = {}
    for path in _paths(bundle):
        one = _open(path.resolve(), _write_time_ns(path))
        opened[one.model.name] = one
    return opened


def _paths(bundle: Path | str | None) -> list[Path]:
    if bundle is None:
        return list(shipped_bundles().values())
    return [find_bundle(str(bundle))]


def _write_time_ns(path: Path) -> int:
    """When a bundle was written, which changes if an export replaces it. 0 if it is not a
    bundle."""
    manifest = path / MANIFEST_NAME
    return manifest.stat().st_mtime_ns if manifest.exists() else 0


@functools.cache
def _open(path: Path, _written_ns: int) -> _Opened:
    """Open a bundle once for each time that it is written."""
    bundle = Bundle.open(path)
    choice = presumed(bundle)
    model = ServedModel.of(
        bundle, precision=choice.precision, num_slots=NUM_SLOTS, max_attempts=MAX_ATTEMPTS
    )
    return _Opened(model=model, bundle=bundle)
