"""Voting over variants: answers are turned back, counted, ranked by votes and then by confidence; pass@k."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.canvas import Variant, random_variant
from hrm_puzzles.puzzle import Grid
from hrm_puzzles.voting import Candidate, Prediction, answers_of, grid_key, pass_at, votes

SIDE = 10
PUZZLE = Arc(name="arc-10x10", side=SIDE)
QUESTION = np.array([[1, 2], [3, 0]], dtype=np.int8)
RIGHT = np.array([[4, 4, 0]], dtype=np.int8)
OTHER = np.array([[4, 5, 0]], dtype=np.int8)


def asked(answer: Grid, variant: Variant, q_halt: float, task: str = "t", question: Grid = QUESTION) -> Prediction:
    question_T, answer_T = (PUZZLE.encode(variant.apply(grid)) for grid in (question, answer))
    return Prediction(name=variant.name(task), question_T=question_T, answer_T=answer_T, q_halt=q_halt)


@given(st.integers(0, 99999))
def test_answers_to_all_variants_vote_for_one_grid(seed: int) -> None:
    rng = np.random.default_rng(seed)
    predictions = [asked(RIGHT, random_variant(rng), 0.0) for _ in range(5)]
    ranked = votes(predictions, SIDE)
    (candidate,) = ranked["t", grid_key(QUESTION)]
    assert np.array_equal(candidate.grid, RIGHT)
    assert (candidate.votes, candidate.confidence) == (5, 0.5)


def test_votes_come_before_confidence_and_confidence_before_order() -> None:
    rng = np.random.default_rng(0)
    third = np.array([[9]], dtype=np.int8)
    predictions = [asked(OTHER, random_variant(rng), 9.0), asked(third, random_variant(rng), -9.0)]
    predictions += [asked(RIGHT, random_variant(rng), -5.0), asked(RIGHT, random_variant(rng), -5.0)]
    (ranked,) = votes(predictions, SIDE).values()
    assert [candidate.grid.tolist() for candidate in ranked] == [RIGHT.tolist(), OTHER.tolist(), third.tolist()]


def test_garbage_votes_for_the_empty_grid_and_spoils_nothing() -> None:
    garbage = Prediction(name="t", question_T=PUZZLE.encode(QUESTION), answer_T=np.ones(100), q_halt=800.0)
    (ranked,) = votes([asked(RIGHT, Variant(), 1.0), garbage], SIDE).values()
    assert sorted(candidate.grid.size for candidate in ranked) == [0, 3]


def test_a_task_is_solved_when_all_of_its_test_inputs_are() -> None:
    second = np.array([[7]], dtype=np.int8)
    answers = {("t", grid_key(QUESTION)): RIGHT, ("t", grid_key(second)): OTHER, ("u", grid_key(QUESTION)): OTHER}
    first, other = (Candidate(grid=grid, votes=1, confidence=0.5) for grid in (RIGHT, OTHER))
    ranked = {("t", grid_key(QUESTION)): [first], ("t", grid_key(second)): [first, other]}
    assert pass_at(ranked, answers, (1, 2)) == {1: 0.0, 2: 0.5}
    assert pass_at({}, answers, (1,)) == {1: 0.0}
    assert pass_at({}, {}, (1,)) == {1: 0.0}


def test_answers_are_the_labels_turned_back() -> None:
    rng = np.random.default_rng(0)
    rows = [asked(RIGHT, random_variant(rng), 0.0) for _ in range(4)]
    inputs_NT, labels_NT = np.stack([row.question_T for row in rows]), np.stack([row.answer_T for row in rows])
    answers = answers_of([row.name for row in rows], inputs_NT, labels_NT, SIDE)
    assert list(answers) == [("t", grid_key(QUESTION))]
    assert np.array_equal(answers["t", grid_key(QUESTION)], RIGHT)
    assert pass_at(votes(rows, SIDE), answers)[2] == 1.0
