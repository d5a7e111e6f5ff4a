"""Sudoku tokens, the check and symmetries, on every board size."""

import numpy as np
import pytest

from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, WRONG, Puzzle

SUDOKUS = [registry.get(name) for name in ("sudoku-4x4", "sudoku-6x6", "sudoku")]
each = pytest.mark.parametrize("puzzle", SUDOKUS, ids=lambda puzzle: puzzle.name)


def test_tokens_are_the_published_ones() -> None:
    puzzle = registry.get("sudoku")
    assert (puzzle.vocab_size, puzzle.seq_len, puzzle.num_puzzle_ids) == (11, 81, 1)
    cells = np.arange(81, dtype=np.int8) % 10
    grid = cells.reshape(9, 9)
    tokens_T = puzzle.encode(grid)
    assert tokens_T[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1]
    assert (puzzle.decode(tokens_T) == grid).all()


def test_boxes_of_6x6_are_two_rows_by_three_columns() -> None:
    box_T = registry.get("sudoku-6x6").groups_GT[2]
    first, second, third = box_T.reshape(6, 6)[:3].tolist()
    assert first == second == [0, 0, 0, 1, 1, 1]
    assert third == [2, 2, 2, 3, 3, 3]


@each
def test_full_board_that_drops_a_given_is_wrong(puzzle: Puzzle) -> None:
    example = puzzle.generate(np.random.default_rng(1), "medium")
    labels_1T = puzzle.encode(example.answer)[None]
    exchanged_V = np.arange(puzzle.vocab_size)
    exchanged_V[[2, 3]] = [3, 2]
    swapped_1T = exchanged_V[labels_1T]  # still a solved board
    nothing_1T = np.ones_like(labels_1T)
    assert puzzle.check_BT(nothing_1T, swapped_1T).tolist() == [RIGHT]
    assert puzzle.check_BT(labels_1T, swapped_1T).tolist() == [WRONG]


def test_latin_square_with_wrong_boxes_is_wrong() -> None:
    puzzle = registry.get("sudoku")
    digits = np.arange(9, dtype=np.int8)
    latin = (digits[:, None] + digits) % 9 + 1
    answer_1T = puzzle.encode(latin)[None]
    nothing_1T = np.ones_like(answer_1T)
    assert puzzle.check_BT(nothing_1T, answer_1T).tolist() == [WRONG]


@each
def test_symmetries_reach_every_cell_and_turn_only_square_boxes(puzzle: Puzzle) -> None:
    side = puzzle.vocab_size - 2
    pair_BT = np.zeros((1500, puzzle.seq_len), dtype=np.int32)
    pair_BT[:, :2] = 2  # the first two cells of the first row
    moved_BT, _ = puzzle.augment_BT(np.random.default_rng(0), pair_BT, pair_BT)
    is_marked_BT = moved_BT > 0
    assert is_marked_BT.any(axis=0).all()
    _, cells = np.nonzero(is_marked_BT)
    first_row_B, second_row_B = cells.reshape(-1, 2).T // side
    is_turned = bool((first_row_B != second_row_B).any())
    assert is_turned == (puzzle.name != "sudoku-6x6")


def test_rendered_answer_puts_its_givens_in_brackets() -> None:
    puzzle = registry.get("sudoku-4x4")
    example = puzzle.generate(np.random.default_rng(3), "easy")
    board = puzzle.render(example.answer, example.question)
    assert board.count("[") == np.count_nonzero(example.question)
    assert board.count(".") == 0
