"""A Sudoku board of any side and box shape: its geometry, how people write it, and as text.

People write one string, many lines with or without frames, nested or flat lists. `parsed` reads every notation into
digits (0 blank) and remembers the form; `written` writes the same form again. What a grid means is judged in `solver`.
Shapes: S side, T = S * S cells in reading order, U = 3 * S units (rows, columns, boxes).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.board import GridShape, Int32Array
from hrm_puzzles.grid.notation import BoardSize, Cell, bad_character, shown
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

BLANKS = ".0*_-"
CELLS = re.compile("[^|+=, \t\r\n\u2500-\u257f]+")  # anything but line ends and what is drawn between cells
HEADERS = ("#", "[")  # lines of the .sdk form: "#A author", "[Puzzle]"


@dataclass(frozen=True, kw_only=True)
class SudokuBoard:
    """A board of `side` digits whose boxes have `box_rows` x `box_cols` = `side` cells."""

    box_rows: int
    box_cols: int

    @property
    def side(self) -> int:
        return self.box_rows * self.box_cols

    @property
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
    def units_US(self) -> NDArray[np.intp]:
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


def from_row(board: SudokuBoard, text: str) -> Grid:
    """A question or an answer as in CSV files: one character a cell, `.` or `0` for a blank, and nothing else."""
    if len(text) != board.num_cells:
        raise board.size.error(f"there are {len(text)} characters")
    digits = _digits(text)
    if digits.max() > board.side:
        cell = int(np.argmax(digits > board.side))
        raise bad_character(board.cell_name(cell), text[cell], f"1 to {board.side} and . for a blank")
    return digits.reshape(board.side, board.side)


def board_text(board: SudokuBoard, grid: Grid, question: Grid | None = None) -> str:
    """Rows of cells with frames between the boxes; with a question, `[5]` is one of its givens and ` 5 ` is not."""
    given = grid * 0 if question is None else question
    pairs = zip(grid.reshape(-1).tolist(), given.reshape(-1).tolist(), strict=True)
    cells = [f"[{digit}]" if digit and digit == given else f" {digit or '.'} " for digit, given in pairs]
    rows = _chunks(cells, board.side)
    lines = ["|".join("".join(part) for part in _chunks(row, board.box_cols)) for row in rows]
    frame = "\n" + "+".join(["---" * board.box_cols] * board.box_rows) + "\n"
    return frame.join("\n".join(band) for band in _chunks(lines, board.box_rows))


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


_NO_DIGIT = 127
_DIGIT_OF_CHARACTER = np.full(256, _NO_DIGIT, dtype=np.int8)
_DIGIT_OF_CHARACTER[ord(".")] = 0
_DIGIT_OF_CHARACTER[ord("0") : ord("9") + 1] = range(10)


def _digits(text: str) -> Grid:
    """The digit of each character, `_NO_DIGIT` where it is none."""
    return _DIGIT_OF_CHARACTER[np.frombuffer(text.encode("ascii", errors="replace"), dtype=np.uint8)]


# Lists


def _from_list(board: SudokuBoard, values: list[object]) -> Parsed:
    if any(isinstance(value, list) for value in values[: board.side]):
        return _from_values(board, list(chain.from_iterable(board.size.rows_of(values))), "rows")
    if len(values) == board.side and all(isinstance(value, str) for value in values):
        read = _from_text(board, "\n".join(cast("list[str]", values)))
        return replace(read, notation=replace(read.notation, kind="lines"))
    board.size.require(values, board.num_cells, "the list", "values")
    return _from_values(board, values, "flat")


def _from_values(board: SudokuBoard, values: list[object], kind: str) -> Parsed:
    digits = [_digit(board, cell, value) for cell, value in enumerate(values)]
    grid = np.array(digits, dtype=np.int8).reshape(board.side, board.side)
    return Parsed(grid=grid, notation=Notation(kind=kind, blank=None if None in values else 0))


def _digit(board: SudokuBoard, cell: int, value: object) -> int:
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= board.side:  # bool is an int to isinstance, but no digit to a person
        return value
    described = f"the whole numbers 1 to {board.side}, and 0 or null for a blank"
    raise bad_character(board.cell_name(cell), value, described)


# Text: a line is the offsets of its cells in the whole text.


def _from_text(board: SudokuBoard, text: str) -> Parsed:
    board.size.require_short(text)
    readings = _readings(board, text)
    lines = next((lines for lines in readings if sum(map(len, lines)) == board.num_cells), readings[0])
    rows = ["".join(text[offset] for offset in line) for line in lines]
    _check_characters(board, rows)
    _check_lengths(board, rows)
    characters = "".join(rows)
    first_blank = characters.strip("123456789")[:1]
    offsets = tuple(chain.from_iterable(lines))
    notation = Notation(kind="text", blank=first_blank or ".", template=text, cells=offsets)
    digits = _digits(characters) % _NO_DIGIT
    return Parsed(grid=digits.reshape(board.side, board.side), notation=notation)


def _readings(board: SudokuBoard, text: str) -> list[list[list[int]]]:
    """The ways to understand a text, the usual one first: dashes may be frames or blanks, spaces may be blanks."""
    lines = _lines(text)
    is_dashed = [all(text[offset] == "-" for offset in line) for line in lines]
    frames_dropped = [line for line, dashed in zip(lines, is_dashed, strict=True) if not dashed or len(lines) == 1]
    dashes_are_rows = [
        line for line, dashed in zip(lines, is_dashed, strict=True) if not dashed or len(line) == board.side
    ]
    readings = [frames_dropped, dashes_are_rows]
    if len(text) == board.num_cells and not text.strip(" 123456789"):
        readings.append([list(range(len(text)))])
    return readings


def _lines(text: str) -> list[list[int]]:
    """The cells of each line that has any; headers are left out."""
    lines: list[list[int]] = []
    start = 0
    for line in text.splitlines(keepends=True):
        if not line.lstrip().startswith(HEADERS):
            cells = [start + at for run in CELLS.finditer(line) for at in range(run.start(), run.end())]
            lines += [cells] if cells else []
        start += len(line)
    return lines


def _check_characters(board: SudokuBoard, rows: list[str]) -> None:
    allowed = BLANKS + " " + "".join(map(str, range(1, board.side + 1)))
    if not "".join(rows).strip(allowed):
        return
    for cell, character in _named_cells(board, rows):
        if character not in allowed:
            described = f"the digits 1 to {board.side}, and one of {' '.join(BLANKS)} for a blank"
            raise bad_character(cell, character, described)


def _named_cells(board: SudokuBoard, rows: list[str]) -> Iterator[tuple[Cell, str]]:
    """(row, column) and character of each cell; without one line for each row, rows are counted off."""
    if len(rows) != board.side:
        yield from ((board.cell_name(cell), character) for cell, character in enumerate("".join(rows)))
        return
    for row, characters in enumerate(rows, start=1):
        yield from (((row, col), character) for col, character in enumerate(characters, start=1))


def _check_lengths(board: SudokuBoard, rows: list[str]) -> None:
    if len(rows) == board.side:
        for row, characters in enumerate(rows):
            board.size.require(characters, board.side, f"row {row + 1}", "cells", row)
    board.size.require("".join(rows), board.num_cells, "the text", "cells")
