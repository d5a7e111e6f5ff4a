"""Laws of every puzzle with a proof.

They cover the check, symmetries, the curriculum, equivalence and generation.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hrm_puzzles import registry
from hrm_puzzles.logistics import Logistics
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import RIGHT, WRONG, Puzzle, PuzzleError

PUZZLES: list[Puzzle] = [
    registry.get("sudoku-4x4"),
    registry.get("sudoku-6x6"),
    registry.get("sudoku"),
    Maze(name="maze-4x4", rows=4, cols=4),
    Maze(name="maze-6x9", rows=6, cols=9),
    Logistics(name="logistics-5x8", rows=5, cols=8),
    Logistics(name="logistics-6x6", rows=6, cols=6),
]
LARGEST = PUZZLES[2::2]  # of each kind
each = pytest.mark.parametrize("puzzle", PUZZLES, ids=lambda puzzle: puzzle.name)
largest = pytest.mark.parametrize("puzzle", LARGEST, ids=lambda puzzle: puzzle.name)
seeds = st.integers(min_value=0, max_value=2**32 - 1)
quick = settings(deadline=None, max_examples=8)


def examples(puzzle: Puzzle, seed: int, count: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Questions and answers of an easy or medium difficulty, as tokens."""
    rng = np.random.default_rng(seed)
    inputs: list[NDArray[np.int32]] = []
    labels: list[NDArray[np.int32]] = []
    for _ in range(count):
        difficulty = str(rng.choice(["easy", "medium"]))
        example = puzzle.generate(rng, difficulty)
        inputs.append(puzzle.encode(example.question))
        labels.append(puzzle.encode(example.answer))
    return np.stack(inputs), np.stack(labels)


@each
@given(seed=seeds, data=st.data())
@quick
def test_answer_with_any_one_cell_changed_is_wrong(
    puzzle: Puzzle, seed: int, data: st.DataObject
) -> None:
    inputs_BT, labels_BT = examples(puzzle, seed, 1)
    assert puzzle.check_BT(inputs_BT, labels_BT).tolist() == [RIGHT]
    cell = data.draw(st.integers(0, puzzle.seq_len - 1))
    label = int(labels_BT[0, cell])
    tokens = st.integers(-1, puzzle.vocab_size + 1)
    labels_BT[0, cell] = data.draw(tokens.filter(lambda token: token != label))
    assert puzzle.check_BT(inputs_BT, labels_BT).tolist() == [WRONG]


@each
def test_check_judges_each_row_by_itself(puzzle: Puzzle) -> None:
    inputs_BT, labels_BT = examples(puzzle, 2, 4)
    inputs_BT = np.resize(inputs_BT, (70, puzzle.seq_len))
    labels_BT = np.resize(labels_BT, (70, puzzle.seq_len))
    rows_B = np.arange(70)
    is_wrong_B = rows_B % 3 == 0
    answers_BT = labels_BT[rows_B ^ is_wrong_B]  # every third row gets the answer of another
    verdict_B = puzzle.check_BT(inputs_BT, answers_BT)
    assert verdict_B.dtype == np.int8
    assert verdict_B.tolist() == np.where(is_wrong_B, WRONG, RIGHT).tolist()
    for row in range(4):
        alone = puzzle.check_BT(inputs_BT[[row]], answers_BT[[row]])
        assert alone[0] == verdict_B[row]


@each
def test_rows_of_padding_are_wrong(puzzle: Puzzle) -> None:
    padding = np.zeros((2, puzzle.seq_len), dtype=int)
    assert puzzle.check_BT(padding, padding).tolist() == [WRONG, WRONG]


@each
def test_tokens_that_do_not_exist_decode_to_a_board(puzzle: Puzzle) -> None:
    tokens_T = np.resize([0, 1, puzzle.vocab_size, 10**6, -5], puzzle.seq_len)
    again_T = puzzle.encode(puzzle.decode(tokens_T))
    assert (again_T[tokens_T == 1] == 1).all()
    assert again_T.min() >= 1
    assert again_T.max() < puzzle.vocab_size


@each
@given(seed=seeds)
@quick
def test_inverse_of_a_symmetry_undoes_it(puzzle: Puzzle, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens_BT = rng.integers(0, puzzle.vocab_size, (3, puzzle.seq_len))
    symmetry = puzzle.symmetry(rng)
    assert (symmetry.invert(symmetry.apply(tokens_BT)) == tokens_BT).all()
    assert (symmetry.apply(symmetry.invert(tokens_BT)) == tokens_BT).all()


@each
@given(seed=seeds)
@quick
def test_verdicts_do_not_change_under_symmetry(puzzle: Puzzle, seed: int) -> None:
    inputs_BT, labels_BT = examples(puzzle, seed, 3)
    answers_BT = labels_BT[[0, 1, 0]]
    symmetry = puzzle.symmetry(np.random.default_rng(seed))
    verdict_B = puzzle.check_BT(inputs_BT, answers_BT)
    assert verdict_B[:2].tolist() == [RIGHT, RIGHT]
    moved_inputs_BT = symmetry.apply(inputs_BT)
    moved_answers_BT = symmetry.apply(answers_BT)
    assert (puzzle.check_BT(moved_inputs_BT, moved_answers_BT) == verdict_B).all()


@each
@given(seed=seeds, num_revealed=st.lists(st.integers(0, 99), min_size=3, max_size=3))
@quick
def test_turned_and_revealed_questions_keep_right_labels_and_their_number(
    puzzle: Puzzle, seed: int, num_revealed: list[int]
) -> None:
    inputs_BT, labels_BT = examples(puzzle, seed, 3)
    rng = np.random.default_rng(seed)
    turned_BT, turned_labels_BT = puzzle.augment_BT(rng, inputs_BT, labels_BT)
    assert turned_BT.dtype == turned_labels_BT.dtype == np.int32
    assert (puzzle.check_BT(turned_BT, turned_labels_BT) == RIGHT).all()
    num_open_B = (inputs_BT != labels_BT).sum(axis=1)
    assert ((turned_BT != turned_labels_BT).sum(axis=1) == num_open_B).all()
    hash_B = puzzle.equivalence_hash_B(inputs_BT, labels_BT)
    assert (hash_B == puzzle.equivalence_hash_B(turned_BT, turned_labels_BT)).all()
    shown_BT = puzzle.reveal_BT(rng, turned_BT, turned_labels_BT, np.array(num_revealed))
    is_new_BT = shown_BT != turned_BT
    assert (is_new_BT.sum(axis=1) == np.minimum(num_revealed, num_open_B)).all()
    assert (shown_BT[is_new_BT] == turned_labels_BT[is_new_BT]).all()
    assert (puzzle.check_BT(shown_BT, turned_labels_BT) == RIGHT).all()
    if not puzzle.name.startswith("sudoku"):  # the hash of a Sudoku depends on its givens
        assert (hash_B == puzzle.equivalence_hash_B(shown_BT, turned_labels_BT)).all()


@largest
def test_different_puzzles_have_different_equivalence_hashes(puzzle: Puzzle) -> None:
    inputs_BT, labels_BT = examples(puzzle, 0, 60)
    hash_B = puzzle.equivalence_hash_B(inputs_BT, labels_BT)
    assert len(np.unique(hash_B)) == 60


@largest
def test_same_seed_gives_the_same_puzzles(puzzle: Puzzle) -> None:
    inputs_BT, labels_BT = examples(puzzle, 9, 2)
    same_inputs_BT, same_labels_BT = examples(puzzle, 9, 2)
    assert (inputs_BT == same_inputs_BT).all()
    assert (labels_BT == same_labels_BT).all()


@largest
def test_unknown_difficulty_is_refused_with_the_known_names(puzzle: Puzzle) -> None:
    known = ", ".join(puzzle.difficulties)
    with pytest.raises(PuzzleError, match=f"use one of {known}") as caught:
        puzzle.generate(np.random.default_rng(0), "absurd")
    assert caught.value.rule == "unknown-difficulty"
