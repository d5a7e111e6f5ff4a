"""Between notation and tokens: the one place where the server turns a request into a task, and a result back.

Shapes: T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.http.errors import ServiceError, bad_puzzle, engine_failed, invalid
from hrm_edge_runtime.http.models import ServedModel
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_puzzles.puzzle import Parsed, PuzzleError


@dataclass(frozen=True, kw_only=True, eq=False)
class ParsedRequest:
    """A task, and what its answer is written with: the model, and the puzzle as it was sent."""

    model: ServedModel
    parsed: Parsed
    task: Task


def candidate_models(models: Sequence[ServedModel], request: SolveRequest) -> Sequence[ServedModel]:
    """The models a request may be for, the likeliest first: the named one, those of its kind, or one of each kind.

    Refuses with 404 a name that is not here, with 422 a kind that none of them solves.
    """
    named = [model for model in models if request.model in (None, model.name)]
    if not named:
        names = ", ".join(repr(model.name) for model in models)
        raise ServiceError(
            404,
            "unknown-model",
            f"there is no model {request.model!r} here",
            f"use {names}, or leave the field out",
            field="model",
        )
    of_kind = [model for model in named if request.kind in (None, model.puzzle.name)]
    if not of_kind:
        kinds = ", ".join(sorted({repr(model.puzzle.name) for model in named}))
        raise invalid(
            "unknown-kind",
            f"no model here solves {request.kind!r}",
            f"use {kinds}, or leave the field out",
            field="kind",
        )
    return list({model.puzzle.name: model for model in reversed(of_kind)}.values())[::-1]


def parse_request(
    models: Sequence[ServedModel],
    request: SolveRequest,
    *,
    task_id: int,
    arrival_s: float,
    priority_penalty: int = 0,
    streamed: bool = False,
) -> ParsedRequest:
    """Parse and encode for the first of these models that reads the puzzle.

    Refuses with 422 that names field, rule and cell: that of the model which got far enough to name a cell. Takes up
    to some 50 ms of CPU.
    """
    errors: list[PuzzleError] = []
    for model in models:
        try:
            parsed = model.puzzle.parse(request.puzzle)
            tokens_T = model.puzzle.encode(parsed.grid)
        except PuzzleError as error:
            errors.append(error)
            continue
        task = Task(
            task_id=task_id,
            tokens_T=tokens_T,
            puzzle_id=_puzzle_id(model, parsed),
            policy=_policy(model, request),
            arrival_s=arrival_s,
            deadline_s=None if request.deadline_ms is None else arrival_s + request.deadline_ms / 1000,
            priority=request.priority - priority_penalty,
            num_attempts=_num_attempts(model, request),
            best_effort=_best_effort(request),
            streamed=streamed,
        )
        return ParsedRequest(model=model, parsed=parsed, task=task)
    raise bad_puzzle(max(errors, key=lambda error: error.cell is not None))


def answer_from(parsed: ParsedRequest, result: Result) -> SolveAnswer:
    """The answer in the notation of the request."""
    if result.answer_T is None:
        raise engine_failed()
    model = parsed.model
    return SolveAnswer(
        solution=solution_of(parsed, result.answer_T),
        solved=result.verified is True if model.puzzle.proof_exists else result.halted_by == "learned",
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
    )


def solution_of(parsed: ParsedRequest, answer_T: NDArray[np.int32]) -> object:
    puzzle = parsed.model.puzzle
    return puzzle.write(puzzle.decode(answer_T), parsed.parsed.notation)


def _puzzle_id(model: ServedModel, parsed: Parsed) -> int:
    if parsed.identifier is None:
        return 0
    if parsed.identifier not in model.puzzle_ids:
        raise invalid(
            "unknown-task",
            f"{model.name!r} has not learned the task {parsed.identifier[:80]!r}",
            "use one of those that /models lists, or train on its demonstrations",
            field="puzzle",
        )
    return model.puzzle_ids[parsed.identifier]


def _num_attempts(model: ServedModel, request: SolveRequest) -> int:
    num_attempts = request.attempts or 1
    if num_attempts > model.max_attempts:
        raise invalid(
            "too-many-attempts",
            f"attempts is {num_attempts} where this server makes at most {model.max_attempts}",
            f"use 1 to {model.max_attempts}, or start the server with a larger --max-attempts",
            field="attempts",
        )
    return num_attempts


def _best_effort(request: SolveRequest) -> bool:
    if request.best_so_far and request.deadline_ms is None:
        raise invalid(
            "no-deadline",
            "best_so_far says what to do at a deadline, and there is none",
            "send deadline_ms as well",
            field="best_so_far",
        )
    return request.best_so_far


def _policy(model: ServedModel, request: SolveRequest) -> HaltingPolicy:
    limit = model.manifest.max_segments
    num_segments = request.max_segments or limit
    if num_segments > limit:
        raise invalid(
            "too-many-segments",
            f"max_segments is {num_segments} where this model runs at most {limit}",
            f"use 1 to {limit}",
            field="max_segments",
        )
    if request.policy is None and request.max_segments is None:
        return model.halting
    kind = request.policy or model.halting.kind
    if kind == "verified" and not model.puzzle.proof_exists:
        raise invalid(
            "no-proof-exists",
            f"an answer to {model.puzzle.name!r} cannot be proven",
            "use the policy 'learned' or 'fixed'",
            field="policy",
        )
    return replace(model.halting, kind=kind, max_segments=num_segments)
