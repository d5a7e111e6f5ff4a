"""What solves puzzles for `hrm-solve`: a server, or a bundle opened in this process."""

import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from pydantic import ValidationError

from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import (
    ParsedRequest,
    answer_from,
    candidate_models,
    parse_request,
)
from hrm_edge_runtime.api.schema import ErrorDetail, ModelView, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.faults import words_for
from hrm_edge_runtime.engines.engine import Engine
from hrm_edge_runtime.engines.factory import Choice, engine_for, prepare, presumed
from hrm_edge_runtime.solve.client import TEMPORARY, Client
from hrm_edge_runtime.solve.errors import ServerError, UnreachableError
from hrm_edge_runtime.solve.puzzles import (
    Entry,
    NoServerError,
    OutOfReachError,
    SolvingError,
)
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, Grid, Puzzle, PuzzleError, sized

Reply = SolveAnswer | ErrorDetail
SolveAll = Callable[[Iterable[SolveRequest]], Iterable[tuple[int, Reply]]]
Options = Mapping[str, object]

MAX_ATTEMPTS = 1024  # no other client waits for this engine
UNAUTHORIZED = 401


@dataclass(frozen=True, kw_only=True)
class Solver:
    """`solve_all` yields positions and replies in any order; `puzzles` are known by model name."""

    puzzles: Mapping[str, Puzzle]
    solve_all: SolveAll

    @property
    def kinds(self) -> list[Puzzle]:
        return list(self.puzzles.values())


@contextlib.contextmanager
def from_server(
    url: str,
    *,
    api_key: str | None,
    patience_s: float,
    kind: str | None = None,
    model: str | None = None,
) -> Generator[Solver]:
    """A solver behind HTTP with its models of this kind and name; raises OutOfReachError.

    If nothing answers, the error is a NoServerError.
    """
    try:
        with Client(url, api_key=api_key, patience_s=patience_s) as client:
            puzzles: dict[str, Puzzle] = {}
            for served in client.models():
                if model in (None, served.name) and kind in (None, served.kind):
                    puzzles |= _installed_puzzle(served)
            if not puzzles:
                remedy = f"run curl {url}/models to list its models"
                problem = f"{url} serves no such model of a puzzle that is installed here"
                raise OutOfReachError(f"{problem}: {remedy}.")
            yield Solver(puzzles=puzzles, solve_all=functools.partial(_checked, client, puzzles))
    except UnreachableError as error:
        raise NoServerError(str(error)) from error
    except ServerError as error:
        if error.status != UNAUTHORIZED:
            raise OutOfReachError(str(error)) from error
        problem = "rejects this key" if api_key else "requires a key"
        remedy = "set HRM_API_KEY, or pass --key-file with a file that holds the key"
        raise OutOfReachError(f"this server {problem}: {remedy}.") from error


def _installed_puzzle(served: ModelView) -> dict[str, Puzzle]:
    """A model's puzzle by the model's name; empty if the puzzle is not installed here."""
    try:
        return {served.name: registry.get(served.kind)}
    except PuzzleError:
        return {}


def _checked(
    client: Client, puzzles: Mapping[str, Puzzle], requests: Iterable[SolveRequest]
) -> Iterator[tuple[int, Reply]]:
    """A server's replies; raises OutOfReachError if it calls a wrong answer solved."""
    questions: dict[int, object] = {}

    def noted() -> Iterator[SolveRequest]:
        for position, request in enumerate(requests):
            questions[position] = request.puzzle
            yield request

    for position, reply in client.as_finished(noted()):
        question = questions.pop(position)
        if isinstance(reply, SolveAnswer) and reply.solved and reply.model in puzzles:
            puzzle = puzzles[reply.model]
            if not _is_right(puzzle, question, reply.solution):
                problem = f"the server calls a wrong answer to its {puzzle.name} puzzle solved"
                remedy = "run hrm-parity on its bundle, or use another server"
                raise OutOfReachError(f"{problem}: {remedy}.")
        yield position, reply


def _is_right(puzzle: Puzzle, question: object, solution: object) -> bool:
    puzzle = sized(puzzle, question)
    try:
        question_T = puzzle.encode(puzzle.parse(question).grid)
        answer_T = puzzle.encode(answered(puzzle, question, solution))
    except PuzzleError:
        return False
    (verdict,) = puzzle.check_BT(question_T[None], answer_T[None])
    return bool(verdict == RIGHT)


def answered(puzzle: Puzzle, question: object, solution: object) -> Grid:
    """The grid of a solution; for an ARC question with a task name it may be a bare grid."""
    if isinstance(question, dict) and not isinstance(solution, dict):
        fields = cast("dict[str, object]", question)
        solution = {**fields, "input": solution}
    return sized(puzzle, question).parse(solution).grid


def from_bundle(
    bundle: Bundle, choice: Choice, *, num_slots: int = 4, num_threads: int | None = None
) -> Solver:
    """A solver in this process that parses and answers like a server; each run opens an engine.

    The bundle solves every puzzle, also a request that names another model.
    """
    open_engine = functools.partial(
        engine_for, bundle, engine=str(choice), num_slots=num_slots, num_threads=num_threads
    )
    model = _served(bundle, choice, num_slots)
    local = _LocalModel(bundle=bundle, model=model, open_engine=open_engine)
    return _offline([local], num_slots)


def from_bundles(
    bundles: Iterable[Bundle],
    engine: str = "auto",
    *,
    num_slots: int = 4,
    num_threads: int | None = None,
) -> Solver:
    """As `from_bundle`; the first model that reads a puzzle solves it.

    Each run opens the engines of the models that it needs.
    """
    local_models: list[_LocalModel] = []
    for bundle in bundles:
        open_engine = functools.partial(_built_engine, bundle, engine, num_slots, num_threads)
        model = _served(bundle, presumed(bundle, engine), num_slots)
        local_models.append(_LocalModel(bundle=bundle, model=model, open_engine=open_engine))
    return _offline(local_models, num_slots)


def _served(bundle: Bundle, choice: Choice, num_slots: int) -> ServedModel:
    return ServedModel.of(
        bundle, precision=choice.precision, num_slots=num_slots, max_attempts=MAX_ATTEMPTS
    )


def _built_engine(bundle: Bundle, engine: str, num_slots: int, num_threads: int | None) -> Engine:
    choice = prepare(bundle, engine, num_slots=num_slots)
    return engine_for(bundle, engine=str(choice), num_slots=num_slots, num_threads=num_threads)


@dataclass(frozen=True, kw_only=True)
class _LocalModel:
    """A model of this process; `open_engine` is called once in each run that needs it."""

    bundle: Bundle
    model: ServedModel
    open_engine: Callable[[], Engine]

    @contextlib.contextmanager
    def lane(self, num_slots: int) -> Generator[TaskLane]:
        with contextlib.closing(self.open_engine()) as engine:
            yield TaskLane(
                engine,
                self.bundle.puzzle,
                self.bundle.puzzle_table,
                queue_limit=num_slots,
                max_attempts=MAX_ATTEMPTS,
                identifiers=self.bundle.identifiers,
            )


def _offline(local_models: Sequence[_LocalModel], num_slots: int) -> Solver:
    puzzles = {local.model.name: local.bundle.puzzle for local in local_models}
    solve_all = functools.partial(_solve_offline, local_models, num_slots)
    return Solver(puzzles=puzzles, solve_all=solve_all)


def _solve_offline(
    local_models: Sequence[_LocalModel], num_slots: int, requests: Iterable[SolveRequest]
) -> Iterator[tuple[int, Reply]]:
    by_name = {local.model.name: local for local in local_models}
    served = [local.model for local in local_models]
    lanes: dict[str, TaskLane] = {}
    max_pending = 2 * num_slots  # requests to read ahead: a full batch and the next one
    pending: dict[int, ParsedRequest] = {}
    with contextlib.ExitStack() as opened:
        for position, request in enumerate(requests):
            while len(pending) >= max_pending:
                yield from _step(lanes.values(), pending)
            try:
                parsed = parse_request(
                    _candidates(served, request),
                    request,
                    task_id=position,
                    arrival_s=time.monotonic(),
                )
            except ServiceError as refusal:
                yield position, refusal.detail
                continue
            name = parsed.model.name
            if name not in lanes:
                lane = by_name[name].lane(num_slots)
                lanes[name] = opened.enter_context(lane)
            pending[position] = parsed
            lanes[name].submit(parsed.task)
        while pending:
            yield from _step(lanes.values(), pending)


def _candidates(served: Sequence[ServedModel], request: SolveRequest) -> Sequence[ServedModel]:
    """The models that may take a request; the only one takes all."""
    if len(served) == 1:
        return served
    return candidate_models(served, request)


def _step(
    lanes: Iterable[TaskLane], pending: dict[int, ParsedRequest]
) -> Iterator[tuple[int, Reply]]:
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
        SolveRequest.model_validate({"puzzle": None, **stated})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = first["loc"][0]
        raise SolvingError(f"{name} cannot be {first['input']!r}: {words_for(first)}.") from error
    return stated


@dataclass(kw_only=True)
class _Ordering:
    """Gives replies back in the order of their entries.

    `places` maps the position of a request, which the solver counts, to the place of its entry.
    """

    entries: Iterator[Entry]
    options: Options
    waiting: dict[int, Entry] = field(default_factory=dict[int, Entry])
    replies: dict[int, Reply] = field(default_factory=dict[int, Reply])
    places: dict[int, int] = field(default_factory=dict[int, int])

    def requests(self) -> Iterator[SolveRequest]:
        """Yield the valid requests; an invalid one gets its refusal here."""
        positions = itertools.count()
        for place, entry in enumerate(self.entries):
            self.waiting[place] = entry
            content = json.dumps({**self.options, **entry.fields}).encode()
            try:
                request = decoding.validated(SolveRequest, content)
            except ServiceError as refusal:
                self.replies[place] = refusal.detail
                continue
            self.places[next(positions)] = place
            yield request

    def take(self, position: int, reply: Reply) -> None:
        place = self.places.pop(position)
        self.replies[place] = reply

    def ready(self) -> Iterator[tuple[Entry, Reply]]:
        """Remove and yield entries from the front as long as they have replies."""
        while self.waiting:
            first = next(iter(self.waiting))
            if first not in self.replies:
                return
            yield self.waiting.pop(first), self.replies.pop(first)


def solve_in_order(
    solver: Solver, entries: Iterator[Entry], options: Options
) -> Iterator[tuple[Entry, Reply]]:
    """Yield each entry with its reply; `options` are request fields for every puzzle.

    Raises OutOfReachError if a server still refuses for a temporary reason.
    """
    ordering = _Ordering(entries=entries, options=options)
    for position, reply in solver.solve_all(ordering.requests()):
        if isinstance(reply, ErrorDetail) and reply.reason in TEMPORARY:
            raise OutOfReachError(f"{reply.message}; {reply.remedy}.")
        ordering.take(position, reply)
        yield from ordering.ready()
    yield from ordering.ready()
