"""The puzzles of `hrm-solve` as people keep them, and what solves them: a server, or a bundle opened in this process.

A line of NDJSON is a request of `/solve` or a puzzle written as JSON. The `solution` beside a puzzle, as in what the
web page exports, and the `answer` of a CSV are kept as the known solution and never sent anywhere.
"""

import contextlib
import csv
import functools
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import ParsedRequest, answer_from, parse_request
from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.solve.client import NOT_NOW, Client, ServerError, UnreachableError
from hrm_host.command import CANNOT_BEGIN
from hrm_host.reading import json_from, lines_of
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, Grid, Puzzle, PuzzleError

Reply = SolveAnswer | ErrorDetail
SolveAll = Callable[[Iterable[SolveRequest]], Iterable[tuple[int, Reply]]]
Options = Mapping[str, object]

MAX_ATTEMPTS = 1024  # nothing else waits for this engine
FILE_NAME = re.compile(r"[^\n]+\.[A-Za-z]{3,6}")  # no board ends so
MAX_FILE_NAME = 250  # longer is a board, and no file system would take it as a name
HEAD_LINES = 100  # a board over several lines ends before this
MAX_LINE = 1 << 24  # characters; a list of all requests can be one line
BYTE_ORDER_MARK = "\ufeff"  # what some editors of Windows write before a text


class SolvingError(ValueError):
    """A run that cannot be begun or finished; the text is one sentence with the remedy."""


class OutOfReachError(SolvingError):
    """Nothing is wrong with what was asked: the server or the disk does not do it now."""

    exit_status = CANNOT_BEGIN


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One puzzle, counted from 1, with the other fields of its request; `known` is its solution, where there is one."""

    number: int
    fields: Mapping[str, object]
    known: object | None = None

    @property
    def puzzle(self) -> object:
        return self.fields["puzzle"]


def is_many(argument: str) -> bool:
    """Whether an argument names a file or standard input rather than being the puzzle itself."""
    return argument == "-" or (len(argument) < MAX_FILE_NAME and Path(argument).is_file())


def require_file(argument: str) -> None:
    if FILE_NAME.fullmatch(argument) and not is_many(argument):
        raise SolvingError(f"there is no file {argument}: give one that is there, or the puzzle itself.")


@contextlib.contextmanager
def opened(argument: str, shortest: int) -> Generator[Iterator[Entry]]:
    """The puzzles that an argument names, read lazily; lines below `shortest`, a puzzle's length, are one board."""
    with contextlib.closing(_entries_of(argument, shortest)) as entries:
        yield entries


def _entries_of(argument: str, shortest: int) -> Generator[Entry]:
    try:
        if argument == "-":
            yield from entries(lines_of(sys.stdin, MAX_LINE), shortest)
        elif is_many(argument):
            with Path(argument).open(encoding="utf-8", newline="") as stream:
                yield from entries(lines_of(stream, MAX_LINE), shortest)
        else:
            yield from entries([argument], 0)
    except (OSError, ValueError, csv.Error) as error:
        raise SolvingError(f"{argument!r} cannot be read ({error}): give a text file of puzzles.") from error


def entries(lines: Iterable[str], shortest: int) -> Iterator[Entry]:
    """The puzzles of some lines; the first lines show the form."""
    rest = iter(lines)
    head = list(itertools.islice(rest, HEAD_LINES))
    if head:
        head[0] = head[0].removeprefix(BYTE_ORDER_MARK)
    first = next((line for line in head if not _is_idle(line)), "")
    if "question" in first.strip().split(","):
        rows = csv.DictReader(line for line in itertools.chain(head, rest) if line.strip())
        for number, row in enumerate(rows, 1):
            yield Entry(number=number, fields={"puzzle": row.get("question") or ""}, known=row.get("answer") or None)
    elif any(len(line.strip()) >= shortest for line in head if not _is_idle(line)) or len(head) == HEAD_LINES:
        yield from _numbered(line for line in itertools.chain(head, rest) if not _is_idle(line))
    elif first:
        yield from _numbered(["".join(head)])


def _is_idle(line: str) -> bool:
    return not line.strip() or line.startswith("# ")


def _numbered(texts: Iterable[str]) -> Iterator[Entry]:
    values = itertools.chain.from_iterable(map(_values, texts))
    for number, value in enumerate(values, 1):
        if isinstance(value, dict) and "puzzle" in value:
            fields = cast("dict[str, object]", value)
            known = fields.pop("solution", None)
            yield Entry(number=number, fields=fields, known=known)
        else:
            yield Entry(number=number, fields={"puzzle": value})


def _values(text: str) -> list[object]:
    """What a text says: rows, flat lists and objects are written as JSON, and a list of requests is all of them."""
    text = text.rstrip("\r\n")
    try:
        value: object = json_from(text) if text.lstrip().startswith(("[", "{")) else text
    except ValueError:
        return [text]
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in cast("list[object]", value)):
        return cast("list[object]", value)
    return [value]


@dataclass(frozen=True, kw_only=True)
class Solver:
    """`solve_all` yields positions and replies in any order; `puzzles` are those known here, by their models' names."""

    puzzles: Mapping[str, Puzzle]
    solve_all: SolveAll

    @property
    def shortest(self) -> int:
        return min(puzzle.seq_len for puzzle in self.puzzles.values())


@contextlib.contextmanager
def from_server(
    url: str, *, api_key: str | None, patience_s: float, kind: str | None = None, model: str | None = None
) -> Generator[Solver]:
    """A solver behind HTTP, of the models of this `kind` and name; refuses where none is known here."""
    try:
        with Client(url, api_key=api_key, patience_s=patience_s) as client:
            puzzles: dict[str, Puzzle] = {}
            for served in client.models():
                if model in (None, served.name) and kind in (None, served.kind):
                    with contextlib.suppress(PuzzleError):
                        puzzles[served.name] = registry.get(served.kind)
            if not puzzles:
                remedy = f"ask it with curl {url}/models"
                raise OutOfReachError(f"{url} serves no such model of a puzzle known here: {remedy}.")
            yield Solver(puzzles=puzzles, solve_all=functools.partial(_checked, client, puzzles))
    except (ServerError, UnreachableError) as error:
        if not isinstance(error, ServerError) or error.status != 401:
            raise OutOfReachError(str(error)) from error
        given = "does not know this one" if api_key else "was sent none"
        raise OutOfReachError(
            f"this server asks for a key and {given}: set HRM_API_KEY, or give --key-file a file that holds it."
        ) from error


def _checked(
    client: Client, puzzles: Mapping[str, Puzzle], requests: Iterable[SolveRequest]
) -> Iterator[tuple[int, Reply]]:
    """A server's replies; refuses one that it calls right when the puzzle's own check does not."""
    questions: dict[int, object] = {}

    def noted() -> Iterator[SolveRequest]:
        for position, request in enumerate(requests):
            questions[position] = request.puzzle
            yield request

    for position, reply in client.solve_many(noted()):
        question = questions.pop(position)
        if isinstance(reply, SolveAnswer) and reply.solved and reply.model in puzzles:
            puzzle = puzzles[reply.model]
            if not _is_right(puzzle, question, reply.solution):
                problem = f"the server calls an answer solved that is no answer to its {puzzle.name} puzzle"
                raise OutOfReachError(f"{problem}: run hrm-parity on its bundle, or ask another server.")
        yield position, reply


def _is_right(puzzle: Puzzle, question: object, solution: object) -> bool:
    try:
        asked_T = puzzle.encode(puzzle.parse(question).grid)
        answered_T = puzzle.encode(answered(puzzle, question, solution))
    except PuzzleError:
        return False
    return bool(puzzle.check_BT(asked_T[None], answered_T[None])[0] == RIGHT)


def answered(puzzle: Puzzle, question: object, solution: object) -> Grid:
    """The grid of a solution; that of an ARC question, which names its task, may be a grid alone."""
    if isinstance(question, dict) and not isinstance(solution, dict):
        solution = {**cast("dict[str, object]", question), "input": solution}
    return puzzle.parse(solution).grid


def from_bundle(bundle: Bundle, choice: Choice, *, num_slots: int = 4, num_threads: int | None = None) -> Solver:
    """A solver in this process: parsing, attempts and answers are a server's; each run opens its own engine."""
    solve_all = functools.partial(_solve_offline, bundle, choice, num_slots, num_threads)
    return Solver(puzzles={bundle.manifest.name: bundle.puzzle}, solve_all=solve_all)


def _solve_offline(
    bundle: Bundle, choice: Choice, num_slots: int, num_threads: int | None, requests: Iterable[SolveRequest]
) -> Iterator[tuple[int, Reply]]:
    model = ServedModel.of(bundle, precision=choice.precision, num_slots=num_slots, max_attempts=MAX_ATTEMPTS)
    engine = engine_for(bundle, engine=str(choice), num_slots=num_slots, num_threads=num_threads)
    lane = TaskLane(
        engine,
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=num_slots,
        max_attempts=MAX_ATTEMPTS,
        identifiers=bundle.identifiers,
    )
    asked: dict[int, ParsedRequest] = {}
    with contextlib.closing(engine):
        for position, request in enumerate(requests):
            while len(asked) >= 2 * num_slots:  # a full lane with its successors in line
                yield from _step(lane, asked)
            try:
                parsed = parse_request([model], request, task_id=position, arrival_s=time.monotonic())
            except ServiceError as refusal:
                yield position, refusal.detail
            else:
                asked[position] = parsed
                lane.submit(parsed.task)
        while asked:
            yield from _step(lane, asked)


def _step(lane: TaskLane, asked: dict[int, ParsedRequest]) -> Iterator[tuple[int, Reply]]:
    results, _ = lane.step()
    for result in results:
        try:
            yield result.task_id, answer_from(asked.pop(result.task_id), result)
        except ServiceError as failure:
            yield result.task_id, failure.detail


def options_of(stated: Options) -> Options:
    try:
        SolveRequest.model_validate({"puzzle": None, **stated})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SolvingError(f"{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}.") from error
    return stated


def solve_in_order(solver: Solver, entries: Iterator[Entry], options: Options) -> Iterator[tuple[Entry, Reply]]:
    """Yield each entry with its reply; `options` are fields of all. Raises where a server refuses for the moment."""
    waiting: dict[int, Entry] = {}
    replies: dict[int, Reply] = {}
    place_of, positions = dict[int, int](), itertools.count()

    def requests() -> Iterator[SolveRequest]:
        """The valid requests, whose positions the solver counts; an invalid one gets its refusal here."""
        for place, entry in enumerate(entries):
            waiting[place] = entry
            try:
                request = decoding.validated(SolveRequest, json.dumps({**options, **entry.fields}).encode())
            except ServiceError as refusal:
                replies[place] = refusal.detail
                continue
            place_of[next(positions)] = place
            yield request

    def leave() -> Iterator[tuple[Entry, Reply]]:
        """Take out the entries that have a reply and nothing unanswered before them."""
        while waiting and (place := next(iter(waiting))) in replies:
            yield waiting.pop(place), replies.pop(place)

    for position, reply in solver.solve_all(requests()):
        if isinstance(reply, ErrorDetail) and reply.reason in NOT_NOW:
            raise OutOfReachError(f"{reply.message}; {reply.remedy}.")
        replies[place_of.pop(position)] = reply
        yield from leave()
    yield from leave()
