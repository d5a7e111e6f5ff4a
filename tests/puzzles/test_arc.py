"""ARC: canvases, questions, variants that are undone exactly, and voting over them."""

import json
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from puzzle_tools import random_pairs

from hrm_puzzles.arc.arc import TRIALS, Arc, ArcSymmetry
from hrm_puzzles.arc.canvas import canvas_T, grid_at
from hrm_puzzles.arc.variants import Variant, random_variant, turned, variant_of, variants_of
from hrm_puzzles.puzzle import UNKNOWN, Grid, PuzzleError

SIDE = 10
SMALL = Arc(name="arc-10x10", side=SIDE)
IGNORE = -100
TASK = "00d62c1b"
ROWS = [[0, 1], [2, 3], [4, 5]]
unhurried = settings(max_examples=50)


@st.composite
def grids(draw: st.DrawFn, side: int = SIDE) -> Grid:
    height = draw(st.integers(1, side))
    width = draw(st.integers(1, side))
    num_cells = height * width
    cells = draw(st.lists(st.integers(0, 9), min_size=num_cells, max_size=num_cells))
    return np.array(cells, dtype=np.int8).reshape(height, width)


@st.composite
def variants(draw: st.DrawFn) -> Variant:
    turn = draw(st.integers(0, 7))
    others = draw(st.permutations(range(1, 10)))
    return Variant(turn=turn, colors=(0, *others))


def grid(rows: list[list[int]]) -> Grid:
    return np.array(rows, dtype=np.int8)


def encoded(grids: list[Grid]) -> NDArray[np.int32]:
    return np.stack([SMALL.encode(one) for one in grids])


def test_a_canvas_has_end_marks_below_the_grid_and_beside_it():
    tokens_T = canvas_T(grid([[1, 0, 2], [3, 4, 9]]), 4)
    assert tokens_T.reshape(4, 4).tolist() == [
        [3, 2, 4, 1],
        [5, 6, 11, 1],
        [1, 1, 1, 0],
        [0, 0, 0, 0],
    ]
    tokens_T = canvas_T(grid([[7]]), 3, (2, 1))
    assert tokens_T.reshape(3, 3).tolist() == [[0, 0, 0], [0, 0, 0], [0, 9, 1]]


def largest_box(canvas: NDArray[np.int64]) -> NDArray[np.int64]:
    """The largest box of colors at the corner, by trying all of them."""
    best = canvas[:0, :0]
    for height in range(1, 5):
        for width in range(1, 5):
            box = canvas[:height, :width]
            is_full = ((box >= 2) & (box <= 11)).all()
            if is_full and box.size > best.size:
                best = box
    return best


@given(st.lists(st.integers(-3, 14), min_size=16, max_size=16))
def test_garbage_decodes_to_the_largest_box_of_colors_as_published(tokens: list[int]):
    tokens_T = np.array(tokens)
    expected = largest_box(tokens_T.reshape(4, 4)) - 2
    assert np.array_equal(grid_at(tokens_T, 4), expected)


def test_a_broken_canvas_is_malformed():
    good = SMALL.encode(np.ones((3, 4), dtype=np.int8))
    broken = np.stack([good] * 4)
    broken[0, 44] = 5  # a color beside the grid
    broken[1, 4] = 0  # a missing end mark
    broken[2, 11] = 1  # a hole
    broken[3] = 0
    assert SMALL.is_well_formed_B(broken).tolist() == [False] * 4


@pytest.mark.parametrize(
    "asked",
    [
        {"id": TASK, "train": [], "test": [{"input": [[9]]}, {"input": ROWS}], "index": 1},
        {"name": TASK, "test": [{"input": ROWS, "output": [[1]]}]},
    ],
)
def test_every_form_of_a_question_is_read(asked: dict[str, object]):
    for notation in (asked, json.dumps(asked)):
        parsed = SMALL.parse(notation)
        assert parsed.identifier == TASK
        assert parsed.grid.tolist() == ROWS


def test_turns_and_names_are_the_published_ones():
    square = grid([[1, 2], [3, 4]])
    images = [turned(square, turn).reshape(-1).tolist() for turn in range(8)]
    assert images[:4] == [[1, 2, 3, 4], [2, 4, 1, 3], [4, 3, 2, 1], [3, 1, 4, 2]]
    assert images[4:] == [[2, 1, 4, 3], [3, 4, 1, 2], [1, 3, 2, 4], [4, 2, 3, 1]]
    variant = Variant(turn=3, colors=(0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    assert variant.name("a_b") == "a_b_t3_0213456789"
    assert variant_of("a_b_t3_0213456789") == ("a_b", variant)
    assert variant_of("a_b|||t3|||0213456789") == ("a_b", variant)
    assert variant_of("a_b_t3_0013456789") == ("a_b_t3_0013456789", Variant())


@given(grids(side=6), grids(side=6), variants(), st.integers(0, 4), st.integers(0, 4))
def test_symmetry_is_undone(one: Grid, other: Grid, variant: Variant, top: int, left: int):
    one_T = canvas_T(one, SIDE, (top, left))
    other_T = canvas_T(other, SIDE, (left, top))
    tokens_BT = np.stack([one_T, other_T])
    symmetry = ArcSymmetry(side=SIDE, variant=variant)
    image_BT = symmetry.apply(tokens_BT)
    assert SMALL.is_well_formed_B(image_BT).all()
    assert np.array_equal(SMALL.decode(image_BT[0]), variant.apply(one))
    assert np.array_equal(symmetry.invert(image_BT), tokens_BT)


def test_different_pairs_have_different_equivalence_hashes():
    pairs = random_pairs(np.random.default_rng(0), 200, side=4)
    inputs_BT = encoded([grid(pair["input"]) for pair in pairs])
    labels_BT = encoded([grid(pair["output"]) for pair in pairs])
    hash_B = SMALL.equivalence_hash_B(inputs_BT, labels_BT)
    assert len(np.unique(hash_B)) >= 195  # a few small pairs are alike
    assert not (hash_B == SMALL.equivalence_hash_B(labels_BT, inputs_BT)).all()


@unhurried
@given(grids(), grids(), st.integers(0, 9999), variants())
@example(np.zeros((9, 9), np.int8), np.zeros((9, 10), np.int8), 0, Variant())  # no pad beside it
def test_training_moves_both_grids_alike_and_variants_share_a_hash(
    question: Grid, answer: Grid, seed: int, variant: Variant
):
    inputs_BT = encoded([question] * 8)
    labels_BT = encoded([answer] * 8)
    labels_BT[labels_BT == 0] = IGNORE
    moved_BT, targets_BT = SMALL.augment_BT(np.random.default_rng(seed), inputs_BT, labels_BT)
    for question_T, target_T in zip(moved_BT, targets_BT, strict=True):
        assert np.array_equal(SMALL.decode(question_T), question)
        assert np.array_equal(SMALL.decode(target_T), answer)
        assert np.argmax(question_T >= 2) == np.argmax(target_T >= 2)
        assert set(target_T[target_T < 2]) <= {1, IGNORE}
    assert SMALL.is_well_formed_B(moved_BT).all()
    padded_BT = np.where(targets_BT == IGNORE, 0, targets_BT)
    assert SMALL.is_well_formed_B(padded_BT).all()
    image_BT = encoded([variant.apply(question)])
    image_labels_BT = encoded([variant.apply(answer)])
    image_hash_B = SMALL.equivalence_hash_B(image_BT, image_labels_BT)
    assert (SMALL.equivalence_hash_B(moved_BT, padded_BT) == image_hash_B).all()


def test_training_reaches_every_place_that_fits():
    tokens_BT = encoded([np.ones((8, 9), dtype=np.int8)] * 200)
    moved_BT, _ = SMALL.augment_BT(np.random.default_rng(0), tokens_BT, tokens_BT)
    assert set(np.argmax(moved_BT >= 2, axis=1)) == {0, 1, 10, 11, 20, 21}


def test_a_task_has_no_more_variants_than_look_different():
    rng = np.random.default_rng(0)
    plain = np.zeros((2, 2), dtype=np.int8)
    ones = np.ones((2, 2), dtype=np.int8)
    crossed = grid([[1, 0], [0, 0]])
    assert variants_of([(plain, plain)], 50, rng) == [Variant()]
    assert len(variants_of([(plain, ones)], 50, rng)) == 9  # one color, nine names for it
    assert len(variants_of([(crossed, plain)], 100, rng)) == 36  # four corners, nine colors


def test_nothing_is_proven_or_generated():
    rng = np.random.default_rng(0)
    tokens_BT = encoded([np.ones((2, 2), dtype=np.int8)])
    assert SMALL.check_BT(tokens_BT, tokens_BT).tolist() == [UNKNOWN]
    assert not SMALL.proof_exists
    with pytest.raises(PuzzleError, match="hrm-data build arc-10x10"):
        SMALL.generate(rng, "easy")


QUESTION = np.array([[1, 2], [3, 0]], dtype=np.int8)
RIGHT = np.array([[4, 4, 0]], dtype=np.int8)
OTHER = np.array([[4, 5, 0]], dtype=np.int8)
THIRD = np.array([[9]], dtype=np.int8)
UNCHANGED = Variant()


class Vote(NamedTuple):
    """An answer to a variant of a test input whose right answer is RIGHT."""

    answer: Grid
    q_halt: float = 0.0
    variant: Variant = UNCHANGED
    task: str = "t"
    question: Grid = QUESTION

    def tokens(self, grid: Grid) -> np.ndarray:
        return SMALL.encode(self.variant.apply(grid))


right = partial(Vote, RIGHT)
other = partial(Vote, OTHER)


def scored(*votes: Vote) -> list[float]:
    """pass@1, pass@2 and pass@10."""
    names = [vote.variant.name(vote.task) for vote in votes]
    questions = np.stack([vote.tokens(vote.question) for vote in votes])
    labels = np.stack([vote.tokens(RIGHT) for vote in votes])
    answers = np.stack([vote.tokens(vote.answer) for vote in votes])
    q_halts = np.array([vote.q_halt for vote in votes])
    shares = SMALL.pass_at(names, questions, labels, answers, q_halts)
    assert tuple(shares) == TRIALS
    return list(shares.values())[:3]


@given(st.integers(0, 99999))
def test_votes_of_all_variants_come_before_trust_and_trust_before_order(seed: int):
    rng = np.random.default_rng(seed)
    sure = other(9.0, random_variant(rng))
    unsure = Vote(answer=THIRD, q_halt=-9.0, variant=random_variant(rng))
    two_votes = [right(-5.0, random_variant(rng)) for _ in range(2)]
    assert scored(sure, unsure, *two_votes) == [1, 1, 1]
    assert scored(sure, right(-5.0), unsure) == [0, 1, 1]
    assert scored(sure, unsure, right(-9.5)) == [0, 0, 1]
    assert scored(other(), right()) == [0, 1, 1]


def test_garbage_and_no_answers_spoil_nothing():
    inputs = np.stack([SMALL.encode(QUESTION)] * 2)
    labels = np.stack([SMALL.encode(RIGHT)] * 2)
    garbage = np.ones(100, np.int32)
    answers = np.stack([garbage, SMALL.encode(RIGHT)])
    shares = SMALL.pass_at(["t", "t"], inputs, labels, answers, np.array([800.0, 1.0]))
    assert shares[2] == 1.0
    nothing = np.zeros((0, 100), np.int32)
    shares = SMALL.pass_at([], nothing, nothing, nothing, np.zeros(0))
    assert set(shares.values()) == {0.0}


def test_a_task_is_solved_when_all_of_its_test_inputs_are():
    second = np.array([[7]], dtype=np.int8)
    second_other = other(1.0, question=second)
    second_right = right(question=second)
    half = (right(), second_other, second_right)
    assert scored(*half) == [0, 1, 1]
    assert scored(*half, other(task="u")) == [0, 0.5, 0.5]
