"""Between notation and tokens: the one place where the server turns a request into a question, and a result back.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.asks import Ask, Conclusion
from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.manifest import Manifest
from hrm_edge_runtime.service.errors import ServiceError, bad_puzzle, engine_failed, invalid
from hrm_edge_runtime.service.reports import LaneReport
from hrm_edge_runtime.service.schema import HaltingView, ModelView, SolveAnswer, SolveRequest
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """One model as the HTTP process knows it: everything but the engine.

    `num_slots` are those asked for; how many there are the engine tells. Without `lane_key` it is the model's name.
    """

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    max_attempts: int
    puzzle_ids: Mapping[str, int] = field(default_factory=dict[str, int])
    lane_key: str | None = None

    @classmethod
    def of(
        cls, bundle: Bundle, *, precision: str, num_slots: int, max_attempts: int, lane: str | None = None
    ) -> ServedModel:
        return cls(
            manifest=bundle.manifest,
            lane_key=lane,
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            max_attempts=max_attempts,
            puzzle_ids={name: row for row, name in enumerate(bundle.identifiers)},
        )

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def lane(self) -> str:
        """The key of its lane in the engine."""
        return self.lane_key or self.name

    @property
    def sample(self) -> object:
        """A question as a person would send it."""
        return self.puzzle.sample(list(self.puzzle_ids))

    def view(self, report: LaneReport | None = None) -> ModelView:
        """What /models tells; of the lane only what the engine has reported."""
        manifest = self.manifest
        rows, cols = self._size()
        return ModelView(
            name=manifest.name,
            kind=self.puzzle.name,
            proof_exists=self.puzzle.proof_exists,
            seq_len=manifest.seq_len,
            vocab_size=manifest.vocab_size,
            hidden_size=manifest.hidden_size,
            max_segments=manifest.max_segments,
            halting=HaltingView(policy=manifest.halting.policy, threshold=manifest.halting.threshold),
            precision=self.precision,
            slots=report.num_slots if report else self.num_slots,
            slots_rule=report.slots_rule if report else None,
            step_ms={size: round(1000 * seconds, 3) for size, seconds in report.step_s.items()} if report else {},
            memory_bytes=report.memory_bytes if report else None,
            max_attempts=self.max_attempts,
            rows=rows,
            cols=cols,
            identifiers=manifest.num_puzzle_ids,
            sample=self.sample,
            provenance=manifest.provenance,
        )

    def _size(self) -> tuple[int, int] | tuple[None, None]:
        """Rows and columns of the largest board, which is what a full row of tokens shows; none for other puzzles."""
        full_T = np.full(self.puzzle.seq_len, self.puzzle.vocab_size - 1, np.int32)
        shape = self.puzzle.decode(full_T).shape
        return shape if len(shape) == 2 else (None, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A puzzle ready for the engine; `parsed` remembers how it was asked, `puzzle_id` is its row in the table."""

    model: ServedModel
    parsed: Parsed
    tokens_T: NDArray[np.int32]
    puzzle_id: int
    policy: HaltingPolicy
    num_attempts: int
    best_so_far: bool = False

    def ask(self, *, arrival_s: float, deadline_s: float | None = None, priority: int = 0, ask_id: int = 0) -> Ask:
        """What a lane is given."""
        return Ask(
            ask_id=ask_id,
            tokens_T=self.tokens_T,
            policy=self.policy,
            arrival_s=arrival_s,
            deadline_s=deadline_s,
            priority=priority,
            puzzle_id=self.puzzle_id,
            num_attempts=self.num_attempts,
            best_so_far=self.best_so_far,
        )


def addressees(models: Sequence[ServedModel], request: SolveRequest) -> list[ServedModel]:
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


def question_from(models: Sequence[ServedModel], request: SolveRequest) -> Question:
    """Parse and encode for the first of these models that reads the puzzle.

    Refuses with 422 that names field, rule and cell: that of the model which got far enough to name a cell. Takes up
    to some 50 ms of CPU.
    """
    errors: list[PuzzleError] = []
    for model in models:
        try:
            return _question(model, model.puzzle.parse(request.puzzle), request)
        except PuzzleError as error:
            errors.append(error)
    raise bad_puzzle(max(errors, key=lambda error: error.cell is not None))


def _question(model: ServedModel, parsed: Parsed, request: SolveRequest) -> Question:
    return Question(
        model=model,
        parsed=parsed,
        tokens_T=model.puzzle.encode(parsed.grid),
        puzzle_id=_puzzle_id(model, parsed),
        policy=_policy(model, request),
        num_attempts=_num_attempts(model, request),
        best_so_far=_best_so_far(request),
    )


def answer_from(question: Question, conclusion: Conclusion) -> SolveAnswer:
    """The answer in the notation of the question."""
    model, result = question.model, conclusion.result
    if result.answer_T is None:
        raise engine_failed()
    proven = result.verified is True
    return SolveAnswer(
        solution=solution_of(question, result.answer_T),
        solved=proven if model.puzzle.proof_exists else result.halted_by == "learned",
        verified=result.verified,
        segments=result.segments,
        halted_by=result.halted_by,
        margin=result.margin,
        queue_ms=round(1000 * result.queue_s, 3),
        compute_ms=round(1000 * result.compute_s, 3),
        model=model.name,
        attempts=conclusion.num_attempts,
        total_segments=conclusion.total_segments,
        votes=conclusion.votes,
    )


def solution_of(question: Question, answer_T: NDArray[np.int32]) -> object:
    puzzle = question.model.puzzle
    return puzzle.write(puzzle.decode(answer_T), question.parsed.notation)


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


def _best_so_far(request: SolveRequest) -> bool:
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
    kind = request.policy or model.manifest.halting.policy
    if kind == "verified" and not model.puzzle.proof_exists:
        raise invalid(
            "no-proof-exists",
            f"an answer to {model.puzzle.name!r} cannot be proven",
            "use the policy 'learned' or 'fixed'",
            field="policy",
        )
    threshold = model.manifest.halting_policy(model.precision).threshold
    return HaltingPolicy(kind=kind, threshold=threshold, max_segments=num_segments)
