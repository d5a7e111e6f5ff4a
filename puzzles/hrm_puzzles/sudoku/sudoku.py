"""Sudoku on boards of 4x4 to 16x16: one class with the shape of a box as parameter.

Tokens are those of the published HRM data: 0 pad, 1 blank, digit d is d + 1. The vocabulary has
V = S + 2 tokens (9x9: 11).
Shapes: B batch, S side, T = S * S cells, G = 3 partitions (row, column, box), U = 3 * S units.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hrm_puzzles.grid.board import GridSymmetry, mixed
from hrm_puzzles.grid.notation import written
from hrm_puzzles.puzzle import (
    RIGHT,
    WRONG,
    Example,
    Geometry,
    Grid,
    Int8Array,
    Int32Array,
    IntArray,
    IntpArray,
    Notation,
    Parsed,
    UInt64Array,
    require_difficulty,
)
from hrm_puzzles.sudoku.board import SudokuBoard
from hrm_puzzles.sudoku.solver import SudokuSolver, check_question, rating, solve, solver_of

BLANK = 1
FIRST_DIGIT = 2
WELL_KNOWN = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
# After three rounds, two random puzzles hardly ever share a hash. One more round costs little.
HASH_ROUNDS = 4
# The share of cells that are given, and the ratings. With a share of 0 every given is needed. The
# numbers in the comments are for 9x9. Smaller boards lack the last two, because questions that need
# guesses are too rare there.
DIFFICULTIES = {
    "easy": (0.5, range(1)),  # 40 givens, singles solve it
    "medium": (0.37, range(sys.maxsize)),  # 30 givens, nearly always rated 0
    "minimal": (0.0, range(sys.maxsize)),  # 20 to 28 givens, two thirds are rated 0
    "hard": (0.0, range(1, sys.maxsize)),  # singles do not solve it
    "extreme": (0.0, range(10, sys.maxsize)),  # 1 of 40 minimal ones; 0.5 s each
}
EASY_DIFFICULTIES = ("easy", "medium", "minimal")  # for boards smaller than 9x9
LARGE_DIFFICULTIES = ("easy",)  # for larger boards: the search for fewer givens has no bound


@dataclass(frozen=True, kw_only=True)
class Sudoku(SudokuBoard):
    """A Sudoku. `puzzle.Puzzle` describes each method."""

    name: str

    proof_exists = True

    @property
    def seq_len(self) -> int:
        return self.num_cells

    @property
    def vocab_size(self) -> int:
        return self.side + FIRST_DIGIT

    @property
    def geometry(self) -> Geometry:
        bands = self.side // self.box_rows
        stacks = self.side // self.box_cols
        board = (bands, self.box_rows, stacks, self.box_cols)
        return Geometry(board=board, num_symbols=self.side)

    @property
    def difficulties(self) -> tuple[str, ...]:
        if self.side < 9:
            return EASY_DIFFICULTIES
        if self.side > 9:
            return LARGE_DIFFICULTIES
        return tuple(DIFFICULTIES)

    def parse(self, notation: object) -> Parsed:
        """Read any notation and require exactly one solution."""
        parsed = self.read(notation)
        check_question(self, parsed.grid)
        return parsed

    def sample(self, identifiers: Sequence[str]) -> object:  # noqa: ARG002
        """The well-known 9x9 question; a fresh one on smaller boards."""
        if self.seq_len == len(WELL_KNOWN):
            return WELL_KNOWN
        rng = np.random.default_rng(0)
        example = self.generate(rng, self.difficulties[0])
        return self.asked(example.question)

    def asked(self, grid: Grid, identifier: str = "") -> object:  # noqa: ARG002
        """The question as one line of text with a dot for each blank."""
        digits = grid.reshape(-1).tolist()
        return "".join(map(self.legend.characters.__getitem__, digits))

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(self.legend, grid, notation)

    @property
    def about(self) -> str:
        board = f"{self.side} rows of {self.side} cells"
        boxes = f"boxes of {self.box_rows} x {self.box_cols}"
        return f"{board} in {boxes}: {self.legend.described}"

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A question with one solution, of one of the DIFFICULTIES, with its answer and rating.

        Removes clues from a random full grid in random order, each only if the solution stays
        unique. It stops when the share of givens is reached or every given is needed.
        """
        require_difficulty(difficulty, self.difficulties)
        given_share, ratings = DIFFICULTIES[difficulty]
        num_spare = self.num_cells - round(given_share * self.num_cells)
        # Nearly all of the first clues can go, so they are tried as one block.
        num_first = min(num_spare, self.num_cells * 3 // 8)
        solver = solver_of(self)
        while True:
            answer = _full_grid(solver, rng)
            cells: list[int] = answer.reshape(-1).tolist()
            order: list[int] = rng.permutation(self.num_cells).tolist()
            _take_out(solver, cells, order[:num_first])
            for cell in order[num_first:]:
                if cells.count(0) < num_spare:
                    _take_out(solver, cells, [cell])
            question = np.array(cells, dtype=np.int8).reshape(answer.shape)
            found_rating = rating(self, question)
            if found_rating in ratings:
                return Example(question=question, answer=answer, rating=found_rating)

    def label_of(self, question: Grid) -> Grid:
        check_question(self, question)
        return solve(self, question, max_solutions=1).grids[0]

    def encode(self, grid: Grid) -> Int32Array:
        return grid.reshape(-1).astype(np.int32) + BLANK

    def decode(self, tokens_T: IntArray) -> Grid:
        digits_T = tokens_T - BLANK
        is_digit_T = (digits_T > 0) & (digits_T <= self.side)
        known_T = np.where(is_digit_T, digits_T, 0)
        return known_T.astype(np.int8).reshape(self.side, self.side)

    def check_BT(self, inputs_BT: IntArray, answers_BT: IntArray) -> Int8Array:
        """RIGHT if every row, column and box holds each digit once and all givens are kept.

        Otherwise WRONG. Each digit is one bit. Example with side 3: the answer 1 2 2 of a row has
        the bits 001, 010 and 010. Their union 011 is not 111, so the row is not full.
        """
        keeps_given_BT = (inputs_BT == BLANK) | (inputs_BT == answers_BT)
        digit_bits_BT = self._bit_of_token_V.take(answers_BT, mode="clip")
        bits_BT = digit_bits_BT * keeps_given_BT  # a changed given has no bit, so its row fails
        bits_BUS = bits_BT.take(self.units_US, axis=1)
        seen_BU = np.bitwise_or.reduce(bits_BUS, axis=2)
        # A unit of S cells with S different digits has each digit once.
        is_full_BU = seen_BU == (1 << self.side) - 1
        return np.where(is_full_BU.all(axis=1), RIGHT, WRONG).astype(np.int8)

    @cached_property
    def _bit_of_token_V(self) -> Int32Array:
        """One bit for each digit token, and 0 for pad and blank.

        The last entry, also 0, is for tokens beyond the vocabulary.
        """
        bits = np.zeros(self.vocab_size + 1, dtype=np.int32)
        bits[FIRST_DIGIT:-1] = 1 << np.arange(self.side)
        return bits

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        source_BT, relabel_BV = _draw_BT(self, rng, batch=1)
        return GridSymmetry(source_T=source_BT[0], relabel_V=relabel_BV[0])

    def augment_BT(
        self,
        rng: np.random.Generator,
        inputs_BT: IntArray,
        labels_BT: IntArray,
    ) -> tuple[Int32Array, Int32Array]:
        source_BT, relabel_BV = _draw_BT(self, rng, batch=len(inputs_BT))
        moved_BT = np.take_along_axis(inputs_BT, source_BT, axis=1)
        moved_labels_BT = np.take_along_axis(labels_BT, source_BT, axis=1)
        question_BT = np.take_along_axis(relabel_BV, moved_BT, axis=1)
        answer_BT = np.take_along_axis(relabel_BV, moved_labels_BT.clip(0), axis=1)
        return question_BT, np.where(moved_labels_BT < 0, moved_labels_BT, answer_BT)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:
        """Refine a color for each cell (given or open) and add up the colors of a board.

        Each round mixes the color of a cell with those of its row, column, box, band, stack and
        digit. Two different puzzles may share a hash. This only leaves a puzzle out of a split.
        """
        row_T, col_T, box_T = self.groups_GT
        band_T = row_T // self.box_rows
        stack_T = col_T // self.box_cols
        # If boards can be transposed, rows and columns get the same salts.
        across_salt = 0 if self.is_transposable else 10
        # Cells sorted by digit: S of the first digit, S of the next, and so on.
        digit_order_BT = np.argsort(labels_BT, axis=1, kind="stable")
        is_given_BT = inputs_BT != BLANK
        color_BT = mixed(is_given_BT.astype(np.uint64) + np.uint64(1))
        for _ in range(HASH_ROUNDS):
            row_BT = _seen(color_BT, row_T, 2)
            band_BT = _seen(color_BT, band_T, 3)
            col_BT = _seen(color_BT, col_T, across_salt + 2)
            stack_BT = _seen(color_BT, stack_T, across_salt + 3)
            box_BT = _seen(color_BT, box_T, 4)
            digit_BT = _seen_alike(color_BT, digit_order_BT, self.side)
            lines_BT = mixed(row_BT + band_BT) + mixed(col_BT + stack_BT)
            color_BT = mixed(color_BT + lines_BT + box_BT + digit_BT)
        return mixed(color_BT.sum(axis=1))


# Symmetries: digits are relabeled; rows are permuted within bands, and bands as a whole; columns
# within stacks, and stacks as a whole. Boards with square boxes are also transposed.


def _draw_BT(
    board: SudokuBoard,
    rng: np.random.Generator,
    *,
    batch: int,
) -> tuple[Int32Array, Int32Array]:
    """The source of each position [B, T] and the new token of each token [B, V]."""
    row_BS = _lines_BS(rng, batch, num_blocks=board.box_cols, block_size=board.box_rows)
    col_BS = _lines_BS(rng, batch, num_blocks=board.box_rows, block_size=board.box_cols)
    first_BS = row_BS * board.side
    source_BSS = first_BS[:, :, None] + col_BS[:, None, :]
    if board.is_transposable:
        is_turned_B = rng.random(batch) < 0.5
        turned_BSS = source_BSS.swapaxes(1, 2)
        source_BSS = np.where(is_turned_B[:, None, None], turned_BSS, source_BSS)
    source_BT = source_BSS.reshape(batch, board.num_cells)
    digit_BS = _permutations(rng, (batch, board.side))
    # Pad and blank keep their tokens.
    relabel_BV = np.empty((batch, FIRST_DIGIT + board.side), dtype=np.int32)
    relabel_BV[:, :FIRST_DIGIT] = range(FIRST_DIGIT)
    relabel_BV[:, FIRST_DIGIT:] = digit_BS + FIRST_DIGIT
    return source_BT, relabel_BV


def _lines_BS(
    rng: np.random.Generator,
    batch: int,
    *,
    num_blocks: int,
    block_size: int,
) -> Int32Array:
    """The line that moves to each place.

    Blocks (bands or stacks) are permuted, and lines within each block.
    """
    block_BK = _permutations(rng, (batch, num_blocks))
    line_BKL = _permutations(rng, (batch, num_blocks, block_size))
    first_BK = block_BK * block_size
    moved_BKL = first_BK[:, :, None] + line_BKL
    return moved_BKL.reshape(batch, num_blocks * block_size)


def _permutations(rng: np.random.Generator, shape: tuple[int, ...]) -> Int32Array:
    return np.argsort(rng.random(shape), axis=-1).astype(np.int32)


def _seen(color_BT: UInt64Array, group_T: Int32Array, salt: int) -> UInt64Array:
    """For each cell, a mix of the sum of colors over its group."""
    groups_G1 = np.arange(group_T.max() + 1)[:, None]
    members_GT = (groups_G1 == group_T).astype(np.uint64)
    sums_BG = color_BT @ members_GT.T
    return mixed(sums_BG, salt)[:, group_T]


def _seen_alike(
    color_BT: UInt64Array,
    digit_order_BT: IntpArray,
    side: int,
) -> UInt64Array:
    """For each cell, a mix of the sum of colors over all cells with the same digit."""
    sorted_BT = np.take_along_axis(color_BT, digit_order_BT, axis=1)
    sums_BS = sorted_BT.reshape(-1, side, side).sum(axis=2)
    sums_BT = np.repeat(mixed(sums_BS, 5), side, axis=1)
    seen_BT = np.empty_like(color_BT)
    np.put_along_axis(seen_BT, digit_order_BT, sums_BT, axis=1)
    return seen_BT


# Generation: removes clues from a full grid while the solution stays unique.


def _full_grid(solver: SudokuSolver, rng: np.random.Generator) -> Grid:
    def shuffled(bits: list[int]) -> list[int]:
        return rng.permutation(bits).tolist()

    nothing_given = solver.given([0] * solver.num_cells)
    solutions = solver.search(nothing_given, max_solutions=1, order=shuffled)
    return solutions.grids[0]


def _take_out(solver: SudokuSolver, cells: list[int], block: list[int]) -> None:
    """Clear the cells of a block one after the other, each only if the solution stays unique.

    Fewer clues never make a solution unique again. So a block that can go as a whole gives the
    same result as its cells one by one. A block that cannot is halved.
    """
    clues = [cells[cell] for cell in block]
    for cell in block:
        cells[cell] = 0
    state = solver.given(cells)
    if len(block) > 1:
        is_unique = len(solver.search(state, max_solutions=2).found) == 1
    else:
        # Another solution would have another digit in this cell.
        others = solver.without(state, block[0], clues[0])
        is_unique = not solver.search(others, max_solutions=1).found
    if is_unique:
        return
    for cell, clue in zip(block, clues, strict=True):
        cells[cell] = clue
    if len(block) > 1:
        half = len(block) // 2
        _take_out(solver, cells, block[:half])
        _take_out(solver, cells, block[half:])
