"""Latin squares of 5 x 5: each row and each column holds the digits 1 to 5 once.

Tokens: 0 pad, 1 blank, digit d is d + 1. Shapes: B batch, T = 25 cells, V = 7 tokens,
R rows, C columns.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from hrm_puzzles.grid.board import GridShape, GridSymmetry, mixed
from hrm_puzzles.grid.notation import parsed, text_of, written
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    Example,
    Geometry,
    Grid,
    Int32Array,
    IntArray,
    Notation,
    Parsed,
    PuzzleError,
    UInt64Array,
    require_difficulty,
)
from hrm_puzzles.reading.grids import lines_parsed
from hrm_puzzles.reading.legend import Legend, size_of

SIDE = 5
BLANK = 1
FIRST_DIGIT = 2
DIGIT_TOKENS = np.arange(FIRST_DIGIT, FIRST_DIGIT + SIDE)
SHAPE = GridShape(rows=SIDE, cols=SIDE)
SIZE = size_of(SHAPE)
CHARACTERS = dict(enumerate(".12345"))
LEGEND = Legend(
    values={character: value for value, character in CHARACTERS.items()},
    characters=CHARACTERS,
    open_value=0,
    described="the digits 1 to 5, and . for a blank",
)
BLANKS = {"easy": 6, "hard": 12}


class LatinSquare:
    """A 5 x 5 Latin square. `puzzle.Puzzle` describes each method."""

    name = "latin-5x5"
    goal = "Fill the board: each row and each column holds each of 1 to 5 once."
    vocab_size = FIRST_DIGIT + SIDE
    seq_len = SIDE * SIDE
    proof_exists = True
    difficulties = tuple(BLANKS)
    # Each line is a band or a stack of its own, so there are no boxes. The last five of the seven
    # tokens are digits, which can be exchanged.
    geometry = Geometry(board=(SIDE, 1, SIDE, 1), num_symbols=SIDE)
    legend = LEGEND

    def parse(self, notation: object) -> Parsed:
        question = self.read(notation)
        for row, col in np.argwhere(question.grid > 0).tolist():
            digit = question.grid[row, col]
            in_row = np.count_nonzero(question.grid[row] == digit)
            in_col = np.count_nonzero(question.grid[:, col] == digit)
            if in_row > 1 or in_col > 1:
                problem = f"row {row + 1} or column {col + 1} has the digit {digit} twice"
                raise PuzzleError(problem, "twice", "remove one", (row + 1, col + 1))
        return question

    def read(self, notation: object) -> Parsed:
        from_text = partial(lines_parsed, SIZE, LEGEND)
        return parsed(SIZE, LEGEND, from_text, notation)

    def board_of(self, text: str) -> Grid:
        return self.read(text).grid

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(LEGEND, grid, notation)

    def asked(self, grid: Grid, identifier: str = "") -> str:  # noqa: ARG002
        return text_of(LEGEND, grid).replace("\n", "")

    def sample(self, identifiers: Sequence[str]) -> str:  # noqa: ARG002
        rng = np.random.default_rng(0)
        example = self.generate(rng, "easy")
        return self.asked(example.question)

    def render(self, grid: Grid, question: Grid | None = None) -> str:  # noqa: ARG002
        return text_of(LEGEND, grid)

    def encode(self, grid: Grid) -> Int32Array:
        return grid.reshape(-1).astype(np.int32) + BLANK

    def decode(self, tokens_T: IntArray) -> Grid:
        is_digit_T = np.isin(tokens_T, DIGIT_TOKENS)
        digits_T = np.where(is_digit_T, tokens_T - BLANK, 0)
        return digits_T.reshape(SIDE, SIDE).astype(np.int8)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> np.ndarray:
        is_kept_BT = (inputs_BT == BLANK) | (inputs_BT == answers_BT)
        answers_BRC = answers_BT.reshape(-1, SIDE, SIDE)
        rows_BRC = np.sort(answers_BRC, axis=2)
        columns_BCR = np.sort(answers_BRC.swapaxes(1, 2), axis=2)
        has_rows_B = (rows_BRC == DIGIT_TOKENS).all(axis=(1, 2))
        has_columns_B = (columns_BCR == DIGIT_TOKENS).all(axis=(1, 2))
        is_right_B = is_kept_BT.all(axis=1) & has_rows_B & has_columns_B
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        require_difficulty(difficulty, self.difficulties)
        lines = np.arange(SIDE)
        cyclic_RC = (lines[:, None] + lines) % SIDE
        tokens_T = DIGIT_TOKENS[cyclic_RC.reshape(-1)]
        symmetry = self.symmetry(rng)
        answer = self.decode(symmetry.apply(tokens_T))
        question = answer.copy()
        num_blanks = BLANKS[difficulty]
        blanks = rng.choice(self.seq_len, num_blanks, replace=False)
        question.reshape(-1)[blanks] = 0
        return Example(question=question, answer=answer, rating=num_blanks)

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        """Exchange rows, columns and digits."""
        rows = rng.permutation(SIDE)
        columns = rng.permutation(SIDE)
        source_RC = rows[:, None] * SIDE + columns
        relabel_V = np.arange(self.vocab_size, dtype=np.int32)
        relabel_V[DIGIT_TOKENS] = rng.permutation(DIGIT_TOKENS)
        source_T = source_RC.reshape(-1).astype(np.int32)
        return GridSymmetry(source_T=source_T, relabel_V=relabel_V)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[Int32Array, Int32Array]:
        moved_BT = np.empty(inputs_BT.shape, np.int32)
        moved_labels_BT = np.empty(labels_BT.shape, np.int32)
        for row in range(len(inputs_BT)):
            symmetry = self.symmetry(rng)
            moved_BT[row] = symmetry.apply(inputs_BT[row])
            moved_labels_BT[row] = symmetry.apply(labels_BT[row])
        return moved_BT, moved_labels_BT

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """Hash the numbers of givens in the row, the column and the digit of each given cell."""
        is_given_BT = inputs_BT > BLANK
        is_given_BRC = is_given_BT.reshape(-1, SIDE, SIDE)
        in_row_BRC = np.zeros(is_given_BRC.shape, np.uint64)
        in_row_BRC += is_given_BRC.sum(axis=2, keepdims=True, dtype=np.uint64)
        in_column_BRC = is_given_BRC.sum(axis=1, keepdims=True, dtype=np.uint64)
        cell_BRC = mixed(in_row_BRC * np.uint64(8) + in_column_BRC)
        cell_BT = cell_BRC.reshape(inputs_BT.shape) * is_given_BT
        digits_BV = np.zeros((len(inputs_BT), self.vocab_size), np.uint64)
        for token in DIGIT_TOKENS:
            is_digit_BT = labels_BT == token
            digits_BV[:, token] = (cell_BT * is_digit_BT).sum(axis=1)
        return mixed(mixed(digits_BV).sum(axis=1))
