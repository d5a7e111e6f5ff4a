"""Votes for an answer where none can be proven, and the published score of ARC: pass@k.

Candidates are ranked as ARC is scored: by number of votes, then by the mean sigmoid of the voters' halting values.
Answers to all variants of a test input, turned back, vote for one grid; pass@k asks whether the answer is among the
first k grids.
Shapes: N answers, T tokens.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hrm_puzzles.arc.canvas import grid_at, variant_of
from hrm_puzzles.puzzle import Grid, IntArray

TRIALS = (1, 2, 10, 100, 1000)  # the published values of k; ARC itself allows two attempts

TestInput = tuple[str, bytes]  # a task, and one of its test inputs as a key


@dataclass(kw_only=True)
class Ballot:
    """The votes cast so far, by candidate."""

    _trusts: dict[Hashable, list[float]] = field(default_factory=dict[Hashable, list[float]])

    def cast(self, candidate: Hashable, q_halt: float) -> None:
        trust = 0.5 * (1 + math.tanh(q_halt / 2))  # a sigmoid that cannot overflow
        self._trusts.setdefault(candidate, []).append(trust)

    def votes(self, candidate: Hashable) -> int:
        return len(self._trusts.get(candidate, ()))

    def ranked(self) -> list[Hashable]:
        """All candidates, the best first; equals in the order in which they were first named."""
        return sorted(self._trusts, key=self.rank, reverse=True)

    def leader(self) -> Hashable | None:
        """Who would win now; None before the first vote."""
        return max(self._trusts, key=self.rank, default=None)

    def is_decided(self, num_to_come: int) -> bool:
        """Whether no number of votes to come can overtake the leader."""
        counts = sorted((len(trusts) for trusts in self._trusts.values()), reverse=True)
        first, second = (*counts, 0, 0)[:2]
        return first > second + num_to_come

    def rank(self, candidate: Hashable) -> tuple[int, float]:
        """Number of votes, and the mean trust of those who gave them."""
        trusts = self._trusts[candidate]
        return len(trusts), sum(trusts) / len(trusts)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prediction:
    """The model's answer to the test input `question_T` of the variant `name`, both as canvases."""

    name: str
    question_T: IntArray
    answer_T: IntArray
    q_halt: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidate:
    """A grid with votes; `confidence` is the mean sigmoid of its voters' halting values."""

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


def _ranked(ballot: Ballot, grids: Mapping[Hashable, Grid]) -> list[Candidate]:
    ranks = [(key, *ballot.rank(key)) for key in ballot.ranked()]
    return [Candidate(grid=grids[key], votes=votes, confidence=confidence) for key, votes, confidence in ranks]


def answers_of(names: Iterable[str], inputs_NT: IntArray, labels_NT: IntArray, side: int) -> dict[TestInput, Grid]:
    """The answer to each test input of a split, whichever of its variants the rows hold; each row has a name."""
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


def _solved(
    ranked: Mapping[TestInput, Sequence[Candidate]], answers: Mapping[TestInput, Grid], k: int
) -> dict[str, bool]:
    """Which tasks are solved within k attempts at each of their test inputs."""
    solved: dict[str, bool] = {}
    for test_input, answer in answers.items():
        found = any(np.array_equal(candidate.grid, answer) for candidate in ranked.get(test_input, [])[:k])
        solved[test_input[0]] = solved.get(test_input[0], True) and found
    return solved


def grid_key(grid: Grid) -> bytes:
    """Bytes that are the same for equal grids only."""
    return bytes(grid.shape) + np.ascontiguousarray(grid, dtype=np.int8).tobytes()
