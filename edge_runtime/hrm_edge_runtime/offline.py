"""Solve puzzles from a bundle in this process, without a server: the same parsing, lane and answers.

Shapes: P rows of the puzzle table, T tokens, E puzzle-vector size.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hrm_edge_runtime.batching.lane import Lane, Result
from hrm_edge_runtime.batching.scheduler import Job
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.service.errors import ServiceError, engine_failed
from hrm_edge_runtime.service.questions import Question, ServedModel, answer_from, question_from
from hrm_edge_runtime.service.schema import SolveAnswer, SolveRequest

Outcome = SolveAnswer | ServiceError


@dataclass(frozen=True, kw_only=True)
class OfflineSolver:
    """A bundle and how to run it."""

    bundle: Bundle
    choice: Choice
    num_slots: int = 4
    num_threads: int | None = None

    def solve_all(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Outcome]]:
        """Each request's position and its outcome, as they finish; a refused puzzle is an outcome like any other."""
        engine = engine_for(
            self.bundle,
            engine=self.choice.engine,
            precision=self.choice.precision,
            num_slots=self.num_slots,
            num_threads=self.num_threads,
        )
        model = ServedModel.of(self.bundle, precision=self.choice.precision, num_slots=self.num_slots)
        try:
            yield from _Run(model, Lane(engine, self.bundle.puzzle, queue_limit=self.num_slots), self.bundle).all(
                requests
            )
        finally:
            engine.close()


class _Run:
    def __init__(self, model: ServedModel, lane: Lane, bundle: Bundle) -> None:
        self._model = model
        self._lane = lane
        self._puzzle_table_PE = bundle.puzzle_table
        self._questions: dict[int, Question] = {}

    def all(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Outcome]]:
        for position, request in enumerate(requests):
            while len(self._questions) >= 2 * self._model.num_slots:  # a full lane with its successors in line
                yield from self._step()
            try:
                self._submit(position, question_from(self._model, request))
            except ServiceError as refusal:
                yield position, refusal
        while self._questions:
            yield from self._step()

    def _submit(self, position: int, question: Question) -> None:
        self._questions[position] = question
        self._lane.submit(
            Job(
                job_id=position,
                tokens_T=question.tokens_T,
                puzzle_vector_E=self._puzzle_table_PE[question.puzzle_id],
                policy=question.policy,
                arrival_s=time.monotonic(),
            )
        )

    def _step(self) -> Iterator[tuple[int, Outcome]]:
        for result in self._lane.step():
            yield result.job_id, self._outcome(self._questions.pop(result.job_id), result)

    def _outcome(self, question: Question, result: Result) -> Outcome:
        return engine_failed() if result.answer_T is None else answer_from(self._model, question, result)
