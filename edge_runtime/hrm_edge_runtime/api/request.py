"""Where a request becomes a task of a served model, and a result an answer in its notation. Shapes: T tokens."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.api.errors import ServiceError, bad_puzzle, invalid, no_answer
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result, Task
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError

NOT_OF_THE_KIND = ("not-a-puzzle", "wrong-keys", "no-task")
UNREADABLE = ("wrong-size", "wrong-length", "bad-character")
NEARLY = 0.05  # kinds that fit as well as this are named together
SEPARATORS = re.compile(r"[\s|+=-]")
AS_IN_RESULT = [field.name for field in fields(Result) if field.name in SolveAnswer.model_fields]
said_by = attrgetter(*AS_IN_RESULT)


@dataclass(frozen=True, kw_only=True, eq=False)
class ParsedRequest:
    """A task, and what its answer is written with: the model, and the puzzle as it was sent."""

    model: ServedModel
    parsed: Parsed
    task: Task

    def solution_of(self, answer_T: NDArray[np.int32]) -> object:
        return self.model.puzzle.write(self.model.puzzle.decode(answer_T), self.parsed.notation)


def candidate_models(models: Iterable[ServedModel], request: SolveRequest) -> list[ServedModel]:
    """The named model, those of its kind, or one of each kind; refuses with 404 or 422.

    The likeliest first: those that have learned the task that is asked, then in the order in which they are served.
    """
    kinds: set[str] = set()
    candidates: dict[str, ServedModel] = {}
    for model in models:
        if request.model in (None, model.name):
            kinds.add(model.puzzle.name)
            if request.kind in (None, model.puzzle.name):
                candidates.setdefault(model.puzzle.name, model)
    leave_out = "or leave the field out"
    if not kinds:
        names = ", ".join(repr(model.name) for model in models)
        message = f"there is no model {request.model!r} here"
        raise ServiceError(
            404, "unknown-model", message, f"use {names}, {leave_out}", field="model"
        )
    if not candidates:
        solved = ", ".join(sorted(map(repr, kinds)))
        message = f"no model here solves {request.kind!r}"
        raise invalid("unknown-kind", message, f"use {solved}, {leave_out}", field="kind")
    task = request.puzzle.get("task") if isinstance(request.puzzle, dict) else None
    return sorted(
        candidates.values(),
        key=lambda model: not isinstance(task, str) or model.identifiers.row_of(task) is None,
    )


def outline_of(request: SolveRequest) -> SolveRequest:
    """A request with all that says which model takes it, but without its board, which may be large."""
    task = request.puzzle.get("task") if isinstance(request.puzzle, dict) else None
    return request.model_copy(update={"puzzle": {"task": task}})


def parse_request(
    models: Sequence[ServedModel],
    request: SolveRequest,
    *,
    task_id: int,
    arrival_s: float,
    priority_penalty: int = 0,
    streamed: bool = False,
) -> ParsedRequest:
    """Parse and encode for the first model that reads the puzzle, in up to 50 ms; refuses with 422 and why."""
    errors: list[tuple[ServedModel, PuzzleError]] = []
    for model in models:
        try:
            parsed = model.puzzle.parse(request.puzzle)
            tokens_T = model.puzzle.encode(parsed.grid)
        except PuzzleError as error:
            errors.append((model, error))
            continue
        _check_fields(model, request, parsed.identifier)
        policy, kind = model.halting, request.policy or model.halting.kind
        if request.policy is not None or request.max_segments is not None:
            policy = replace(
                policy, kind=kind, max_segments=request.max_segments or model.manifest.max_segments
            )
        guesses = model.manifest.attempts == "hypotheses" and request.how != "plain"
        task = Task(
            task_id=task_id,
            tokens_T=tokens_T,
            puzzle_id=(parsed.identifier and model.identifiers.row_of(parsed.identifier)) or 0,
            policy=policy,
            arrival_s=arrival_s,
            deadline_s=None
            if request.deadline_ms is None
            else arrival_s + request.deadline_ms / 1000,
            priority=request.priority - priority_penalty,
            num_attempts=request.attempts or 1,
            first_guessing=int(request.how is None) if guesses else None,
            best_effort=request.best_so_far,
            streamed=streamed,
        )
        return ParsedRequest(model=model, parsed=parsed, task=task)
    raise _refusal(request.puzzle, errors)


def _refusal(notation: object, errors: Sequence[tuple[ServedModel, PuzzleError]]) -> ServiceError:
    """Why no model reads a puzzle, in the words of those kinds that fit it best."""
    fits = [_fit(notation, model.puzzle, error) for model, error in errors]
    best = [
        said for said, fit in zip(errors, fits, strict=True) if fit and fit > max(fits) - NEARLY
    ]
    best = list({error.problem: (model, error) for model, error in reversed(best)}.values())[
        ::-1
    ]  # each reason once
    if len(errors) == 1 or len(best) == 1:
        return bad_puzzle((best or errors)[0][1])
    if not best:
        kinds = ", ".join(model.puzzle.name for model, _ in errors)
        remedy = "send one that is written as its sample in /models"
        return bad_puzzle(
            PuzzleError(
                f"this is no puzzle of any kind served here ({kinds})", "not-a-puzzle", remedy
            )
        )
    problem, remedy = (
        "; ".join(f"as {model.puzzle.name}: {getattr(error, said)}" for model, error in best)
        for said in ("problem", "remedy")
    )
    return bad_puzzle(PuzzleError(problem, best[0][1].rule, remedy, best[0][1].cell))


def _fit(notation: object, puzzle: Puzzle, error: PuzzleError) -> float:
    """How well a refused puzzle fits, by its cells or keys: 0 not at all, above 2 where it only breaks a rule."""
    if error.rule in NOT_OF_THE_KIND:
        return 0.0 if error.rule == "not-a-puzzle" else 1.0
    if error.rule not in UNREADABLE or isinstance(notation, Mapping):
        return 2.1
    rows = cast("Sequence[object]", notation.split("\n") if isinstance(notation, str) else notation)
    written = [row if isinstance(row, str | list) else "x" for row in rows]
    bare = [SEPARATORS.sub("", row) if isinstance(row, str) else row for row in written]
    distance = min(abs(sum(map(len, one)) - puzzle.seq_len) for one in (written, bare))
    return 2.0 - distance / puzzle.seq_len if 2 * distance <= puzzle.seq_len else 0.0


def answer_from(parsed: ParsedRequest, result: Result) -> SolveAnswer:
    if result.answer_T is None:
        raise no_answer("engine-failed")
    model, puzzle, routed = parsed.model, parsed.model.puzzle, parsed.model.routed
    return SolveAnswer(
        solution=parsed.solution_of(result.answer_T),
        **dict(zip(AS_IN_RESULT, said_by(result), strict=True)),
        solved=result.status == "proven",
        queue_ms=round(1000 * result.queue_s, 3),
        compute_ms=round(1000 * result.compute_s, 3),
        model=model.name,
        attempts=result.num_attempts,
        route=routed.route(parsed.parsed.grid, puzzle.decode(result.answer_T)) if routed else None,
    )


def _check_fields(model: ServedModel, request: SolveRequest, identifier: str | None) -> None:
    max_segments, max_attempts = model.manifest.max_segments, model.max_attempts
    if identifier is not None and model.identifiers.row_of(identifier) is None:
        message = f"{model.name!r} has not learned the task {identifier[:80]!r}"
        named = ", ".join(model.tasks[:3])
        remedy = f"use one of its {len(model.tasks)}, as {named}, or train on its demonstrations"
        raise invalid("unknown-task", message, remedy, field="puzzle")
    if request.max_segments is not None and request.max_segments > max_segments:
        message = (
            f"max_segments is {request.max_segments} where this model runs at most {max_segments}"
        )
        raise invalid(
            "too-many-segments", message, f"use 1 to {max_segments}", field="max_segments"
        )
    if request.attempts is not None and request.attempts > max_attempts:
        message = f"attempts is {request.attempts} where this server makes at most {max_attempts}"
        remedy = f"use 1 to {max_attempts}, or start the server with a larger --max-attempts"
        raise invalid("too-many-attempts", message, remedy, field="attempts")
    if request.how == "hypotheses" and model.manifest.attempts != "hypotheses":
        message = f"{model.name!r} tries no hypotheses: its export did not find that they pay"
        raise invalid("no-hypotheses", message, "leave the field out", field="how")
    if request.best_so_far and request.deadline_ms is None:
        message = "best_so_far says what to do at a deadline, and there is none"
        raise invalid("no-deadline", message, "send deadline_ms as well", field="best_so_far")
    if request.policy == "verified" and not model.puzzle.proof_exists:
        message = f"an answer to {model.puzzle.name!r} cannot be proven"
        raise invalid(
            "no-proof-exists", message, "use the policy 'learned' or 'fixed'", field="policy"
        )
