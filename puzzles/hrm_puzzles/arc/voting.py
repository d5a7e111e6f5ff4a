"""Scoring ARC as published: answers to all variants of a test input, turned back, vote for one grid; pass@k.

A prediction is the answer to one variant with the model's halting value; `ballot` ranks equal grids. pass@k asks
whether the answer is among the first k grids.
Shapes: T tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import grid_at
from hrm_puzzles.arc.variants import variant_of
from hrm_puzzles.puzzle import Grid, IntArray
from hrm_puzzles.voting import Ballot

TRIALS = (1, 2, 10, 100, 1000)  # the published values of k; ARC itself allows two attempts

TestInput = tuple[str, bytes]  # a task, and one of its test inputs as a key


@runtime_checkable
class Voting(Protocol):
    """What a puzzle offers whose variants vote for one answer."""

    def pass_at(
        self,
        names: Sequence[str],
        inputs_NT: IntArray,
        labels_NT: IntArray,
        answers_NT: IntArray,
        q_halt_N: NDArray[np.floating],
    ) -> dict[int, float]:
        """For each k of TRIALS the share of tasks whose answer is among the first k grids voted for."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The model's answer to the test input `question_T` of the variant `name`, both as canvases."""

    name: str
    question_T: IntArray
    answer_T: IntArray
    q_halt: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A grid that was voted for; `confidence` is the mean sigmoid of its voters' halting values."""

    grid: Grid
    votes: int
    confidence: float


def votes(predictions: Iterable[Prediction], side: int) -> dict[TestInput, list[Candidate]]:
    """For each test input of each task the grids answered to its variants, the best first."""
    ballots: dict[TestInput, tuple[Ballot, dict[Hashable, Grid]]] = {}
    for prediction in predictions:
        task, variant = variant_of(prediction.name)
        question = variant.invert(grid_at(prediction.question_T, side))
        answer = variant.invert(grid_at(prediction.answer_T, side))
        ballot, grids = ballots.setdefault((task, grid_key(question)), (Ballot(), {}))
        ballot.cast(grid_key(answer), prediction.q_halt)
        grids.setdefault(grid_key(answer), answer)
    return {test_input: _ranked(ballot, grids) for test_input, (ballot, grids) in ballots.items()}


def answers_of(names: Iterable[str], inputs_NT: IntArray, labels_NT: IntArray, side: int) -> dict[TestInput, Grid]:
    """The answer to each test input of a split, whichever of its variants stand there; each row has a name."""
    answers: dict[TestInput, Grid] = {}
    for name, question_T, label_T in zip(names, inputs_NT, labels_NT, strict=True):
        task, variant = variant_of(name)
        question, answer = (variant.invert(grid_at(tokens_T, side)) for tokens_T in (question_T, label_T))
        answers[task, grid_key(question)] = answer
    return answers


def pass_at(
    ranked: Mapping[TestInput, Sequence[Candidate]],
    answers: Mapping[TestInput, Grid],
    trials: Sequence[int] = TRIALS,
) -> dict[int, float]:
    """For each k the share of tasks all of whose test inputs have their answer among the first k grids.

    Test inputs without a prediction count as missed; an empty set of answers scores 0.
    """
    return {k: float(np.mean(list(_solved(ranked, answers, k).values()) or [0.0])) for k in trials}


def grid_key(grid: Grid) -> bytes:
    """The same bytes for equal grids, others for others."""
    return bytes(grid.shape) + np.ascontiguousarray(grid, dtype=np.int8).tobytes()


def _solved(
    ranked: Mapping[TestInput, Sequence[Candidate]], answers: Mapping[TestInput, Grid], k: int
) -> dict[str, bool]:
    """Which tasks are solved within k attempts at each of their test inputs."""
    solved: dict[str, bool] = {}
    for test_input, answer in answers.items():
        found = any(np.array_equal(candidate.grid, answer) for candidate in ranked.get(test_input, [])[:k])
        solved[test_input[0]] = solved.get(test_input[0], True) and found
    return solved


def _ranked(ballot: Ballot, grids: Mapping[Hashable, Grid]) -> list[Candidate]:
    ranks = [(key, *ballot.rank(key)) for key in ballot.ranked()]
    return [Candidate(grid=grids[key], votes=votes, confidence=confidence) for key, votes, confidence in ranks]
