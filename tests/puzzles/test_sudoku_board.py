"""Sudoku tokens, the check, symmetries and the curriculum, on every board size."""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, WRONG, Puzzle, PuzzleError

SUDOKUS = [registry.get(name) for name in ("sudoku-4x4", "sudoku-6x6", "sudoku")]
each = pytest.mark.parametrize("puzzle", SUDOKUS, ids=[puzzle.name for puzzle in SUDOKUS])


def test_tokens_are_the_published_ones() -> None:
    puzzle = registry.get("sudoku")
    assert (puzzle.vocab_size, puzzle.seq_len, puzzle.num_puzzle_ids) == (11, 81, 1)
    grid = np.arange(81, dtype=np.int8).reshape(9, 9) % 10
    tokens_T = puzzle.encode(grid)
    assert tokens_T[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]
    assert (puzzle.decode(tokens_T) == grid).all()


@each
def test_tokens_that_stand_for_no_digit_decode_to_blanks(puzzle: Puzzle) -> None:
    tokens_T = np.resize(np.array([0, 1, 2, puzzle.vocab_size, 10**6, -5]), puzzle.seq_len)
    assert puzzle.decode(tokens_T).reshape(-1)[:6].tolist() == [0, 0, 1, 0, 0, 0]


@each
def test_a_board_has_three_partitions_into_equal_parts(puzzle: Puzzle) -> None:
    side = puzzle.vocab_size - 2
    for group_T in puzzle.groups_GT:
        assert np.bincount(group_T).tolist() == [side] * side


def test_boxes_of_6x6_are_two_rows_by_three_columns() -> None:
    box_T = registry.get("sudoku-6x6").groups_GT[2]
    assert box_T.reshape(6, 6)[:3].tolist() == [
        [0, 0, 0, 1, 1, 1],
        [0, 0, 0, 1, 1, 1],
        [2, 2, 2, 3, 3, 3],
    ]


@each
def test_full_board_that_drops_a_given_is_wrong(puzzle: Puzzle) -> None:
    labels_BT = puzzle.encode(puzzle.generate(np.random.default_rng(1), "medium").answer)[None]
    swapped_BT = np.where(
        labels_BT == 2, 3, np.where(labels_BT == 3, 2, labels_BT)
    )  # still a solved board
    assert puzzle.check_BT(np.ones_like(labels_BT), swapped_BT).tolist() == [RIGHT]
    assert puzzle.check_BT(labels_BT, swapped_BT).tolist() == [WRONG]


def test_latin_square_with_wrong_boxes_is_wrong() -> None:
    puzzle = registry.get("sudoku")
    latin = (np.arange(9)[:, None] + np.arange(9)) % 9 + 1
    assert puzzle.check_BT(
        np.ones((1, 81), dtype=int), puzzle.encode(latin.astype(np.int8))[None]
    ).tolist() == [WRONG]


@each
def test_symmetries_reach_every_cell_and_turn_only_square_boxes(puzzle: Puzzle) -> None:
    side = puzzle.vocab_size - 2
    first_row = np.zeros((1500, puzzle.seq_len), dtype=np.int32)
    first_row[:, 0] = 2
    first_row[:, 1] = 2
    moved_BT, _ = puzzle.augment_BT(np.random.default_rng(0), first_row, first_row)
    assert (moved_BT > 0).any(axis=0).all()
    rows = np.sort((moved_BT > 0).argsort(axis=1)[:, -2:] // side, axis=1)
    assert bool((rows[:, 0] != rows[:, 1]).any()) == (puzzle.name != "sudoku-6x6")


@each
def test_rendered_question_can_be_read_again(puzzle: Puzzle) -> None:
    example = puzzle.generate(np.random.default_rng(3), "easy")
    assert (puzzle.parse(puzzle.render(example.question)).grid == example.question).all()


def test_rendered_answer_puts_its_givens_in_brackets() -> None:
    puzzle = registry.get("sudoku-4x4")
    example = puzzle.generate(np.random.default_rng(3), "easy")
    board = puzzle.render(example.answer, example.question)
    assert board.count("[") == int((example.question > 0).sum())
    assert board.count(".") == 0


def test_unknown_puzzle_is_refused_with_the_known_names() -> None:
    with pytest.raises(PuzzleError, match="use one of sudoku, sudoku-6x6, sudoku-4x4") as caught:
        registry.get("chess")
    assert caught.value.rule == "unknown-puzzle"
