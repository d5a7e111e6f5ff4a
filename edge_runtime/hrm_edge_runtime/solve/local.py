"""Solve puzzles from a bundle in this process, without a server: the same parsing, attempts and answers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hrm_edge_runtime.batching.attempts import Attempts
from hrm_edge_runtime.batching.task import Conclusion
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.engines.factory import Choice, engine_for
from hrm_edge_runtime.http.errors import ServiceError, engine_failed
from hrm_edge_runtime.http.parse_task import Question, answer_from, question_from
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.http.served_model import ServedModel

Outcome = SolveAnswer | ServiceError
MAX_ATTEMPTS = 1024  # nobody else waits here


@dataclass(frozen=True, kw_only=True)
class OfflineSolver:
    """A bundle and how to run it."""

    bundle: Bundle
    choice: Choice
    num_slots: int = 4
    num_threads: int | None = None

    def solve_all(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Outcome]]:
        """Each request's position and its outcome, as they finish; a refused puzzle is an outcome like any other.

        A request's `attempts` and `max_segments` say how hard to try, its answer's `total_segments` what that cost.
        """
        engine = engine_for(
            self.bundle,
            engine=self.choice.engine,
            precision=self.choice.precision,
            num_slots=self.num_slots,
            num_threads=self.num_threads,
        )
        model = ServedModel.of(
            self.bundle, precision=self.choice.precision, num_slots=self.num_slots, max_attempts=MAX_ATTEMPTS
        )
        lane = Attempts(
            engine,
            self.bundle.puzzle,
            self.bundle.puzzle_table,
            queue_limit=self.num_slots,
            max_attempts=MAX_ATTEMPTS,
            identifiers=self.bundle.identifiers,
        )
        try:
            yield from _Run(model, lane).all(requests)
        finally:
            engine.close()


class _Run:
    def __init__(self, model: ServedModel, lane: Attempts) -> None:
        self._model = model
        self._lane = lane
        self._questions: dict[int, Question] = {}

    def all(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Outcome]]:
        for position, request in enumerate(requests):
            while len(self._questions) >= 2 * self._model.num_slots:  # a full lane with its successors in line
                yield from self._step()
            try:
                question = question_from([self._model], request)
            except ServiceError as refusal:
                yield position, refusal
            else:
                self._questions[position] = question
                self._lane.submit(question.ask(task_id=position, arrival_s=time.monotonic()))
        while self._questions:
            yield from self._step()

    def _step(self) -> Iterator[tuple[int, Outcome]]:
        for conclusion in self._lane.step().conclusions:
            yield conclusion.task_id, _outcome(self._questions.pop(conclusion.task_id), conclusion)


def _outcome(question: Question, conclusion: Conclusion) -> Outcome:
    return engine_failed() if conclusion.result.answer_T is None else answer_from(question, conclusion)
