"""Between notation and tokens: the one place where the server turns a request into a question, and a result back.

Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.lane import Result
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.manifest import Manifest
from hrm_edge_runtime.service.errors import ServiceError, bad_puzzle, engine_failed, invalid
from hrm_edge_runtime.service.schema import HaltingView, ModelView, SolveAnswer, SolveRequest
from hrm_puzzles.puzzle import Parsed, Puzzle, PuzzleError


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedModel:
    """One model as the HTTP process knows it: everything but the engine."""

    manifest: Manifest
    puzzle: Puzzle
    precision: str
    num_slots: int
    puzzle_ids: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, bundle: Bundle, *, precision: str, num_slots: int) -> ServedModel:
        return cls(
            manifest=bundle.manifest,
            puzzle=bundle.puzzle,
            precision=precision,
            num_slots=num_slots,
            puzzle_ids={name: row for row, name in enumerate(bundle.identifiers)},
        )

    @property
    def name(self) -> str:
        return self.manifest.name

    def view(self) -> ModelView:
        manifest = self.manifest
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
            slots=self.num_slots,
            provenance=manifest.provenance,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Question:
    """A puzzle ready for the engine; `parsed` remembers how it was asked, `puzzle_id` is its row in the table."""

    parsed: Parsed
    tokens_T: NDArray[np.int32]
    puzzle_id: int
    policy: HaltingPolicy


def check_addressee(model: ServedModel, request: SolveRequest) -> None:
    """Refuse what is not for this model: 404 for another model's name, 422 for another kind of puzzle."""
    if request.model not in (None, model.name):
        raise ServiceError(
            404,
            "unknown-model",
            f"there is no model {request.model!r} here",
            f"use {model.name!r}, or leave the field out",
            field="model",
        )
    if request.kind not in (None, model.puzzle.name):
        raise invalid(
            "unknown-kind",
            f"no model here solves {request.kind!r}",
            f"use {model.puzzle.name!r}, or leave the field out",
            field="kind",
        )


def question_from(model: ServedModel, request: SolveRequest) -> Question:
    """Parse and encode; refuses with 422 that names field, rule and cell. Takes up to some 50 ms of CPU."""
    policy = _policy(model, request)
    try:
        parsed = model.puzzle.parse(request.puzzle)
    except PuzzleError as error:
        raise bad_puzzle(error) from None
    tokens_T = model.puzzle.encode(parsed.grid)
    return Question(parsed=parsed, tokens_T=tokens_T, puzzle_id=_puzzle_id(model, parsed), policy=policy)


def answer_from(model: ServedModel, question: Question, result: Result) -> SolveAnswer:
    """The answer in the notation of the question."""
    if result.answer_T is None:
        raise engine_failed()
    proven = result.verified is True
    return SolveAnswer(
        solution=model.puzzle.write(model.puzzle.decode(result.answer_T), question.parsed.notation),
        solved=proven if model.puzzle.proof_exists else result.halted_by == "learned",
        verified=result.verified,
        segments=result.segments,
        halted_by=result.halted_by,
        margin=result.margin,
        queue_ms=round(1000 * result.queue_s, 3),
        compute_ms=round(1000 * result.compute_s, 3),
        model=model.name,
    )


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
    return HaltingPolicy(kind=kind, threshold=model.manifest.halting.threshold, max_segments=num_segments)
