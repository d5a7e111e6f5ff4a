"""From a request to a task of a served model, and from a result to an answer.

Shapes: T tokens.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.api.errors import ServiceError, bad_puzzle, invalid, no_answer
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError

NOT_OF_THE_KIND = ("not-a-puzzle", "wrong-keys", "no-task")
UNREADABLE = ("wrong-size", "wrong-length", "bad-character")
NEARLY = 0.05  # kinds whose fits differ by less than this are named together
SEPARATORS = re.compile(r"[\s|+=-]")

Error = tuple[ServedModel, PuzzleError]
"""A model that cannot read a puzzle, and the reason."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ParsedRequest:
    """A task with its model and its puzzle as the client sent it, which its answer needs."""

    model: ServedModel
    parsed: Parsed
    task: Task

    def solution_of(self, answer_T: NDArray[np.int32]) -> object:
        puzzle = self.model.puzzle
        return puzzle.write(puzzle.decode(answer_T), self.parsed.notation)


def candidate_models(models: Iterable[ServedModel], request: SolveRequest) -> list[ServedModel]:
    """The named model, those of its kind, or one of each kind; refuses with 404 or 422.

    Models that have learned the requested task come first, then the others in serving order.
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
    task = _task_of(request)
    if not isinstance(task, str):
        return list(candidates.values())
    return sorted(candidates.values(), key=lambda model: model.identifiers.row_of(task) is None)


def _task_of(request: SolveRequest) -> object:
    """The name of the task that a puzzle belongs to, if it is an object that names one."""
    if isinstance(request.puzzle, dict):
        return request.puzzle.get("task")
    return None


def outline_of(request: SolveRequest) -> SolveRequest:
    """The request without its board, which may be large; enough to choose the model."""
    puzzle = {"task": _task_of(request)}
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

    Refuses with 422 and the reason.
    """
    errors: list[Error] = []
    for model in models:
        try:
            parsed = model.puzzle.parse(request.puzzle)
            tokens_T = model.puzzle.encode(parsed.grid)
        except PuzzleError as error:
            errors.append((model, error))
            continue
        _check_fields(model, request, parsed.identifier)
        puzzle_id = 0  # the blank row
        if parsed.identifier:
            puzzle_id = model.identifiers.row_of(parsed.identifier) or 0
        deadline_s = None
        if request.deadline_ms is not None:
            deadline_s = arrival_s + request.deadline_ms / 1000
        task = Task(
            task_id=task_id,
            tokens_T=tokens_T,
            puzzle_id=puzzle_id,
            policy=_policy(model, request),
            arrival_s=arrival_s,
            deadline_s=deadline_s,
            priority=request.priority - priority_penalty,
            num_attempts=request.attempts or 1,
            first_guessing=_first_guessing(model, request),
            best_effort=request.best_so_far,
            streamed=streamed,
        )
        return ParsedRequest(model=model, parsed=parsed, task=task)
    raise _unread(request.puzzle, errors)


def _policy(model: ServedModel, request: SolveRequest) -> HaltingPolicy:
    """The model's halting policy with the changes that the request makes."""
    if request.policy is None and request.max_segments is None:
        return model.halting
    kind = request.policy or model.halting.kind
    max_segments = request.max_segments or model.manifest.max_segments
    return replace(model.halting, kind=kind, max_segments=max_segments)


def _first_guessing(model: ServedModel, request: SolveRequest) -> int | None:
    """The first attempt that tries hypotheses; None if none does."""
    if request.how == "plain" or model.manifest.attempts != "hypotheses":
        return None
    if request.how == "hypotheses":
        return 0
    return 1


def _unread(notation: object, errors: Sequence[Error]) -> ServiceError:
    """Why no model reads a puzzle, in the words of the kinds that fit it best."""
    best = _best_fitting(notation, errors)
    if len(errors) == 1:
        best = errors
    if len(best) == 1:
        return bad_puzzle(best[0][1])
    if not best:
        kinds = ", ".join(model.puzzle.name for model, _ in errors)
        problem = f"no kind of puzzle served here reads this one ({kinds})"
        remedy = "send one that is written as its sample in /models"
        return bad_puzzle(PuzzleError(problem, "not-a-puzzle", remedy))
    problem = "; ".join(f"as {model.puzzle.name}: {error.problem}" for model, error in best)
    remedy = "; ".join(f"as {model.puzzle.name}: {error.remedy}" for model, error in best)
    first = best[0][1]
    return bad_puzzle(PuzzleError(problem, first.rule, remedy, first.cell))


def _best_fitting(notation: object, errors: Sequence[Error]) -> list[Error]:
    """The errors of the models that fit nearly as well as the best one, each problem once."""
    fits = [_fit(notation, model.puzzle, error) for model, error in errors]
    least = max(fits) - NEARLY
    best: dict[str, Error] = {}
    for (model, error), fit in zip(errors, fits, strict=True):
        if fit and fit > least:
            best.setdefault(error.problem, (model, error))
    return list(best.values())


def _fit(notation: object, puzzle: Puzzle, error: PuzzleError) -> float:
    """How well a refused puzzle fits a kind: 0 not at all, above 2 if it only breaks a rule."""
    if error.rule == "not-a-puzzle":
        return 0.0
    if error.rule in NOT_OF_THE_KIND:
        return 1.0
    if error.rule not in UNREADABLE or isinstance(notation, Mapping):
        return 2.1
    distance = _cells_off(notation, puzzle.seq_len)
    if 2 * distance > puzzle.seq_len:
        return 0.0
    return 2.0 - distance / puzzle.seq_len


def _cells_off(notation: object, seq_len: int) -> int:
    """How far the number of cells is from the expected one, with or without separators."""
    if isinstance(notation, str):
        notation = notation.split("\n")
    written = 0
    bare = 0
    for row in cast("Sequence[object]", notation):
        if isinstance(row, str):
            written += len(row)
            bare += len(SEPARATORS.sub("", row))
        else:
            num_cells = 1
            if isinstance(row, list):
                num_cells = len(cast("list[object]", row))
            written += num_cells
            bare += num_cells
    return min(abs(written - seq_len), abs(bare - seq_len))


def answer_from(parsed: ParsedRequest, result: Result) -> SolveAnswer:
    """A result in the notation of its request; raises ServiceError if it holds no answer."""
    if result.answer_T is None:
        raise no_answer("engine-failed")
    model = parsed.model
    route = None
    if model.routed is not None:
        grid = model.puzzle.decode(result.answer_T)
        route = model.routed.route(parsed.parsed.grid, grid)
    return SolveAnswer(
        solution=parsed.solution_of(result.answer_T),
        status=result.status,
        how=result.how,
        solved=result.status == "proven",
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
    """Refuse with 422 what this model or this server cannot do."""
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
    if request.how == "hypotheses" and model.manifest.attempts != "hypotheses":
        message = f"{model.name!r} tries no hypotheses: its export found no gain from them"
        raise invalid("no-hypotheses", message, "omit the field", field="how")
    if request.best_so_far and request.deadline_ms is None:
        message = "best_so_far needs a deadline, and there is none"
        raise invalid("no-deadline", message, "send deadline_ms as well", field="best_so_far")
    if request.policy == "verified" and not model.puzzle.proof_exists:
        message = f"an answer to {model.puzzle.name!r} cannot be proven"
        remedy = "use the policy 'learned' or 'fixed'"
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
    remedy = f"use one of its {len(model.tasks)} tasks, such as {examples}"
    raise invalid("unknown-task", message, remedy, field="puzzle")
