"""Latin squares of 5 x 5: each row and each column holds the digits 1 to 5 once.

Tokens: 0 pad, 1 blank, digit d is d + 1. Shapes: B batch, T = 25 cells, V = 7 tokens.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hrm_puzzles.grid.board import GridShape, GridSymmetry, Int32Array, UInt64Array, mixed
from hrm_puzzles.grid.notation import Legend, lines_parsed, parsed, size_of, written
from hrm_puzzles.grid.puzzle import revealed_BT
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    Example,
    Geometry,
    Grid,
    IntArray,
    Notation,
    Parsed,
    PuzzleError,
    require_difficulty,
)

SIDE = 5
BLANK = 1
SHAPE = GridShape(rows=SIDE, cols=SIDE)
SIZE = size_of(SHAPE)
LEGEND = Legend(
    values={character: value for value, character in enumerate(".12345")},
    characters=dict(enumerate(".12345")),
    open_value=0,
    pads_lines=False,
    described="the digits 1 to 5, and . for a blank",
)
BLANKS = {"easy": 6, "hard": 12}


class LatinSquare:
    name = "latin-5x5"
    vocab_size = SIDE + 2
    seq_len = SIDE * SIDE
    num_puzzle_ids = 1
    proof_exists = True
    difficulties = tuple(BLANKS)
    # Each line is a band or a stack of its own, so there are no boxes. The last five of the seven
    # tokens are digits, which can be exchanged.
    geometry = Geometry(board=(SIDE, 1, SIDE, 1), num_symbols=SIDE)
    legend = LEGEND
    reveal_BT = staticmethod(revealed_BT)

    def parse(self, notation: object) -> Parsed:
        question = self.read(notation)
        for row, col in np.argwhere(question.grid > 0).tolist():
            digit = question.grid[row, col]
            in_row = (question.grid[row] == digit).sum()
            in_col = (question.grid[:, col] == digit).sum()
            if in_row > 1 or in_col > 1:
                problem = f"row {row + 1} or column {col + 1} has the digit {digit} twice"
                raise PuzzleError(problem, "twice", "remove one", (row + 1, col + 1))
        return question

    def read(self, notation: object) -> Parsed:
        return parsed(SIZE, LEGEND, partial(lines_parsed, SIZE, LEGEND), notation)

    def board_of(self, text: str) -> Grid:
        return self.read(text).grid

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(LEGEND, grid, notation)

    def asked(self, grid: Grid, identifier: str = "") -> str:  # noqa: ARG002
        return "".join(".12345"[value] for value in grid.reshape(-1))

    def sample(self, identifiers: Sequence[str]) -> str:  # noqa: ARG002
        return self.asked(self.generate(np.random.default_rng(0), "easy").question)

    def render(self, grid: Grid, question: Grid | None = None) -> str:  # noqa: ARG002
        return "\n".join(" ".join(".12345"[value] for value in row) for row in grid)

    def encode(self, grid: Grid) -> Int32Array:
        return grid.reshape(-1).astype(np.int32) + BLANK

    def decode(self, tokens_T: IntArray) -> Grid:
        digits_T = np.where((tokens_T > BLANK) & (tokens_T < self.vocab_size), tokens_T - BLANK, 0)
        return digits_T.reshape(SIDE, SIDE).astype(np.int8)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> np.ndarray:
        keeps_B = ((inputs_BT == BLANK) | (inputs_BT == answers_BT)).all(axis=1)
        answers_BRC = answers_BT.reshape(-1, SIDE, SIDE)
        digits = np.arange(SIDE) + BLANK + 1
        has_rows_B = (np.sort(answers_BRC, axis=2) == digits).all(axis=(1, 2))
        has_cols_B = (np.sort(answers_BRC, axis=1) == digits[:, None]).all(axis=(1, 2))
        return np.where(keeps_B & has_rows_B & has_cols_B, RIGHT, WRONG).astype(np.int8)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        require_difficulty(difficulty, self.difficulties)
        lines = np.arange(SIDE)
        cyclic = (lines[:, None] + lines) % SIDE
        symmetry = self.symmetry(rng)
        answer = self.decode(symmetry.apply(cyclic.reshape(-1) + BLANK + 1))
        question = answer.copy()
        blanks = rng.choice(self.seq_len, BLANKS[difficulty], replace=False)
        question.reshape(-1)[blanks] = 0
        return Example(question=question, answer=answer, rating=BLANKS[difficulty])

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        """Exchange rows, columns and digits."""
        rows = rng.permutation(SIDE)
        cols = rng.permutation(SIDE)
        source_T = (rows[:, None] * SIDE + cols).reshape(-1).astype(np.int32)
        digits = rng.permutation(SIDE) + BLANK + 1
        relabel_V = np.array([0, BLANK, *digits], dtype=np.int32)
        return GridSymmetry(source_T=source_T, relabel_V=relabel_V)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[Int32Array, Int32Array]:
        turned_BT = np.empty(inputs_BT.shape, np.int32)
        turned_labels_BT = np.empty(labels_BT.shape, np.int32)
        for row in range(len(inputs_BT)):
            symmetry = self.symmetry(rng)
            turned_BT[row] = symmetry.apply(inputs_BT[row])
            turned_labels_BT[row] = symmetry.apply(labels_BT[row])
        return turned_BT, turned_labels_BT

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """Hash the numbers of givens in the row, the column and the digit of each given cell."""
        given_BRC = (inputs_BT > BLANK).reshape(-1, SIDE, SIDE)
        in_row_BT = np.broadcast_to(given_BRC.sum(2, keepdims=True), given_BRC.shape)
        in_col_BT = np.broadcast_to(given_BRC.sum(1, keepdims=True), given_BRC.shape)
        cell_BRC = mixed((in_row_BT * 8 + in_col_BT).astype(np.uint64)) * given_BRC
        cell_BT = cell_BRC.reshape(inputs_BT.shape)
        digit_BS = np.zeros((len(inputs_BT), SIDE), np.uint64)
        for digit in range(SIDE):
            is_digit_BT = labels_BT == digit + BLANK + 1
            digit_BS[:, digit] = (cell_BT * is_digit_BT).sum(axis=1)
        return mixed(mixed(digit_BS).sum(axis=1))
