"""A Sudoku board with any side and box shape: its geometry, its notations and its text form.

`reading.frames` reads texts. `solver` judges the question. Shapes: S side, T = S * S cells in
reading order, U = 3 * S units (rows, columns, boxes), G = 3 partitions (row, column, box).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from string import ascii_uppercase

import numpy as np

from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.grid.notation import parsed
from hrm_puzzles.puzzle import Grid, Int32Array, IntpArray, Parsed
from hrm_puzzles.reading.frames import parsed_framed
from hrm_puzzles.reading.legend import BoardSize, Cell, Legend

BLANKS = ".0*_- "
SYMBOLS = "123456789" + ascii_uppercase  # 10 is A; small letters are read too
OTHER_BLANKS = "xX?oO·•□⬜"  # of other programs, in texts without a blank mark
EXTRA_BLANKS = {-1: 0, "": 0, "nan": 0, "None": 0}  # in lists and tables


@dataclass(frozen=True, kw_only=True)
class SudokuBoard:
    """A board of `side` digits. Its boxes have `box_rows` x `box_cols` = `side` cells."""

    box_rows: int
    box_cols: int

    @cached_property
    def side(self) -> int:
        return self.box_rows * self.box_cols

    @cached_property
    def num_cells(self) -> int:
        return self.side**2

    @property
    def is_transposable(self) -> bool:
        """Whether transposing the board keeps its boxes.

        False for 6x6, whose boxes are wider than high.
        """
        return self.box_rows == self.box_cols

    @cached_property
    def groups_GT(self) -> Int32Array:
        """Row, column and box index of each cell, [3, T]."""
        cells_T = np.arange(self.num_cells, dtype=np.int32)
        row_T, col_T = np.divmod(cells_T, np.int32(self.side))
        boxes_per_band = self.side // self.box_cols
        band_T = row_T // self.box_rows
        stack_T = col_T // self.box_cols
        box_T = band_T * boxes_per_band + stack_T
        return np.stack([row_T, col_T, box_T]).astype(np.int32)

    @cached_property
    def units_US(self) -> IntpArray:
        """The cells of each row, column and box, [3 * S, S], in reading order within a unit."""
        order_GT = np.argsort(self.groups_GT, axis=1, kind="stable")
        return order_GT.reshape(3 * self.side, self.side)

    @cached_property
    def size(self) -> BoardSize:
        side = self.side
        text = f"{self.num_cells} characters with . for a blank"
        lists = f"{side} lines of {side} or {side} lists of {side} numbers"
        shape = GridShape(rows=side, cols=side)
        return BoardSize(shape=shape, rule="wrong-length", forms=f"send {text}, {lists}")

    @cached_property
    def legend(self) -> Legend:
        values = dict.fromkeys(BLANKS, 0)
        characters = {0: "."}
        for digit, symbol in enumerate(SYMBOLS[: self.side], start=1):
            values[symbol] = digit
            values[symbol.lower()] = digit
            characters[digit] = symbol
        digits = f"the digits 1 to {self.side}"
        if self.side > 9:
            digits = f"1 to 9, A to {characters[self.side]} for 10 to {self.side}"
        blanks = ". 0 * _ or - for a blank (in lists of numbers 0, -1 or null)"
        return Legend(
            values=values,
            characters=characters,
            open_value=0,
            described=f"{digits}, and {blanks}",
            others={0: OTHER_BLANKS},
            in_lists=EXTRA_BLANKS,
        )

    @cached_property
    def read(self) -> Callable[[object], Parsed]:
        """Reads any notation and does not judge the board; `grid.notation` lists the errors."""
        from_text = partial(parsed_framed, self.size, self.legend, self.box_cols)
        return partial(parsed, self.size, self.legend, from_text)

    def cell_name(self, cell: int) -> Cell:
        return self.size.shape.cell_name(cell)

    def board_of(self, board: object) -> Grid:
        return self.read(board).grid

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Draw rows of cells with frames between the boxes.

        If `question` is passed, its givens are in brackets: `[5]` is a given, ` 5 ` is not.
        """
        if question is None:
            question = np.zeros_like(grid)
        lines: list[str] = []
        for row in range(self.side):
            if row and row % self.box_rows == 0:
                lines.append("+".join(["---" * self.box_cols] * self.box_rows))
            line = ""
            for col, digit in enumerate(grid[row].tolist()):
                if col and col % self.box_cols == 0:
                    line += "|"
                character = self.legend.characters[digit]
                is_given = digit and digit == question[row, col]
                line += f"[{character}]" if is_given else f" {character} "
            lines.append(line)
        return "\n".join(lines)
