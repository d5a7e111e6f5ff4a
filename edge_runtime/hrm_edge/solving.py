"""What `import hrm_edge` offers: solve here with a bundle, or ask a server."""

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import candidate_models, parse_request
from hrm_edge_runtime.api.schema import ErrorDetail as Refusal
from hrm_edge_runtime.api.schema import ModelView, SolveRequest
from hrm_edge_runtime.api.schema import SolveAnswer as Answer
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines.factory import prepare
from hrm_edge_runtime.solve.client import Client
from hrm_edge_runtime.solve.client import ServerError as ServerError
from hrm_edge_runtime.solve.client import UnreachableError as UnreachableError
from hrm_edge_runtime.solve.solvers import MAX_ATTEMPTS, Solver, from_bundle

NUM_SLOTS = 4  # puzzles in one batch

Reply = Answer | Refusal


class RefusedError(ValueError):
    """No model can read the puzzle; `detail` holds reason, rule, cell, message and remedy."""

    def __init__(self, detail: Refusal) -> None:
        super().__init__(f"{detail.message}; {detail.remedy}.")
        self.detail = detail


def solve(puzzle: object, *, bundle: Path | str | None = None, **fields: object) -> Answer:
    """Solve one puzzle in this process; raises RefusedError.

    Without `bundle`, the first shipped model that can read the puzzle solves it.
    """
    (reply,) = solve_many([puzzle], bundle=bundle, **fields)
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
    requests_of: dict[str, dict[int, SolveRequest]] = {name: {} for name in opened}
    for position, puzzle in enumerate(puzzles):
        request = SolveRequest.model_validate({"puzzle": puzzle, **fields})
        try:
            name = _model_for(models, request, position)
        except ServiceError as refusal:
            replies[position] = refusal.detail
        else:
            requests_of[name][position] = request
    for name, requests in requests_of.items():
        replies |= _solved(opened[name].solver, requests)
    return [replies[position] for position in sorted(replies)]


def _model_for(models: Sequence[ServedModel], request: SolveRequest, position: int) -> str:
    """The name of the model that reads this puzzle; raises ServiceError."""
    candidates = candidate_models(models, request)
    parsed = parse_request(candidates, request, task_id=position, arrival_s=0.0)
    return parsed.model.name


def _solved(solver: Solver, requests: Mapping[int, SolveRequest]) -> dict[int, Reply]:
    """Replies by the positions of the requests."""
    if not requests:
        return {}
    positions = list(requests)
    replies: dict[int, Reply] = {}
    for index, reply in solver.solve_all(requests.values()):
        replies[positions[index]] = reply
    return replies


class AsyncClient:
    """`Client` for asyncio: the same arguments, with its calls in threads."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, api_key: str | None = None) -> None:
        self._client = Client(url, api_key=api_key)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.__exit__()

    async def solve(self, puzzle: object, **fields: object) -> Answer:
        """Solve one puzzle on the server; raises ServerError or UnreachableError."""
        return await asyncio.to_thread(self._client.solve, puzzle, **fields)

    async def solve_many(self, requests: Sequence[SolveRequest]) -> list[Reply]:
        """Answers or refusals in the order of the requests."""
        replies = await asyncio.to_thread(lambda: dict(self._client.solve_many(requests)))
        return [replies[position] for position in sorted(replies)]

    async def models(self) -> list[ModelView]:
        return await asyncio.to_thread(self._client.models)


@dataclass(frozen=True, kw_only=True)
class _Opened:
    model: ServedModel
    solver: Solver


@functools.cache
def _opened(bundle: Path | str | None) -> dict[str, _Opened]:
    """Open one bundle, or every shipped one, by model name."""
    opened: dict[str, _Opened] = {}
    for path in _paths(bundle):
        one = _open(path)
        opened[one.model.name] = one
    return opened


def _paths(bundle: Path | str | None) -> list[Path]:
    if bundle is None:
        return list(shipped_bundles().values())
    return [find_bundle(str(bundle))]


def _open(path: Path) -> _Opened:
    bundle = Bundle.open(path)
    choice = prepare(bundle, "auto", num_slots=NUM_SLOTS)
    model = ServedModel.of(
        bundle, precision=choice.precision, num_slots=NUM_SLOTS, max_attempts=MAX_ATTEMPTS
    )
    return _Opened(model=model, solver=from_bundle(bundle, choice, num_slots=NUM_SLOTS))
