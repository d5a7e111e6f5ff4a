"""A Sudoku board of any side and box shape: its geometry, how people write it, and as text.

People write one string, many lines with or without frames, nested or flat lists. `solver` judges what a grid means.
Shapes: S side, T = S * S cells in reading order, U = 3 * S units (rows, columns, boxes).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain

import numpy as np

from hrm_puzzles.grid.board import GridShape, Int32Array
from hrm_puzzles.grid.notation import BoardSize, Cell, Legend, bad_character, parsed, written
from hrm_puzzles.puzzle import Grid, Notation, Parsed

BLANKS = ".0*_- "
BETWEEN_CELLS = frozenset("|+=, \t\r\n").union(map(chr, range(0x2500, 0x2580)))  # the last are box-drawing characters
HEADERS = ("#", "[")  # lines of the .sdk form: "#A author", "[Puzzle]"


@dataclass(frozen=True, kw_only=True)
class SudokuBoard:
    """A board of `side` digits whose boxes have `box_rows` x `box_cols` = `side` cells."""

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
        """Whether turning rows into columns keeps the boxes; not so on 6x6, where they are wider than high."""
        return self.box_rows == self.box_cols

    @cached_property
    def groups_GT(self) -> Int32Array:
        """Row, column and box index of each cell, [3, T]."""
        row_T, col_T = np.divmod(np.arange(self.num_cells, dtype=np.int32), np.int32(self.side))
        boxes_per_band = self.side // self.box_cols
        box_T = row_T // self.box_rows * boxes_per_band + col_T // self.box_cols
        return np.stack([row_T, col_T, box_T]).astype(np.int32)

    @cached_property
    def units_US(self) -> np.typing.NDArray[np.intp]:
        """The cells of each row, column and box, [3 * S, S], in reading order within a unit."""
        order_GT = np.argsort(self.groups_GT, axis=1, kind="stable")
        return order_GT.reshape(3 * self.side, self.side)

    @cached_property
    def size(self) -> BoardSize:
        side = self.side
        lists = f"{side} lines of {side}, or {side} lists of {side} numbers"
        forms = f"send {self.num_cells} characters with . for a blank, {lists}"
        return BoardSize(shape=GridShape(rows=side, cols=side), rule="wrong-length", forms=forms)

    @cached_property
    def legend(self) -> Legend:
        digits = range(1, self.side + 1)
        return Legend(
            values={**dict.fromkeys(BLANKS, 0), **{str(digit): digit for digit in digits}},
            characters={0: ".", **{digit: str(digit) for digit in digits}},
            open_value=0,
            pads_lines=False,
            described=f"the digits 1 to {self.side}, and . 0 * _ or - for a blank (in lists of numbers 0 or null)",
        )

    @cached_property
    def read(self) -> Callable[[object], Parsed]:
        """The grid in any notation, whether it makes sense or not; `grid.notation` says what is refused."""
        return partial(parsed, self.size, self.legend, partial(_from_text, self))

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(self.legend, grid, notation)

    def cell_name(self, cell: int) -> Cell:
        return self.size.shape.cell_name(cell)

    def board_of(self, text: str) -> Grid:
        """A question or an answer as in CSV files: one character a cell, `.` or `0` for a blank, and nothing else."""
        if len(text) != self.num_cells:
            raise self.size.error(f"there are {len(text)} characters")
        digits = _DIGIT_OF_CHARACTER[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]
        if digits.max() > self.side:
            cell = int(np.argmax(digits > self.side))
            raise bad_character(self.cell_name(cell), text[cell], f"1 to {self.side} and . for a blank")
        return digits.reshape(self.side, self.side)

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Rows of cells with frames between the boxes; with a question, `[5]` is one of its givens, ` 5 ` is not."""
        given = grid * 0 if question is None else question
        pairs = zip(grid.reshape(-1).tolist(), given.reshape(-1).tolist(), strict=True)
        cells = [f"[{digit}]" if digit and digit == given else f" {digit or '.'} " for digit, given in pairs]
        rows = _chunks(cells, self.side)
        lines = ["|".join("".join(part) for part in _chunks(row, self.box_cols)) for row in rows]
        frame = "\n" + "+".join(["---" * self.box_cols] * self.box_rows) + "\n"
        return frame.join("\n".join(band) for band in _chunks(lines, self.box_rows))


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


OTHER = 127
_DIGIT_OF_CHARACTER = np.full(256, OTHER, dtype=np.int8)
_DIGIT_OF_CHARACTER[ord(".")] = 0
_DIGIT_OF_CHARACTER[ord("0") : ord("9") + 1] = range(10)


# Text: a line is the offsets of its cells in the whole text.


def _from_text(board: SudokuBoard, text: str) -> Parsed:
    lines = _lines(board, text)
    offsets = tuple(chain.from_iterable(lines))
    characters = "".join(map(text.__getitem__, offsets))
    if refused := characters.lstrip("".join(board.legend.values)):
        place = len(characters) - len(refused)
        names = [(row, col) for row, line in enumerate(lines, 1) for col in range(1, len(line) + 1)]
        cell = names[place] if len(lines) == board.side else board.cell_name(place)  # rows are counted off
        raise bad_character(cell, refused[0], board.legend.described)
    if len(lines) == board.side:
        for row, line in enumerate(lines):
            board.size.require(line, board.side, f"row {row + 1}", "cells", row)
    board.size.require(characters, board.num_cells, "the text", "cells")
    first_blank = characters.strip("123456789")[:1]
    notation = Notation(kind="text", blank=first_blank or ".", template=text, cells=offsets)
    digits = _DIGIT_OF_CHARACTER[np.frombuffer(characters.encode(), dtype=np.uint8)] % OTHER
    return Parsed(grid=digits.reshape(board.side, board.side), notation=notation)


def _lines(board: SudokuBoard, text: str) -> list[list[int]]:
    """The cells of each line without headers and frames; where that makes no board, dashes or spaces may be blanks."""
    lines: list[list[int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        if not line.lstrip().startswith(HEADERS):
            cells = [offset for offset, character in enumerate(line, start) if character not in BETWEEN_CELLS]
            lines += [cells] if cells else []
        start += len(line)
    usual = [line for line in lines if len(lines) == 1 or not _is_dashes(text, line)]
    with_rows_of_dashes = [line for line in lines if len(line) == board.side or not _is_dashes(text, line)]
    for found in (usual, with_rows_of_dashes):
        if sum(map(len, found)) == board.num_cells:
            return found
    spaces_are_blanks = len(text) == board.num_cells and not text.strip(" 123456789")
    return [list(range(len(text)))] if spaces_are_blanks else usual


def _is_dashes(text: str, line: list[int]) -> bool:
    """Whether a line is a part of a frame, or a row of blanks."""
    return all(text[offset] == "-" for offset in line)
