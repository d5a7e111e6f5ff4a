"""HRM Edge from Python: solve puzzles here, or through a server.

import hrm_edge
answer = hrm_edge.solve("53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79")
answer.solution, answer.status                                    # "534678912...", "proven"
hrm_edge.Client("http://127.0.0.1:8000").solve(puzzle, attempts=16)

`fields` are those of a request (docs/api.md): kind, policy, max_segments, attempts. Never imports torch.
"""

import asyncio
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from hrm_edge_runtime.api.schema import ErrorDetail as Refusal
from hrm_edge_runtime.api.schema import ModelView, SolveRequest
from hrm_edge_runtime.api.schema import SolveAnswer as Answer
from hrm_edge_runtime.solve.client import Client
from hrm_edge_runtime.solve.client import ServerError as ServerError
from hrm_edge_runtime.solve.client import UnreachableError as UnreachableError

__all__ = ["Answer", "AsyncClient", "Client", "Refusal", "RefusedError", "solve", "solve_many"]


class RefusedError(ValueError):
    """A puzzle that no model here reads; `detail` holds its reason, rule, cell, message and remedy."""

    def __init__(self, detail: Refusal) -> None:
        super().__init__(f"{detail.message}; {detail.remedy}.")
        self.detail = detail


def solve(puzzle: object, *, bundle: Path | str | None = None, **fields: object) -> Answer:
    """Solve one puzzle in this process, by the shipped model that reads it or by this bundle; raises RefusedError."""
    (reply,) = solve_many([puzzle], bundle=bundle, **fields)
    if isinstance(reply, Refusal):
        raise RefusedError(reply)
    return reply


def solve_many(
    puzzles: Iterable[object], *, bundle: Path | str | None = None, **fields: object
) -> list[Answer | Refusal]:
    """The answers or refusals in the order of the puzzles; those of one model share its batch."""
    from hrm_edge_runtime.api.errors import ServiceError
    from hrm_edge_runtime.api.request import candidate_models, parse_request

    solvers, replies = _opened(bundle), dict[int, Answer | Refusal]()
    by_model: dict[str, dict[int, SolveRequest]] = {name: {} for name in solvers}
    for position, puzzle in enumerate(puzzles):
        request = SolveRequest.model_validate({"puzzle": puzzle, **fields})
        try:
            models = candidate_models([model for model, _ in solvers.values()], request)
            parsed = parse_request(models, request, task_id=position, arrival_s=0.0)
            by_model[parsed.model.name][position] = request
        except ServiceError as refusal:
            replies[position] = refusal.detail
    for name, requests in by_model.items():
        positions = list(requests)
        for place, reply in solvers[name][1].solve_all(requests.values()) if requests else ():
            replies[positions[place]] = reply
    return [replies[position] for position in sorted(replies)]


class AsyncClient:
    """`Client` for asyncio: the same arguments, its calls run in threads."""

    def __init__(self, url: str = "http://127.0.0.1:8000", *, api_key: str | None = None) -> None:
        self._client = Client(url, api_key=api_key)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._client.__exit__()

    async def solve(self, puzzle: object, **fields: object) -> Answer:
        """Have one puzzle solved; raises ServerError or UnreachableError."""
        return await asyncio.to_thread(self._client.solve, puzzle, **fields)

    async def solve_many(self, requests: Sequence[SolveRequest]) -> list[Answer | Refusal]:
        replies = await asyncio.to_thread(lambda: dict(self._client.solve_many(requests)))
        return [replies[position] for position in sorted(replies)]

    async def models(self) -> list[ModelView]:
        return await asyncio.to_thread(self._client.models)


@functools.cache
def _opened(bundle: Path | str | None):
    from hrm_edge_runtime.api.served_model import ServedModel
    from hrm_edge_runtime.contract.bundle import Bundle
    from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
    from hrm_edge_runtime.engines.factory import prepare
    from hrm_edge_runtime.solve.solvers import MAX_ATTEMPTS, Solver, from_bundle

    opened: dict[str, tuple[ServedModel, Solver]] = {}
    for path in [find_bundle(str(bundle))] if bundle is not None else shipped_bundles().values():
        one, slots = Bundle.open(path), 4
        choice = prepare(one, "auto", num_slots=slots)
        model = ServedModel.of(one, precision=choice.precision, num_slots=slots, max_attempts=MAX_ATTEMPTS)
        opened[model.name] = model, from_bundle(one, choice, num_slots=slots)
    return opened
