"""A Sudoku board of any side and box shape: its geometry, how people write it, and as text.

People write one string, many lines with or without frames, nested or flat lists. `parsed` reads every notation into
digits (0 blank) and remembers the form; `written` writes the same form again. What a grid means is judged in `solver`.
Shapes: S side, T = S * S cells in reading order, U = 3 * S units (rows, columns, boxes).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np

from hrm_puzzles.grid.board import GridShape, Int32Array
from hrm_puzzles.grid.notation import BoardSize, Cell, bad_character, shown
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

BLANKS = ".0*_-"
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

    def cell_name(self, cell: int) -> Cell:
        """(row, column), counted from 1, of a cell index."""
        return self.size.shape.cell_name(cell)

    def board_of(self, text: str) -> Grid:
        """A question or an answer as in CSV files: one character a cell, `.` or `0` for a blank, and nothing else."""
        if len(text) != self.num_cells:
            raise self.size.error(f"there are {len(text)} characters")
        digits = _digits(text)
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


def parsed(board: SudokuBoard, notation: object) -> Parsed:
    """Read any notation; raises PuzzleError with the rule `not-a-puzzle`, `wrong-length` or `bad-character`."""
    if isinstance(notation, str):
        return _from_text(board, notation)
    if isinstance(notation, list):
        return _from_list(board, cast("list[object]", notation))
    raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", board.size.forms)


def written(grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question, as a JSON value."""
    if notation.kind == "rows":
        return [[digit or notation.blank for digit in row] for row in grid.tolist()]
    cells = grid.reshape(-1)
    if notation.kind == "flat":
        return [digit or notation.blank for digit in cells.tolist()]
    text = list(notation.template)
    for offset, character in zip(notation.cells, (cells + ord("0")).tobytes().decode(), strict=True):
        text[offset] = character if character != "0" else str(notation.blank)
    return "".join(text).split("\n") if notation.kind == "lines" else "".join(text)


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


_NO_DIGIT = 127
_DIGIT_OF_CHARACTER = np.full(256, _NO_DIGIT, dtype=np.int8)
_DIGIT_OF_CHARACTER[ord(".")] = 0
_DIGIT_OF_CHARACTER[ord("0") : ord("9") + 1] = range(10)


def _digits(text: str) -> Grid:
    return _DIGIT_OF_CHARACTER[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]


def _from_list(board: SudokuBoard, values: list[object]) -> Parsed:
    if any(isinstance(value, list) for value in values[: board.side]):
        return _from_values(board, list(chain.from_iterable(board.size.rows_of(values))), "rows")
    if len(values) == board.side and all(isinstance(value, str) for value in values):
        read = _from_text(board, "\n".join(cast("list[str]", values)))
        return replace(read, notation=replace(read.notation, kind="lines"))
    board.size.require(values, board.num_cells, "the list", "values")
    return _from_values(board, values, "flat")


def _from_values(board: SudokuBoard, values: list[object], kind: str) -> Parsed:
    for cell, value in enumerate(values):
        is_digit = type(value) is int and 0 <= value <= board.side  # bool is an int to isinstance, but no digit
        if value is not None and not is_digit:
            described = f"the whole numbers 1 to {board.side}, and 0 or null for a blank"
            raise bad_character(board.cell_name(cell), value, described)
    grid = np.array([value or 0 for value in values], dtype=np.int8).reshape(board.side, board.side)
    return Parsed(grid=grid, notation=Notation(kind=kind, blank=None if None in values else 0))


# Text: a line is the offsets of its cells in the whole text.


def _from_text(board: SudokuBoard, text: str) -> Parsed:
    board.size.require_short(text)
    lines = _lines(board, text)
    offsets = tuple(chain.from_iterable(lines))
    characters = "".join(map(text.__getitem__, offsets))
    digits = "123456789"[: board.side]
    refused = characters.lstrip(BLANKS + " " + digits)
    if refused:
        cell = _cell_name(board, lines, len(characters) - len(refused))
        described = f"the digits 1 to {board.side}, and one of {' '.join(BLANKS)} for a blank"
        raise bad_character(cell, refused[0], described)
    if len(lines) == board.side:
        for row, line in enumerate(lines):
            board.size.require(line, board.side, f"row {row + 1}", "cells", row)
    board.size.require(characters, board.num_cells, "the text", "cells")
    first_blank = characters.strip(digits)[:1]
    notation = Notation(kind="text", blank=first_blank or ".", template=text, cells=offsets)
    grid = (_digits(characters) % _NO_DIGIT).reshape(board.side, board.side)
    return Parsed(grid=grid, notation=notation)


def _lines(board: SudokuBoard, text: str) -> list[list[int]]:
    """The cells of each line that has any, without headers and frames.

    Where that does not make a board, lines of dashes may be rows of blanks, or spaces may be blanks.
    """
    lines: list[list[int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        if not line.lstrip().startswith(HEADERS):
            cells = [offset for offset, character in enumerate(line, start) if character not in BETWEEN_CELLS]
            lines += [cells] if cells else []
        start += len(line)
    is_dashed = [text[line[0]] == "-" and not "".join(map(text.__getitem__, line)).strip("-") for line in lines]
    usual = [line for line, dashed in zip(lines, is_dashed, strict=True) if not dashed or len(lines) == 1]
    if sum(map(len, usual)) == board.num_cells:
        return usual
    dashes_are_rows = [
        line for line, dashed in zip(lines, is_dashed, strict=True) if not dashed or len(line) == board.side
    ]
    if sum(map(len, dashes_are_rows)) == board.num_cells:
        return dashes_are_rows
    spaces_are_blanks = len(text) == board.num_cells and not text.strip(" 123456789")
    return [list(range(len(text)))] if spaces_are_blanks else usual


def _cell_name(board: SudokuBoard, lines: list[list[int]], cell: int) -> Cell:
    """(row, column) of a cell; without one line for each row, rows are counted off."""
    if len(lines) != board.side:
        return board.cell_name(cell)
    row = 0
    while cell >= len(lines[row]):
        cell -= len(lines[row])
        row += 1
    return row + 1, cell + 1
