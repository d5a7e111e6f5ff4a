"""A Sudoku board with any side and box shape: its geometry, its notations and its text form.

People write one string, many lines with or without frames, and nested or flat lists. `solver`
judges the question. Shapes: S side, T = S * S cells in reading order, U = 3 * S units (rows,
columns, boxes), G = 3 partitions (row, column, box).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.board import GridShape, Int32Array
from hrm_puzzles.grid.notation import BoardSize, Cell, Legend, bad_character, parsed, written
from hrm_puzzles.puzzle import Grid, Notation, Parsed

BLANKS = ".0*_- "
SYMBOLS = "123456789" + ascii_uppercase  # 10 is A; small letters are read too
BOX_DRAWING = [chr(code) for code in range(0x2500, 0x2580)]
BETWEEN_CELLS = frozenset("|+=, \t\r\n").union(BOX_DRAWING)
HEADERS = ("#", "[")  # lines of the .sdk format: "#A author", "[Puzzle]"

# The digit of each character in CSV files; OTHER for all other characters.
OTHER = 127
_DIGIT_OF_CHARACTER = np.full(256, OTHER, dtype=np.int8)
_DIGIT_OF_CHARACTER[ord(".")] = 0
_DIGIT_OF_CHARACTER[ord("0")] = 0
for _digit, _symbol in enumerate(SYMBOLS, start=1):
    _DIGIT_OF_CHARACTER[ord(_symbol)] = _digit
    _DIGIT_OF_CHARACTER[ord(_symbol.lower())] = _digit

Line = list[int]  # the offsets of its cells in the whole text


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

        This is not so on 6x6, where boxes are wider than high.
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
    def units_US(self) -> NDArray[np.intp]:
        """The cells of each row, column and box, [3 * S, S], in reading order within a unit."""
        order_GT = np.argsort(self.groups_GT, axis=1, kind="stable")
        return order_GT.reshape(3 * self.side, self.side)

    @cached_property
    def size(self) -> BoardSize:
        side = self.side
        text = f"{self.num_cells} characters with . for a blank"
        lists = f"{side} lines of {side}, or {side} lists of {side} numbers"
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
        blanks = ". 0 * _ or - for a blank (in lists of numbers 0 or null)"
        return Legend(
            values=values,
            characters=characters,
            open_value=0,
            pads_lines=False,
            described=f"{digits}, and {blanks}",
        )

    @cached_property
    def symbols(self) -> str:
        """The characters that are read as digits."""
        return "".join(text for text, value in self.legend.values.items() if value)

    @cached_property
    def read(self) -> Callable[[object], Parsed]:
        """Reads any notation and does not judge the board; `grid.notation` lists the errors."""
        from_text = partial(_from_text, self)
        return partial(parsed, self.size, self.legend, from_text)

    def write(self, grid: Grid, notation: Notation) -> object:
        return written(self.legend, grid, notation)

    def cell_name(self, cell: int) -> Cell:
        return self.size.shape.cell_name(cell)

    def board_of(self, text: str) -> Grid:
        """Read a question or an answer as text; quickly if it has one digit or dot per cell."""
        if len(text) == self.num_cells:
            digits = _digits_of(text)
            if digits.max() <= self.side:
                return digits.reshape(self.side, self.side)
        return self.read(text).grid

    def render(self, grid: Grid, question: Grid | None = None) -> str:
        """Draw rows of cells with frames between the boxes.

        If `question` is passed, its givens are in brackets: `[5]` is a given, ` 5 ` is not.
        """
        if question is None:
            question = np.zeros_like(grid)
        digits = grid.reshape(-1).tolist()
        givens = question.reshape(-1).tolist()
        cells = [
            _picture(self.legend.characters[digit], digit == given)
            for digit, given in zip(digits, givens, strict=True)
        ]
        lines: list[str] = []
        for row in _chunks(cells, self.side):
            boxes = _chunks(row, self.box_cols)
            lines.append("|".join("".join(box) for box in boxes))
        dashes = "---" * self.box_cols
        frame = "+".join([dashes] * self.box_rows)
        bands = ["\n".join(band) for band in _chunks(lines, self.box_rows)]
        return f"\n{frame}\n".join(bands)


def _picture(character: str, is_given: bool) -> str:
    if is_given and character != ".":
        return f"[{character}]"
    return f" {character} "


def _chunks(items: list[str], size: int) -> list[list[str]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _digits_of(text: str) -> NDArray[np.int8]:
    """The digit of each character; OTHER if it does not have one."""
    data = text.encode("ascii", errors="replace")
    return _DIGIT_OF_CHARACTER[np.frombuffer(data, dtype=np.uint8)]


def _from_text(board: SudokuBoard, text: str) -> Parsed:
    lines = _lines_of_cells(text)
    if len(lines) != 1 or len(lines[0]) != board.num_cells:
        lines = _without_frames(board, text, lines)
    offsets = tuple(chain.from_iterable(lines))
    characters = "".join(map(text.__getitem__, offsets))
    known = "".join(board.legend.values)
    rest = characters.lstrip(known)
    if rest:
        place = len(characters) - len(rest)
        cell = _cell_of(board, lines, place)
        raise bad_character(cell, rest[0], board.legend.described)
    if len(lines) == board.side:
        for row, line in enumerate(lines):
            board.size.require_row(line, "cells", row)
    board.size.require(characters, board.num_cells, "the text", "cells")
    first_blank = characters.strip(board.symbols)[:1]
    notation = Notation(kind="text", blank=first_blank or ".", template=text, cells=offsets)
    digits = list(map(board.legend.values.__getitem__, characters))
    grid = np.array(digits, dtype=np.int8).reshape(board.side, board.side)
    return Parsed(grid=grid, notation=notation)


def _cell_of(board: SudokuBoard, lines: list[Line], place: int) -> Cell:
    """The (row, column) from 1 of a character, by its place among all cells of the text."""
    if len(lines) != board.side:
        return board.cell_name(place)
    row = 0
    while place >= len(lines[row]):
        place -= len(lines[row])
        row += 1
    return row + 1, place + 1


def _without_frames(board: SudokuBoard, text: str, lines: list[Line]) -> list[Line]:
    """The cells of each line without frames.

    Lines of dashes are frames, and spaces separate cells. If that does not make a board, dashes or
    spaces may be blanks.
    """
    usual = lines
    if len(lines) > 1:
        usual = [line for line in lines if not _is_dashes(text, line)]
    if sum(map(len, usual)) == board.num_cells:
        return usual
    with_dashes = [line for line in lines if len(line) == board.side or not _is_dashes(text, line)]
    if sum(map(len, with_dashes)) == board.num_cells:
        return with_dashes
    if len(text) == board.num_cells and not text.strip(" " + board.symbols):
        return [list(range(len(text)))]
    return usual


def _lines_of_cells(text: str) -> list[Line]:
    """The cells of each line that has some, without headers; frames of dashes are among them."""
    lines: list[Line] = []
    start = 0
    for line in text.splitlines(keepends=True):
        cells: Line = []
        if not line.lstrip().startswith(HEADERS):
            for offset, character in enumerate(line, start):
                if character not in BETWEEN_CELLS:
                    cells.append(offset)
        if cells:
            lines.append(cells)
        start += len(line)
    return lines


def _is_dashes(text: str, line: Line) -> bool:
    """Whether a line has dashes only: it is a part of a frame, or a row of blanks."""
    return all(text[offset] == "-" for offset in line)
