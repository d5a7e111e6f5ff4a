"""What solves puzzles: a server, or bundles opened in this process.

Holds every name that `hrm_edge` offers on first use.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from hrm_edge.client import TEMPORARY, Client, in_order
from hrm_edge.errors import (
    RefusedError,
    ServerError,
    UnavailableError,
    UnreachableError,
)
from hrm_edge.puzzles import Entry, OutOfReachError, SolvingError
from hrm_edge.requests import (
    Numbered,
    Reply,
    RequestOrRefusal,
    request_from,
    request_or_refusal,
    requests_from,
)
from hrm_edge_runtime.api import schema
from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import (
    ParsedRequest,
    answer_from,
    candidate_models,
    parse_request,
)
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.errors import Error
from hrm_edge_runtime.contract.manifest import MANIFEST_NAME, BundleError
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles
from hrm_edge_runtime.engines.engine import EngineUnavailableError
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare, presumed
from hrm_parity import BUILD_COMMAND
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, Grid, Puzzle, PuzzleError, sized

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

Answer = schema.SolveAnswer
Model = schema.ModelView
Refusal = schema.ErrorDetail
Request = schema.SolveRequest
Segment = schema.SegmentView

SolveAll = Callable[[Iterable[RequestOrRefusal]], Iterable[Numbered]]
Options = Mapping[str, object]

MAX_ATTEMPTS = 1024  # no other client waits for this engine


class Solver(NamedTuple):
    """`solve_all` yields positions and replies in any order; `puzzles` are known by model name."""

    puzzles: Mapping[str, Puzzle]
    solve_all: SolveAll


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


def from_server(client: Client, *, kind: str | None, model: str | None) -> Solver:
    """A solver behind HTTP with its models of this kind and name."""
    puzzles: dict[str, Puzzle] = {}
    for served in client.models():
        if model in (None, served.name) and kind in (None, served.kind):
            with contextlib.suppress(PuzzleError):  # it is not installed here
                puzzles[served.name] = registry.get(served.kind)
    if not puzzles:
        problem = f"{client.url} serves no such model of a puzzle that is installed here"
        remedy = f"run curl {client.url}/models to list its models"
        raise OutOfReachError(f"{problem}: {remedy}.")
    return Solver(puzzles=puzzles, solve_all=functools.partial(_checked, client, puzzles))


def _checked(
    client: Client, puzzles: Mapping[str, Puzzle], requests: Iterable[RequestOrRefusal]
) -> Iterator[Numbered]:
    """A server's replies; raises OutOfReachError if it calls a wrong answer proven."""
    questions: dict[int, object] = {}

    def noted() -> Iterator[RequestOrRefusal]:
        for position, request in enumerate(requests):
            if isinstance(request, Request):
                questions[position] = request.puzzle
            yield request

    for position, reply in client.as_finished(noted()):
        question = questions.pop(position, None)
        if isinstance(reply, Answer) and reply.status == "proven" and reply.model in puzzles:
            puzzle = puzzles[reply.model]
            if not _is_right(puzzle, question, reply.solution):
                problem = f"the server calls a wrong answer to its {puzzle.name} puzzle proven"
                remedy = "run hrm-parity on its bundle, or use another server"
                raise OutOfReachError(f"{problem}: {remedy}.")
        yield position, reply


def _is_right(puzzle: Puzzle, question: object, solution: object) -> bool:
    try:
        board, question_grid, answer_grid = grids_of(puzzle, question, solution)
        question_T = board.encode(question_grid)
        answer_T = board.encode(answer_grid)
    except PuzzleError:
        return False
    (verdict,) = board.check_BT(question_T[None], answer_T[None])
    return bool(verdict == RIGHT)


def grids_of(puzzle: Puzzle, question: object, solution: object) -> tuple[Puzzle, Grid, Grid]:
    """The puzzle in the question's size, and the grids of both; raises PuzzleError.

    The solution of an ARC question with a task name may be a bare grid.
    """
    if isinstance(question, dict) and not isinstance(solution, dict):
        fields = cast("dict[str, object]", question)
        solution = {**fields, "input": solution}
    board = sized(puzzle, question)
    return board, board.parse(question).grid, board.parse(solution).grid


def from_bundles(
    bundles: Iterable[Bundle],
    engine: str = "auto",
    *,
    num_slots: int = 4,
    num_threads: int | None = None,
) -> Solver:
    """A solver in this process that parses and answers like a server.

    The first model that reads a puzzle solves it. Each run opens the engines of the models that it
    needs. A single bundle solves every puzzle, also a request that names another model.
    """
    models: dict[str, _LocalModel] = {}
    for bundle in bundles:
        precision = presumed(bundle, engine).precision
        served = ServedModel.of(
            bundle, precision=precision, num_slots=num_slots, max_attempts=MAX_ATTEMPTS
        )
        models[served.name] = _LocalModel(
            bundle=bundle, served=served, engine=engine, num_threads=num_threads
        )
    puzzles = {name: model.bundle.puzzle for name, model in models.items()}
    return Solver(puzzles=puzzles, solve_all=functools.partial(_solve_here, models, num_slots))


@dataclass(frozen=True, kw_only=True, eq=False)
class _LocalModel:
    bundle: Bundle
    served: ServedModel
    engine: str
    num_threads: int | None

    @functools.cached_property
    def choice(self) -> Choice:
        """The engine, chosen at the first puzzle; TensorRT then builds it, for minutes."""
        return prepare(
            self.bundle,
            self.engine,
            num_slots=self.served.num_slots,
            build_command=BUILD_COMMAND,
        )

    @contextlib.contextmanager
    def lane(self) -> Generator[TaskLane]:
        num_slots = self.served.num_slots
        engine = engine_for(
            self.bundle,
            engine=str(self.choice),
            num_slots=num_slots,
            num_threads=self.num_threads,
        )
        with contextlib.closing(engine):
            yield TaskLane(
                engine,
                self.bundle.puzzle,
                self.bundle.puzzle_table,
                queue_limit=num_slots,
                max_attempts=MAX_ATTEMPTS,
                identifiers=self.bundle.identifiers,
            )


def _solve_here(
    models: Mapping[str, _LocalModel], num_slots: int, requests: Iterable[RequestOrRefusal]
) -> Iterator[Numbered]:
    served = [model.served for model in models.values()]
    lanes: dict[str, TaskLane] = {}
    max_pending = 2 * num_slots  # requests to read ahead: a full batch and the next one
    pending: dict[int, ParsedRequest] = {}
    with contextlib.ExitStack() as opened:
        for position, request in enumerate(requests):
            while len(pending) >= max_pending:
                yield from _step(lanes.values(), pending)
            try:
                parsed = _parsed(served, request, position)
            except RefusedError as refusal:
                yield position, refusal.detail
                continue
            name = parsed.model.name
            if name not in lanes:
                lanes[name] = opened.enter_context(models[name].lane())
            pending[position] = parsed
            lanes[name].submit(parsed.task)
        while pending:
            yield from _step(lanes.values(), pending)


def _parsed(
    served: Sequence[ServedModel], request: RequestOrRefusal, position: int
) -> ParsedRequest:
    """Parse a request for the model that reads it; raises RefusedError."""
    if isinstance(request, Refusal):
        raise RefusedError(request)
    try:
        candidates = served
        if len(served) > 1:
            candidates = candidate_models(served, request)
        return parse_request(candidates, request, task_id=position, arrival_s=time.monotonic())
    except ServiceError as refusal:
        raise RefusedError(refusal.detail) from None


def _step(lanes: Iterable[TaskLane], pending: dict[int, ParsedRequest]) -> Iterator[Numbered]:
    """Run one segment of each model and yield the answers that it finished."""
    for lane in lanes:
        if not lane.has_work:
            continue
        results, _ = lane.step()
        for result in results:
            parsed = pending.pop(result.task_id)
            try:
                yield result.task_id, answer_from(parsed, result)
            except ServiceError as failure:
                yield result.task_id, failure.detail


def options_of(stated: Options) -> Options:
    """Validate fields of a request that apply to every puzzle; raises SolvingError."""
    try:
        request_from(None, stated)
    except RefusedError as refusal:
        raise SolvingError(str(refusal)) from None
    return stated


def solve_in_order(
    solver: Solver, entries: Iterator[Entry], options: Options
) -> Iterator[tuple[Entry, Reply]]:
    """Yield each entry with its reply; `options` are request fields for every puzzle.

    Raises UnavailableError if a server still refuses for a temporary reason.
    """
    waiting: dict[int, Entry] = {}
    replies: dict[int, Reply] = {}

    def requests() -> Iterator[RequestOrRefusal]:
        for position, entry in enumerate(entries):
            waiting[position] = entry
            yield request_or_refusal(entry.puzzle, {**options, **entry.fields})

    first = 0
    for position, reply in solver.solve_all(requests()):
        if isinstance(reply, Refusal) and reply.reason in TEMPORARY:
            raise UnavailableError(503, reply)
        replies[position] = reply
        while first in replies:
            yield waiting.pop(first), replies.pop(first)
            first += 1
