"""Sudoku on boards of 4x4, 6x6 and 9x9: one class, parameterised by the shape of a box.

Tokens as in the published HRM data: 0 pad, 1 blank, digit d at d + 1; vocabulary V = S + 2 (9x9: 11).
Shapes: B batch, S side, T = S * S cells, G = 3 partitions (row, column, box), U = 3 * S units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hrm_puzzles.grid.board import GridSymmetry, Int32Array, UInt64Array, mixed
from hrm_puzzles.grid.puzzle import revealed_BT
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    Example,
    Geometry,
    Grid,
    IntArray,
    Parsed,
    require_difficulty,
)
from hrm_puzzles.sudoku import board as sudoku_board
from hrm_puzzles.sudoku import solver

BLANK = 1
WELL_KNOWN = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
HASH_ROUNDS = 4  # after three, two puzzles drawn at random hardly ever agree; one more costs little


@dataclass(frozen=True, kw_only=True)
class Sudoku(sudoku_board.SudokuBoard):
    """A Sudoku; `puzzle.Puzzle` says what each method promises."""

    name: str

    num_puzzle_ids = 1
    proof_exists = True
    reveal_BT = staticmethod(revealed_BT)

    @property
    def seq_len(self) -> int:
        return self.num_cells

    @property
    def vocab_size(self) -> int:
        return self.side + 2

    @property
    def geometry(self) -> Geometry:
        side, rows, cols = self.side, self.box_rows, self.box_cols
        return Geometry(board=(side // rows, rows, side // cols, cols), num_symbols=side)

    @property
    def difficulties(self) -> tuple[str, ...]:
        return tuple(solver.DIFFICULTIES)[: 5 if self.side > 6 else 3]

    def parse(self, notation: object) -> Parsed:
        """Read any notation; refuses what is no board, clashing givens, and questions without exactly one solution."""
        parsed = self.read(notation)
        solver.check_question(self, parsed.grid)
        return parsed

    def sample(self, identifiers: Sequence[str]) -> object:  # noqa: ARG002
        """The well-known 9x9 question, or a fresh one."""
        if self.seq_len == len(WELL_KNOWN):
            return WELL_KNOWN
        return self.asked(self.generate(np.random.default_rng(0), self.difficulties[0]).question)

    def asked(self, grid: Grid, identifier: str = "") -> object:  # noqa: ARG002
        """One line of text, a dot for each blank."""
        return "".join(str(digit or ".") for digit in grid.reshape(-1).tolist())

    @property
    def about(self) -> str:
        side, boxes = self.side, f"{self.box_rows} x {self.box_cols}"
        return f"{side} rows of {side} cells in boxes of {boxes}: {self.legend.described}"

    def forms(self, asked: Any) -> dict[str, object]:
        grid = self.parse(asked).grid
        lines = [asked[start : start + self.side] for start in range(0, len(asked), self.side)]
        return {
            "one line": asked,
            "lines of text": "\n".join(lines),
            "text with frames": self.render(grid),
            "list of lines": lines,
            "rows of numbers": grid.tolist(),
            "flat list": [digit or None for digit in grid.reshape(-1).tolist()],
        }

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        require_difficulty(difficulty, self.difficulties)
        return solver.generate(self, rng, difficulty)

    def encode(self, grid: Grid) -> Int32Array:
        return grid.reshape(-1).astype(np.int32) + BLANK

    def decode(self, tokens_T: IntArray) -> Grid:
        side = self.side
        digits_T = tokens_T - BLANK
        return np.where((digits_T > 0) & (digits_T <= side), digits_T, 0).astype(np.int8).reshape(side, side)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> np.typing.NDArray[np.int8]:
        """RIGHT where every row, column and box holds each digit once and the givens are kept, else WRONG."""
        keeps_given_BT = (inputs_BT == BLANK) | (inputs_BT == answers_BT)
        bits_BT = self._bit_of_token_V.take(answers_BT, mode="clip") * keeps_given_BT  # a lost given fills no unit
        seen_BU = np.bitwise_or.reduce(bits_BT.take(self.units_US, axis=1), axis=2)
        is_full_BU = seen_BU == (1 << self.side) - 1  # S cells with S different digits: each once
        return np.where(is_full_BU.all(axis=1), RIGHT, WRONG).astype(np.int8)

    @cached_property
    def _bit_of_token_V(self) -> Int32Array:
        """One bit for each digit token; none for pad, blank and (in the last place) anything beyond the vocabulary."""
        bits = [0, 0, *(1 << digit for digit in range(self.side)), 0]
        return np.array(bits, dtype=np.int32)

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        source_BT, relabel_BV = _draw_BT(self, rng, batch=1)
        return GridSymmetry(source_T=source_BT[0], relabel_V=relabel_BV[0])

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[Int32Array, Int32Array]:
        source_BT, relabel_BV = _draw_BT(self, rng, batch=len(inputs_BT))
        moved = (np.take_along_axis(tokens_BT, source_BT, axis=1) for tokens_BT in (inputs_BT, labels_BT))
        question_BT, answer_BT = (np.take_along_axis(relabel_BV, tokens_BT, axis=1) for tokens_BT in moved)
        return question_BT, answer_BT

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """Each cell has a colour (given or open), refined by those of its row, column, box, band, stack and digit.

        Two different puzzles may share a number, which errs on the safe side.
        """
        row_T, col_T, box_T = self.groups_GT
        across_salt = 0 if self.is_transposable else 10  # where boards can be turned, rows and columns look alike
        seen_of = (
            (row_T, 2),
            (row_T // self.box_rows, 3),
            (col_T, across_salt + 2),
            (col_T // self.box_cols, across_salt + 3),
        )
        digit_order_BT = np.argsort(labels_BT, axis=1, kind="stable")  # S cells of the first digit, S of the next, ...
        colour_BT = mixed((inputs_BT != BLANK).astype(np.uint64) + np.uint64(1))
        for _ in range(HASH_ROUNDS):
            row_BT, band_BT, col_BT, stack_BT = (_seen(colour_BT, group_T, salt) for group_T, salt in seen_of)
            alike_BT = _seen(colour_BT, box_T, 4) + _seen_alike(colour_BT, digit_order_BT, self.side)
            colour_BT = mixed(colour_BT + mixed(row_BT + band_BT) + mixed(col_BT + stack_BT) + alike_BT)
        return mixed(colour_BT.sum(axis=1))


# Symmetries: digits relabelled; rows within bands, and bands; columns within stacks, and stacks; transposition where
# boxes are square.


def _draw_BT(board: sudoku_board.SudokuBoard, rng: np.random.Generator, *, batch: int) -> tuple[Int32Array, Int32Array]:
    """The source of each position [B, T] and the new token of each [B, V]."""
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


def _seen(colour_BT: UInt64Array, group_T: Int32Array, salt: int) -> UInt64Array:
    """For each cell, a mix of the sum of colours over its group."""
    members_GT = (np.arange(group_T.max() + 1)[:, None] == group_T).astype(np.uint64)
    return mixed(colour_BT @ members_GT.T, salt)[:, group_T]


def _seen_alike(colour_BT: UInt64Array, digit_order_BT: np.typing.NDArray[np.intp], side: int) -> UInt64Array:
    by_digit_BSS = np.take_along_axis(colour_BT, digit_order_BT, axis=1).reshape(-1, side, side)
    sums_BT = np.repeat(mixed(by_digit_BSS.sum(axis=2), 5), side, axis=1)
    seen_BT = np.empty_like(colour_BT)
    np.put_along_axis(seen_BT, digit_order_BT, sums_BT, axis=1)
    return seen_BT
