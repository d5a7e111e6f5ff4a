"""Turn a request into a task of a served model, and a result into an answer.

Shapes: T tokens.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.api.errors import ServiceError, bad_puzzle, invalid, no_answer
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.contract.halting import LEARNED
from hrm_puzzles.puzzle import Grid, IntArray, Parsed, Puzzle, PuzzleError, Routed

FIRST = (1, 1)  # the cell of an error that names none


KindError = tuple[str, PuzzleError]
"""A kind of puzzle, and why its boards cannot read a puzzle."""


class ParsedRequest(NamedTuple):
    """A parsed request: its task, its model, and its puzzle as the client wrote it.

    `board` has the size of the puzzle; the model's own board may be larger and frame it.
    """

    model: ServedModel
    board: Puzzle
    parsed: Parsed
    task: Task

    def grid_of(self, answer_T: IntArray) -> Grid:
        """The grid of the model's tokens, without the frame."""
        grid = self.model.puzzle.decode(answer_T)
        if self.board is self.model.puzzle:
            return grid
        rows, cols = self.parsed.grid.shape
        return grid[:rows, :cols]


def candidate_models(models: Iterable[ServedModel], request: SolveRequest) -> list[ServedModel]:
    """The named model, those of its kind, or one of each kind.

    Models that have learned the requested task come first, then the others in serving order.
    Rejects an unknown model with 404 and an unknown kind with 422.
    """
    kinds: set[str] = set()
    candidates: dict[str, ServedModel] = {}
    for model in models:
        if request.model in (None, model.name):
            kinds.add(model.puzzle.name)
            if request.kind in (None, model.puzzle.name):
                candidates.setdefault(model.puzzle.name, model)
    if not kinds:
        names = ", ".join(repr(model.name) for model in models)
        message = f"there is no model {request.model!r} here"
        remedy = f"use {names}, or omit the field"
        raise ServiceError(404, "unknown-model", message, remedy, field="model")
    if not candidates:
        solved = ", ".join(sorted(map(repr, kinds)))
        message = f"no model here solves {request.kind!r}"
        raise invalid("unknown-kind", message, f"use {solved}, or omit the field", field="kind")
    chosen = list(candidates.values())
    if isinstance(request.puzzle, dict):
        task = request.puzzle.get("task")
        if isinstance(task, str):
            chosen.sort(key=lambda model: model.identifiers.row_of(task) is None)
    return chosen


def outline_of(request: SolveRequest) -> SolveRequest:
    """The request without its board, which may be large; enough to choose the model."""
    puzzle: dict[str, object] = {}
    if isinstance(request.puzzle, dict):
        puzzle["task"] = request.puzzle.get("task")
    return request.model_copy(update={"puzzle": puzzle})


def parse_request(
    models: Sequence[ServedModel],
    request: SolveRequest,
    *,
    task_id: int,
    arrival_s: float,
    priority_penalty: int = 0,
    streamed: bool = False,
) -> ParsedRequest:
    """Parse and encode for the first model that reads the puzzle, in up to 50 ms.

    Rejects an invalid request with 422 and the reason.
    """
    model, board, parsed, tokens_T = _read(models, request)
    _check_fields(model, request, parsed.identifier)
    puzzle_id = 0  # the blank row
    if parsed.identifier:
        puzzle_id = model.identifiers.row_of(parsed.identifier) or 0
    deadline_s = None
    if request.deadline_ms is not None:
        deadline_s = arrival_s + request.deadline_ms / 1000
    policy = model.halting
    if request.policy is not None:
        policy = replace(policy, kind=request.policy)
    if request.max_segments is not None:
        policy = replace(policy, max_segments=request.max_segments)
    # The default: guess if the model gains from it and only a proof ends an attempt.
    guesses = model.manifest.attempt_kind == "hypotheses" and policy.kind == "verified"
    if request.how is not None:
        guesses = request.how == "hypotheses"
    task = Task(
        task_id=task_id,
        tokens_T=tokens_T,
        puzzle_id=puzzle_id,
        policy=policy,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        priority=request.priority - priority_penalty,
        num_attempts=request.attempts or 1,
        guesses=guesses,
        best_effort=request.best_so_far,
        streamed=streamed,
    )
    return ParsedRequest(model, board, parsed, task)


def _read(
    models: Sequence[ServedModel], request: SolveRequest
) -> tuple[ServedModel, Puzzle, Parsed, NDArray[np.int32]]:
    """Read a puzzle with the first board that can; rejects it with 422 if none can.

    If no board has the puzzle's size, the smallest one that holds the puzzle frames it.
    """
    refusals: list[KindError] = []
    for model, board in _boards(models, request.puzzle, refusals):
        try:
            parsed = board.parse(request.puzzle)
            tokens_T = model.puzzle.encode(parsed.grid)
        except PuzzleError as error:
            refusals.append((board.name, error))
        else:
            return model, board, parsed, tokens_T
    raise _unread(refusals)


def _boards(
    models: Sequence[ServedModel], notation: object, refusals: list[KindError]
) -> Iterator[tuple[ServedModel, Puzzle]]:
    """Every model with its own board, then with a smaller one in a frame, the smallest model first.

    A puzzle that no board can frame adds to `refusals`.
    """
    for model in models:
        yield model, model.puzzle
    for model in sorted(models, key=lambda model: model.puzzle.seq_len):
        if model.routed is None:
            continue
        try:
            framed = model.routed.framed(notation)
        except PuzzleError as error:
            refusals.append((model.puzzle.name, error))
            continue
        if framed is not None:
            yield model, framed


def _unread(refusals: Sequence[KindError]) -> ServiceError:
    """Why no model reads a puzzle, in the words of the kind that read farthest."""
    kinds = list(dict.fromkeys(kind for kind, _ in refusals))
    kind, error = max(refusals, key=lambda refusal: _progress_of(refusal[1]))
    if len(kinds) == 1:
        return bad_puzzle(error)
    served = ", ".join(kinds)
    if _progress_of(error) == (0, FIRST):
        problem = f"no kind of puzzle served here reads this one ({served})"
        remedy = "send one that is written as its sample in /models"
        return bad_puzzle(PuzzleError(problem, "not-a-puzzle", remedy))
    remedy = f"as {kind}, {error.remedy}; the kinds served are {served}"
    return bad_puzzle(PuzzleError(error.problem, error.rule, remedy, error.cell))


def _progress_of(error: PuzzleError) -> tuple[int, tuple[int, int]]:
    """How far a kind read: to a cell, to the end of a board of another size, or to its rules."""
    rule = error.rule
    cell = error.cell or FIRST
    is_of_the_kind = rule not in ("not-a-puzzle", "wrong-keys", "no-task")
    if not is_of_the_kind or (rule == "bad-character" and cell == FIRST):
        return 0, FIRST
    if rule == "bad-character":
        return 1, cell
    if rule in ("wrong-size", "wrong-length"):
        return 2, cell
    return 3, FIRST


def answer_from(parsed: ParsedRequest, result: Result) -> SolveAnswer:
    """A result in the notation of its request; raises ServiceError if it holds no answer."""
    if result.answer_T is None:
        raise no_answer("engine-failed")
    model = parsed.model
    board = parsed.board
    grid = parsed.grid_of(result.answer_T)
    route = None
    if model.routed is not None:
        route = cast("Routed", board).route(parsed.parsed.grid, grid)
    return SolveAnswer(
        solution=board.write(grid, parsed.parsed.notation),
        status=result.status,
        how=result.how,
        verified=result.verified,
        segments=result.segments,
        halted_by=result.halted_by,
        margin=result.margin,
        queue_ms=round(1000 * result.queue_s, 3),
        compute_ms=round(1000 * result.compute_s, 3),
        model=model.name,
        attempts=result.num_attempts,
        total_segments=result.total_segments,
        votes=result.votes,
        vote_share=result.vote_share,
        route=route,
    )


def _check_fields(model: ServedModel, request: SolveRequest, identifier: str | None) -> None:
    """Reject fields that this model or this server does not support with 422."""
    if identifier is not None:
        _check_task(model, identifier)
    max_segments = model.manifest.max_segments
    if request.max_segments is not None and request.max_segments > max_segments:
        message = f"max_segments is {request.max_segments}; this model runs at most {max_segments}"
        remedy = f"use 1 to {max_segments}"
        raise invalid("too-many-segments", message, remedy, field="max_segments")
    max_attempts = model.max_attempts
    if request.attempts is not None and request.attempts > max_attempts:
        message = f"attempts is {request.attempts}; this server makes at most {max_attempts}"
        remedy = f"use 1 to {max_attempts}, or start the server with a larger --max-attempts"
        raise invalid("too-many-attempts", message, remedy, field="attempts")
    if request.how == "hypotheses" and model.manifest.attempt_kind != "hypotheses":
        message = f"{model.name!r} tries no hypotheses: its export found no gain from them"
        raise invalid("no-hypotheses", message, "omit the field", field="how")
    if request.best_so_far and request.deadline_ms is None:
        message = "best_so_far needs a deadline, and there is none"
        raise invalid("no-deadline", message, "send deadline_ms as well", field="best_so_far")
    if request.policy == "verified" and not model.puzzle.proof_exists:
        message = f"an answer to {model.puzzle.name!r} cannot be proven"
        remedy = f"use the policy {LEARNED!r} or 'fixed'"
        raise invalid("no-proof-exists", message, remedy, field="policy")


def _check_task(model: ServedModel, identifier: str) -> None:
    if model.identifiers.row_of(identifier) is not None:
        return
    task = f"the task {identifier[:80]!r}"
    message = (
        f"{model.name!r} has not learned {task}: it learns tasks by name from many examples, "
        "and a task's own demonstrations are too few"
    )
    examples = ", ".join(model.tasks[:3])
    kind = model.puzzle.name
    learn = (
        f"hrm-data build {kind} --dataset FOLDER --hold-out-all --out data/tasks, then "
        f"hrm-train --puzzle {kind} --preset relational --data data/tasks"
    )
    remedy = f"use one of its {len(model.tasks)} tasks, such as {examples}, or train on it: {learn}"
    raise invalid("unknown-task", message, remedy, field="puzzle")
