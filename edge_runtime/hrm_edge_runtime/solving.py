"""What `hrm-solve` does: read puzzles, have them solved by a server or a bundle, print what came of them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.progress import Progress

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.client import Client, ServerError, UnreachableError
from hrm_edge_runtime.engines.factory import Choice
from hrm_edge_runtime.service.errors import ServiceError
from hrm_edge_runtime.service.schema import SolveAnswer, SolveRequest
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Puzzle, PuzzleError

MAX_FILE_NAME = 250  # longer is a board, and no file system would take it as a name
PATIENCE_S = 60.0  # a full queue is no reason to give up a long list

Outcome = SolveAnswer | ServiceError | ServerError
SolveAll = Callable[[Sequence[SolveRequest]], Iterable[tuple[int, Outcome]]]


class SolvingError(ValueError):
    """What cannot even be begun; the text is one sentence with the remedy."""


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Somebody who solves puzzles of one kind; outcomes come with their position, in any order."""

    puzzle: Puzzle
    solve_all: SolveAll


@contextlib.contextmanager
def from_bundle(bundle: Bundle, choice: Choice, *, num_slots: int, num_threads: int | None) -> Generator[Solver]:
    """A solver in this process."""
    from hrm_edge_runtime.offline import OfflineSolver

    offline = OfflineSolver(bundle=bundle, choice=choice, num_slots=num_slots, num_threads=num_threads)
    yield Solver(puzzle=bundle.puzzle, solve_all=offline.solve_all)


@contextlib.contextmanager
def from_server(url: str, *, api_key: str | None) -> Generator[Solver]:
    """A solver behind HTTP; refuses where no server answers, or where it serves a puzzle unknown here."""
    try:
        with Client(url, api_key=api_key, patience_s=PATIENCE_S) as client:
            puzzle = registry.get(client.models()[0].kind)
            yield Solver(puzzle=puzzle, solve_all=client.solve_many)
    except (ServerError, UnreachableError, PuzzleError) as error:
        raise SolvingError(str(error)) from error


def read_requests(argument: str, puzzle: Puzzle, options: Mapping[str, object]) -> list[SolveRequest]:
    """The puzzles behind the command's argument: itself, a file's or standard input's; with fields of a request."""
    texts = _texts(argument, puzzle)
    if not texts:
        raise SolvingError(f"{argument!r} holds no puzzle: write one puzzle per line.")
    try:
        return [SolveRequest.model_validate({"puzzle": _notation(text), **options}) for text in texts]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SolvingError(f"{first['loc'][0]} cannot be {first['input']!r}: {first['msg']}.") from error


def solve_and_print(solver: Solver, requests: Sequence[SolveRequest], *, as_json: bool) -> int:
    """Solve, show the progress on a terminal, print in the order of the questions; the exit status."""
    outcomes = _with_progress(solver, requests)
    console = Console()
    if len(outcomes) == 1 and console.is_terminal and not as_json:
        console.print(_board(solver.puzzle, requests[0], outcomes[0]), highlight=False, markup=False)
    else:
        for outcome in outcomes:
            print(_json_line(outcome) if as_json else _text_line(outcome))
    if len(outcomes) > 1:
        print(_counts(outcomes), file=sys.stderr)
    return 0 if all(isinstance(outcome, SolveAnswer) and outcome.solved for outcome in outcomes) else 1


def _texts(argument: str, puzzle: Puzzle) -> list[str]:
    """One puzzle over several lines, or one on each: a line as long as a whole puzzle decides."""
    text = _text_behind(argument)
    if text is None:
        return [argument]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    whole = [text] if lines else []
    return lines if any(len(line) >= puzzle.seq_len for line in lines) else whole


def _text_behind(argument: str) -> str | None:
    """What standard input or a file holds; None for an argument that is the puzzle itself."""
    try:
        if argument == "-":
            return sys.stdin.read()
        if len(argument) < MAX_FILE_NAME and Path(argument).is_file():
            return Path(argument).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SolvingError(f"{argument!r} cannot be read ({error}): give a text file of puzzles.") from error
    return None


def _notation(text: str) -> object:
    """Rows, flat lists and objects are written as JSON."""
    try:
        return json.loads(text) if text.lstrip().startswith(("[", "{")) else text
    except ValueError:
        return text


def _with_progress(solver: Solver, requests: Sequence[SolveRequest]) -> list[Outcome]:
    outcomes: dict[int, Outcome] = {}
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=len(requests) < 2 or not console.is_terminal) as progress:
        task = progress.add_task("solving", total=len(requests))
        for position, outcome in solver.solve_all(requests):
            outcomes[position] = outcome
            progress.advance(task)
    return [outcomes[position] for position in range(len(requests))]


def _board(puzzle: Puzzle, request: SolveRequest, outcome: Outcome) -> str:
    if not isinstance(outcome, SolveAnswer) or not outcome.verified:
        return _text_line(outcome)
    board = puzzle.render(puzzle.parse(outcome.solution).grid, puzzle.parse(request.puzzle).grid)
    return f"{board}\n{_summary(outcome)}"


def _summary(answer: SolveAnswer) -> str:
    verdict = {True: "solved, proven right", False: "not solved", None: "no proof exists"}[answer.verified]
    plural = "" if answer.segments == 1 else "s"
    cost = f"{answer.segments} segment{plural}, {answer.compute_ms:.0f} ms, margin {answer.margin:.2f}"
    if answer.attempts > 1:
        cost = f"{answer.attempts} attempts with {answer.total_segments} segments, {cost}"
    return f"{verdict}: {cost}, {answer.model}"


def _json_line(outcome: Outcome) -> str:
    if isinstance(outcome, SolveAnswer):
        return outcome.model_dump_json()
    body = outcome.body() if isinstance(outcome, ServiceError) else {"error": outcome.detail.model_dump()}
    return json.dumps(body)


def _text_line(outcome: Outcome) -> str:
    if isinstance(outcome, ServiceError):
        return f"# refused: {outcome.message}; {outcome.remedy}."
    if isinstance(outcome, ServerError):
        return f"# refused: {outcome}"
    solution = outcome.solution if isinstance(outcome.solution, str) else json.dumps(outcome.solution)
    return solution if outcome.solved else f"# {_summary(outcome)}"


def _counts(outcomes: Sequence[Outcome]) -> str:
    answers = [outcome for outcome in outcomes if isinstance(outcome, SolveAnswer)]
    counts = Counter(_verdict(outcome) for outcome in outcomes)
    mean_segments = sum(answer.total_segments for answer in answers) / max(1, len(answers))
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    return f"{len(outcomes)} puzzles: {said}; {mean_segments:.1f} segments on average"


def _verdict(outcome: Outcome) -> str:
    if not isinstance(outcome, SolveAnswer):
        return "refused"
    return "solved" if outcome.solved else "not solved"
