"""The symmetries of a Sudoku board, drawn and applied for a whole batch at once.

Digit relabelling; rows within bands and bands; columns within stacks and stacks; transposition where boxes are square.
Shapes: B batch, S side, T cells, V = S + 2 tokens (0 pad, 1 blank, digit d at d + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import IntArray
from hrm_puzzles.sudoku.board import Board

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class SudokuSymmetry:
    """Position t of the result holds `relabel_V[token at source_T[t]]`."""

    source_T: Int32Array
    relabel_V: Int32Array

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        return self.relabel_V[tokens_BT[..., self.source_T]]

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        """The exact inverse: it undoes `apply` on puzzles, labels and answers alike."""
        return np.argsort(self.relabel_V).astype(np.int32)[tokens_BT[..., np.argsort(self.source_T)]]


def random_symmetry(board: Board, rng: np.random.Generator) -> SudokuSymmetry:
    source_BT, relabel_BV = _draw_BT(board, rng, batch=1)
    return SudokuSymmetry(source_T=source_BT[0], relabel_V=relabel_BV[0])


def augmented_BT(
    board: Board, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
) -> tuple[Int32Array, Int32Array]:
    """Questions and labels under a fresh random symmetry for each row."""
    source_BT, relabel_BV = _draw_BT(board, rng, batch=len(inputs_BT))
    return _moved_BT(inputs_BT, source_BT, relabel_BV), _moved_BT(labels_BT, source_BT, relabel_BV)


def _moved_BT(tokens_BT: IntArray, source_BT: Int32Array, relabel_BV: Int32Array) -> Int32Array:
    return np.take_along_axis(relabel_BV, np.take_along_axis(tokens_BT, source_BT, axis=1), axis=1)


def _draw_BT(board: Board, rng: np.random.Generator, *, batch: int) -> tuple[Int32Array, Int32Array]:
    row_BS = _lines_BS(rng, batch, num_blocks=board.box_cols, block_size=board.box_rows)
    col_BS = _lines_BS(rng, batch, num_blocks=board.box_rows, block_size=board.box_cols)
    source_BSS = row_BS[:, :, None] * board.side + col_BS[:, None, :]
    if board.is_transposable:
        is_turned_B = rng.random(batch) < 0.5
        source_BSS = np.where(is_turned_B[:, None, None], source_BSS.swapaxes(1, 2), source_BSS)
    digit_BS = _permutations(rng, (batch, board.side))
    fixed_BV = np.tile(np.arange(2, dtype=np.int32), (batch, 1))  # pad and blank keep their tokens
    return source_BSS.reshape(batch, board.num_cells), np.concatenate([fixed_BV, digit_BS + 2], axis=1)


def _lines_BS(rng: np.random.Generator, batch: int, *, num_blocks: int, block_size: int) -> Int32Array:
    """Which line comes to each place: blocks (bands or stacks) permuted, and lines within each block."""
    block_BK = _permutations(rng, (batch, num_blocks))
    line_BKL = _permutations(rng, (batch, num_blocks, block_size))
    return (block_BK[:, :, None] * block_size + line_BKL).reshape(batch, num_blocks * block_size)


def _permutations(rng: np.random.Generator, shape: tuple[int, ...]) -> Int32Array:
    return np.argsort(rng.random(shape), axis=-1).astype(np.int32)
