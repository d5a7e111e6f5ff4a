"""Sudoku on boards of 4x4, 6x6 and 9x9: one class, parameterised by the shape of a box.

Tokens as in the published HRM data: 0 pad, 1 blank, digit d at d + 1; vocabulary S + 2 (9x9: 11).
Shapes: B batch, S side, T = S * S cells, G = 3 partitions (row, column, box), U = 3 * S units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import BLANK_IDENTIFIER, RIGHT, WRONG, Example, Geometry, Grid, IntArray, Notation, Parsed
from hrm_puzzles.sudoku import generator as sudoku_generator
from hrm_puzzles.sudoku import notation as sudoku_notation
from hrm_puzzles.sudoku import render as sudoku_render
from hrm_puzzles.sudoku import rules as sudoku_rules
from hrm_puzzles.sudoku.board import Board
from hrm_puzzles.sudoku.equivalence import equivalence_hash_B
from hrm_puzzles.sudoku.symmetry import SudokuSymmetry, augmented_BT, random_symmetry

BLANK = 1
WELL_KNOWN = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"


@dataclass(frozen=True, kw_only=True)
class Sudoku:
    """A Sudoku whose boxes are `box_rows` x `box_cols`; `puzzle.Puzzle` says what each method promises."""

    name: str
    box_rows: int
    box_cols: int

    num_puzzle_ids = 1
    proof_exists = True

    @cached_property
    def board(self) -> Board:
        return Board(box_rows=self.box_rows, box_cols=self.box_cols)

    @property
    def seq_len(self) -> int:
        return self.board.num_cells

    @property
    def vocab_size(self) -> int:
        return self.board.side + 2

    @property
    def geometry(self) -> Geometry:
        return Geometry(groups_GT=self.board.groups_GT, heads=(((0, 0),), ((1, 0),), ((2, 0),)))

    @property
    def difficulties(self) -> tuple[str, ...]:
        return sudoku_generator.difficulties(self.board)

    def parse(self, notation: object) -> Parsed:
        """Read any notation; refuses what is no board, clashing givens, and questions without exactly one solution."""
        parsed = sudoku_notation.parsed(self.board, notation)
        sudoku_rules.check_question(self.board, parsed.grid)
        return parsed

    def board_of(self, text: str) -> Grid:
        """The cells of one row of a CSV file, question or answer; what they mean is not looked at."""
        return sudoku_notation.from_row(self.board, text)

    def sample(self, identifiers: Sequence[str]) -> object:
        """The well-known 9x9 question, or a fresh one."""
        del identifiers
        if self.seq_len == len(WELL_KNOWN):
            return WELL_KNOWN
        return self.asked(self.generate(np.random.default_rng(0), self.difficulties[0]).question, BLANK_IDENTIFIER)

    def asked(self, grid: Grid, identifier: str) -> object:  # noqa: ARG002
        """One line of text, a dot for each blank."""
        return "".join(str(digit or ".") for digit in grid.reshape(-1).tolist())

    def write(self, grid: Grid, notation: Notation) -> object:
        return sudoku_notation.written(grid, notation)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A question with exactly one solution; `sudoku_generator` says what each difficulty means."""
        return sudoku_generator.generate(self.board, rng, difficulty)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """A text board; with `question`, kept givens stand in brackets."""
        return sudoku_render.board_text(self.board, grid, question)

    def encode(self, grid: Grid) -> NDArray[np.int32]:
        return grid.reshape(-1).astype(np.int32) + BLANK

    def decode(self, tokens_T: IntArray) -> Grid:
        side = self.board.side
        digits_T = tokens_T - BLANK
        return np.where((digits_T > 0) & (digits_T <= side), digits_T, 0).astype(np.int8).reshape(side, side)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> NDArray[np.int8]:
        """RIGHT where every row, column and box holds each digit once and the givens are kept, else WRONG."""
        keeps_given_BT = (inputs_BT == BLANK) | (inputs_BT == answers_BT)
        bits_BT = self._bit_of_token_V.take(answers_BT, mode="clip") * keeps_given_BT  # a lost given fills no unit
        seen_BU = np.bitwise_or.reduce(bits_BT.take(self.board.units_US, axis=1), axis=2)
        is_full_BU = seen_BU == (1 << self.board.side) - 1  # S cells with S different digits: each once
        return np.where(is_full_BU.all(axis=1), RIGHT, WRONG).astype(np.int8)

    @cached_property
    def _bit_of_token_V(self) -> NDArray[np.int32]:
        """One bit for each digit token; none for pad, blank and (in the last place) anything beyond the vocabulary."""
        bits = [0, 0, *(1 << digit for digit in range(self.board.side)), 0]
        return np.array(bits, dtype=np.int32)

    def symmetry(self, rng: np.random.Generator) -> SudokuSymmetry:
        return random_symmetry(self.board, rng)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return augmented_BT(self.board, rng, inputs_BT, labels_BT)

    def reveal_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray, num_revealed_B: IntArray
    ) -> NDArray[np.int32]:
        is_open_BT = inputs_BT == BLANK
        order_BT = np.argsort(np.where(is_open_BT, rng.random(inputs_BT.shape), 2.0), axis=1)  # open cells come first
        rank_BT = np.argsort(order_BT, axis=1)
        is_revealed_BT = is_open_BT & (rank_BT < np.asarray(num_revealed_B)[:, None])
        return np.where(is_revealed_BT, labels_BT, inputs_BT).astype(np.int32)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> NDArray[np.uint64]:
        return equivalence_hash_B(self.board, inputs_BT != BLANK, labels_BT)
