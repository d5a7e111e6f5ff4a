"""Voting over variants: answers are turned back, counted and ranked, by votes and then by trust."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hrm_puzzles.arc.arc import TRIALS, Arc
from hrm_puzzles.arc.variants import Variant, random_variant
from hrm_puzzles.puzzle import Grid

PUZZLE = Arc(name="arc-10x10", side=10)
QUESTION = np.array([[1, 2], [3, 0]], dtype=np.int8)
RIGHT = np.array([[4, 4, 0]], dtype=np.int8)
OTHER = np.array([[4, 5, 0]], dtype=np.int8)
THIRD = np.array([[9]], dtype=np.int8)
UNCHANGED = Variant()


@dataclass(frozen=True, kw_only=True, eq=False)
class Vote:
    """An answer to a variant of a test input whose right answer is RIGHT."""

    answer: Grid
    q_halt: float = 0.0
    variant: Variant = UNCHANGED
    task: str = "t"
    question: Grid = field(default_factory=lambda: QUESTION)

    def tokens(self, grid: Grid) -> np.ndarray:
        return PUZZLE.encode(self.variant.apply(grid))


def right(q_halt: float = 0.0, variant: Variant = UNCHANGED) -> Vote:
    return Vote(answer=RIGHT, q_halt=q_halt, variant=variant)


def other(q_halt: float = 0.0, variant: Variant = UNCHANGED) -> Vote:
    return Vote(answer=OTHER, q_halt=q_halt, variant=variant)


def scored(*votes: Vote) -> list[float]:
    """pass@1, pass@2 and pass@10."""
    names = [vote.variant.name(vote.task) for vote in votes]
    questions = np.stack([vote.tokens(vote.question) for vote in votes])
    labels = np.stack([vote.tokens(RIGHT) for vote in votes])
    answers = np.stack([vote.tokens(vote.answer) for vote in votes])
    q_halts = np.array([vote.q_halt for vote in votes])
    shares = PUZZLE.pass_at(names, questions, labels, answers, q_halts)
    assert tuple(shares) == TRIALS
    return list(shares.values())[:3]


@given(st.integers(0, 99999))
def test_answers_to_all_variants_vote_for_one_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rights = [right(variant=random_variant(rng)) for _ in range(3)]
    assert scored(*rights, other(9.0), other(9.0)) == [1, 1, 1]


def test_votes_come_before_trust_and_trust_before_order() -> None:
    rng = np.random.default_rng(0)
    sure = other(9.0, random_variant(rng))
    unsure = Vote(answer=THIRD, q_halt=-9.0, variant=random_variant(rng))
    two_votes = [right(-5.0, random_variant(rng)) for _ in range(2)]
    assert scored(sure, unsure, *two_votes) == [1, 1, 1]
    assert scored(sure, right(-5.0), unsure) == [0, 1, 1]
    assert scored(sure, unsure, right(-9.5)) == [0, 0, 1]
    assert scored(other(), right()) == [0, 1, 1]


def test_garbage_votes_for_the_empty_grid_and_spoils_nothing() -> None:
    inputs = np.stack([PUZZLE.encode(QUESTION)] * 2)
    labels = np.stack([PUZZLE.encode(RIGHT)] * 2)
    garbage = np.ones(100, np.int32)
    answers = np.stack([garbage, PUZZLE.encode(RIGHT)])
    shares = PUZZLE.pass_at(["t", "t"], inputs, labels, answers, np.array([800.0, 1.0]))
    assert shares[2] == 1.0


def test_no_answers_score_nothing() -> None:
    nothing = np.zeros((0, 100), np.int32)
    shares = PUZZLE.pass_at([], nothing, nothing, nothing, np.zeros(0))
    assert set(shares.values()) == {0.0}


def test_a_task_is_solved_when_all_of_its_test_inputs_are() -> None:
    second = np.array([[7]], dtype=np.int8)
    second_other = Vote(answer=OTHER, q_halt=1.0, question=second)
    second_right = Vote(answer=RIGHT, question=second)
    half = (right(), second_other, second_right)
    assert scored(*half) == [0, 1, 1]
    assert scored(*half, Vote(answer=OTHER, task="u")) == [0, 0.5, 0.5]
