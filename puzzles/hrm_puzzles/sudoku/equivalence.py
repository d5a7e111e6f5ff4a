"""A number for each Sudoku that no symmetry changes, to keep a test set apart from its training set.

Every cell gets a colour (given or open) that is refined a few times by the colours it sees: those of its row, column,
box, band, stack and of the cells with the same digit in the answer. Only sums enter, and rows and columns alike on
boards that can be turned, so equivalent puzzles always get the same number. The reverse is not proven: two different
puzzles may share a number, which errs on the safe side.
Shapes: B batch, S side, T cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.scatter import UInt64Array, mixed
from hrm_puzzles.puzzle import IntArray
from hrm_puzzles.sudoku.board import Board

ROUNDS = 4  # after three, two puzzles drawn at random hardly ever agree; one more costs little


def equivalence_hash_B(board: Board, is_given_BT: NDArray[np.bool_], labels_BT: IntArray) -> UInt64Array:
    """The same number for all symmetric copies of a question with its answer, uint64 [B]."""
    digit_order_BT = np.argsort(labels_BT, axis=1, kind="stable")  # S cells of the first digit, S of the next, ...
    colour_BT = mixed(is_given_BT.astype(np.uint64) + np.uint64(1))
    for _ in range(ROUNDS):
        colour_BT = _refined(board, colour_BT, digit_order_BT)
    return mixed(colour_BT.sum(axis=1))


def _refined(board: Board, colour_BT: UInt64Array, digit_order_BT: NDArray[np.intp]) -> UInt64Array:
    row_T, col_T, box_T = board.groups_GT
    along = _seen(colour_BT, row_T, 2) + _seen(colour_BT, row_T // board.box_rows, 3)
    across_salt = 0 if board.is_transposable else 10  # where boards can be turned, rows and columns must look alike
    across = _seen(colour_BT, col_T, across_salt + 2) + _seen(colour_BT, col_T // board.box_cols, across_salt + 3)
    alike = _seen_alike(colour_BT, digit_order_BT, board.side)
    return mixed(colour_BT + mixed(along) + mixed(across) + _seen(colour_BT, box_T, 4) + alike)


def _seen(colour_BT: UInt64Array, group_T: NDArray[np.int32], salt: int) -> UInt64Array:
    """For each cell, a mix of the sum of colours over its group."""
    members_GT = (np.arange(group_T.max() + 1)[:, None] == group_T).astype(np.uint64)
    return mixed(colour_BT @ members_GT.T, salt)[:, group_T]


def _seen_alike(colour_BT: UInt64Array, digit_order_BT: NDArray[np.intp], side: int) -> UInt64Array:
    """The same over the cells that hold one digit."""
    by_digit_BSS = np.take_along_axis(colour_BT, digit_order_BT, axis=1).reshape(-1, side, side)
    sums_BT = np.repeat(mixed(by_digit_BSS.sum(axis=2), 5), side, axis=1)
    seen_BT = np.empty_like(colour_BT)
    np.put_along_axis(seen_BT, digit_order_BT, sums_BT, axis=1)
    return seen_BT
