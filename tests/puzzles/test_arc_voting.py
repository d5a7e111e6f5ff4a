"""Voting over variants: answers are turned back, counted, ranked by votes and then by confidence; pass@k."""

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

Vote = tuple[str, tuple[Grid, Grid, Grid], float]


def vote(
    answer: Grid, q_halt: float = 0.0, variant: Variant = Variant(), task: str = "t", question: Grid = QUESTION
) -> Vote:
    """An answer to a variant of a test input whose right answer is RIGHT."""
    return variant.name(task), (variant.apply(question), variant.apply(RIGHT), variant.apply(answer)), q_halt


def scored(*votes: Vote) -> list[float]:
    """pass@1, pass@2 and pass@10."""
    names, grids, q_halts = zip(*votes, strict=True)
    rows = (np.stack([PUZZLE.encode(grid) for grid in column]) for column in zip(*grids, strict=True))
    shares = PUZZLE.pass_at(names, *rows, np.array(q_halts))
    assert tuple(shares) == TRIALS
    return list(shares.values())[:3]


@given(st.integers(0, 99999))
def test_answers_to_all_variants_vote_for_one_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    right = [vote(RIGHT, 0.0, random_variant(rng)) for _ in range(3)]
    assert scored(*right, vote(OTHER, 9.0), vote(OTHER, 9.0)) == [1, 1, 1]


def test_votes_come_before_confidence_and_confidence_before_order() -> None:
    rng = np.random.default_rng(0)
    sure, unsure = (vote(OTHER, 9.0, random_variant(rng)), vote(THIRD, -9.0, random_variant(rng)))
    assert scored(sure, unsure, *(vote(RIGHT, -5.0, random_variant(rng)) for _ in range(2))) == [1, 1, 1]
    assert scored(sure, vote(RIGHT, -5.0), unsure) == [0, 1, 1]
    assert scored(sure, unsure, vote(RIGHT, -9.5)) == [0, 0, 1]
    assert scored(vote(OTHER), vote(RIGHT)) == [0, 1, 1]


def test_garbage_votes_for_the_empty_grid_and_spoils_nothing() -> None:
    inputs, labels = (np.stack([PUZZLE.encode(grid)] * 2) for grid in (QUESTION, RIGHT))
    answers = np.stack([np.ones(100, np.int32), PUZZLE.encode(RIGHT)])
    assert PUZZLE.pass_at(["t", "t"], inputs, labels, answers, np.array([800.0, 1.0]))[2] == 1.0


def test_a_task_is_solved_when_all_of_its_test_inputs_are() -> None:
    second = np.array([[7]], dtype=np.int8)
    half = (vote(RIGHT), vote(OTHER, 1.0, question=second), vote(RIGHT, question=second))
    assert scored(*half) == [0, 1, 1]
    assert scored(*half, vote(OTHER, task="u")) == [0, 0.5, 0.5]


def test_no_answers_score_nothing() -> None:
    nothing = np.zeros((0, 100), np.int32)
    assert set(PUZZLE.pass_at([], nothing, nothing, nothing, np.zeros(0)).values()) == {0.0}
