"""Boards as people write them: one string, lines of text, a list of lines, rows of values, or a JSON object.

A `Legend` says what the characters of a puzzle stand for; whether a board makes sense is judged by the puzzle.
Shapes: R rows, C columns.
"""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np

from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

MAX_TEXT = 4000  # characters: more than any form of a board, headers included

Cell = tuple[int, int]
FromText = Callable[[str], Parsed]


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The character of each value, every character that is read, and the words of an error.

    Lists may hold the values themselves, and null for an open cell. `open_value` is written with the character that the
    question used for it; `pads_lines` says that this can be a space, so that an editor may have cut lines short.
    """

    values: Mapping[str, int]
    characters: Mapping[int, str]
    open_value: int
    pads_lines: bool
    described: str


@dataclass(frozen=True, kw_only=True)
class BoardSize:
    """The size a puzzle must have, with the rule and the remedy of the error where it has another."""

    shape: GridShape
    rule: str
    forms: str

    def error(self, problem: str, row: int | None = None) -> PuzzleError:
        return PuzzleError(problem, self.rule, self.forms, None if row is None else (row + 1, 1))

    def require(self, values: Sized, count: int, subject: str, noun: str, row: int | None = None) -> None:
        if len(values) != count:
            raise self.error(f"{subject} has {len(values)} {noun} where {count} are expected", row)

    def rows_of(self, values: object) -> list[list[object]]:
        """A list of R lists of C values each."""
        if not isinstance(values, list):
            raise self.error(f"{shown(values)} stands where a list of rows is expected")
        rows = cast("list[object]", values)
        self.require(rows, self.shape.rows, "the list", "rows")
        for number, row in enumerate(rows):
            if not isinstance(row, list):
                raise self.error(f"row {number + 1} is {shown(row)} where a list is expected", number)
            self.require(cast("list[object]", row), self.shape.cols, f"row {number + 1}", "values", number)
        return cast("list[list[object]]", rows)


def size_of(shape: GridShape) -> BoardSize:
    rows, cols = shape.rows, shape.cols
    forms = f"send {rows} lines of {cols} characters, {rows * cols} characters at once, or {rows} lists of {cols}"
    return BoardSize(shape=shape, rule="wrong-size", forms=forms)


def parsed(size: BoardSize, legend: Legend, from_text: FromText, notation: object) -> Parsed:
    """Read text or lists; raises PuzzleError with the rule `not-a-puzzle`, that of `size`, or `bad-character`."""
    if isinstance(notation, str):
        _check_length(size, notation)
        return from_text(notation)
    if isinstance(notation, list):
        return _from_list(size, legend, cast("list[object]", notation), from_text)
    raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", size.forms)


def _check_length(size: BoardSize, text: str) -> None:
    if len(text) > MAX_TEXT:
        raise size.error(f"the text has {len(text)} characters, more than any form of a board")


def written(legend: Legend, grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question, as a JSON value."""
    if notation.kind in ("numbers", "flat"):
        rows = [[notation.blank if value == legend.open_value else value for value in row] for row in grid.tolist()]
        return rows if notation.kind == "numbers" else list(chain.from_iterable(rows))
    characters = {**legend.characters, legend.open_value: str(notation.blank)}
    if notation.kind == "rows":
        return [[characters[value] for value in row] for row in grid.tolist()]
    text = list(notation.template)
    for offset, value in zip(notation.cells, grid.reshape(-1).tolist(), strict=True):
        if legend.values[text[offset]] != value:
            text[offset] = characters[value]
    return "".join(text).split("\n") if notation.kind == "lines" else "".join(text)


def text_of(legend: Legend, grid: Grid) -> str:
    """The grid as lines of text, an open cell as a dot."""
    characters = {**legend.characters, legend.open_value: "."}
    return "\n".join("".join(characters[value] for value in row) for row in grid.tolist())


def lines_parsed(size: BoardSize, legend: Legend, text: str) -> Parsed:
    """Read lines of equal length, or all cells in one line."""
    shape = size.shape
    lines = text.replace("\r\n", "\n").split("\n")
    expected = 1 if len(lines) < shape.rows else shape.rows
    if len(lines) > expected and not lines[-1]:
        lines = lines[:-1]
    if len(lines) > expected and not lines[0]:  # as before a quoted block
        lines = lines[1:]
    if len(lines) == 1:
        size.require(lines[0], shape.num_cells, "the text", "characters")
        stride = shape.cols
    else:
        size.require(lines, shape.rows, "the text", "lines")
        stride = shape.cols + 1
        if legend.pads_lines and "." not in text:  # editors cut off spaces, and nothing else
            lines = [line.ljust(shape.cols) for line in lines]
        for row, line in enumerate(lines):
            size.require(line, shape.cols, f"row {row + 1}", "characters", row)
    offsets = tuple(row * stride + col for row in range(shape.rows) for col in range(shape.cols))
    text = "\n".join(lines)
    characters = [text[offset] for offset in offsets]
    grid = _grid(shape, legend, characters)
    notation = Notation(kind="text", blank=_blank(legend, characters), template=text, cells=offsets)
    return Parsed(grid=grid, notation=notation)


def _from_list(size: BoardSize, legend: Legend, values: list[object], from_text: FromText) -> Parsed:
    """A list of lines, of rows, or of the cells one after the other."""
    if values and all(isinstance(value, str) for value in values):
        size.require(values, size.shape.rows, "the list", "rows")
        text = "\n".join(cast("list[str]", values))
        _check_length(size, text)
        read = from_text(text)
        return replace(read, notation=replace(read.notation, kind="lines"))
    is_flat = not any(isinstance(value, list) for value in values[: size.shape.rows])
    if is_flat:
        size.require(values, size.shape.num_cells, "the list", "values")
    cells = values if is_flat else [cell for row in size.rows_of(values) for cell in row]
    grid = _grid(size.shape, legend, cells)
    if all(isinstance(cell, str) for cell in cells) and not is_flat:
        return Parsed(grid=grid, notation=Notation(kind="rows", blank=_blank(legend, cast("list[str]", cells))))
    blank = None if None in cells else legend.open_value
    return Parsed(grid=grid, notation=Notation(kind="flat" if is_flat else "numbers", blank=blank))


def _grid(shape: GridShape, legend: Legend, cells: list[object] | list[str]) -> Grid:
    values: list[int] = []
    for cell, value in enumerate(cells):
        if isinstance(value, str) and value in legend.values:
            values.append(legend.values[value])
        elif type(value) is int and value in legend.characters:  # bool is an int to isinstance, but no cell to a person
            values.append(value)
        elif value is None:
            values.append(legend.open_value)
        else:
            raise bad_character(shape.cell_name(cell), value, legend.described)
    return np.array(values, dtype=np.int8).reshape(shape.rows, shape.cols)


def _blank(legend: Legend, characters: list[str]) -> str:
    is_open = (character for character in characters if legend.values[character] == legend.open_value)
    return next(is_open, legend.characters[legend.open_value])


# JSON objects: a matrix of numbers, and cells given as [row, column] from 0; the answer is one more key.


def check_keys(question: dict[object, object], keys: tuple[str, ...], answer_key: str, form: str) -> None:
    """Refuse an object that lacks one of the keys, or has others than these and that of the answer."""
    if not set(keys) <= set(question) <= {*keys, answer_key}:
        named = ", ".join(shown(key) for key in list(question)[:6]) or "nothing"
        raise PuzzleError(f"the object has the keys {named}", "wrong-keys", form)


def numbers_of(
    shape: GridShape, value: object, allowed: tuple[int, ...], described: str
) -> tuple[Grid, list[list[object]]]:
    """A grid of the allowed numbers, and the rows it was read from."""
    rows = size_of(shape).rows_of(value)
    for cell, number in enumerate(number for row in rows for number in row):
        if type(number) is not int or number not in allowed:
            raise bad_character(shape.cell_name(cell), number, described)
    return np.array(rows, dtype=np.int8), rows


def cell_of(shape: GridShape, name: str, value: object) -> Cell:
    """[row, column] from 0, as in grid[row][column]."""
    cell = cast("list[object]", value) if isinstance(value, list) else []
    if len(cell) == 2 and all(type(number) is int for number in cell):
        row, col = cast("list[int]", cell)
        if 0 <= row < shape.rows and 0 <= col < shape.cols:
            return row, col
    remedy = f"send [row, column] from [0, 0] to [{shape.rows - 1}, {shape.cols - 1}]"
    text = f"[{', '.join(map(shown, cell[:3]))}]" if 0 < len(cell) <= 3 else shown(value)
    raise PuzzleError(f"{name} is {text}, which is no cell of the grid", "bad-cell", remedy)


def cells_of(shape: GridShape, name: str, value: object) -> list[Cell]:
    if not isinstance(value, list):
        raise PuzzleError(f"{name} is {shown(value)}", "bad-cell", "send a list of [row, column]")
    cells = cast("list[object]", value)
    if len(cells) > shape.num_cells:
        raise PuzzleError(f"{name} has {len(cells)} cells", "bad-cell", f"send at most {shape.num_cells}")
    return [cell_of(shape, f"{name}[{index}]", cell) for index, cell in enumerate(cells)]


def error_at(cell: Cell, problem: str, rule: str, remedy: str) -> PuzzleError:
    """An error about a cell of an object; it names the cell from 1, as all errors do."""
    row, col = cell[0] + 1, cell[1] + 1
    return PuzzleError(f"{problem} at row {row}, column {col} (from 1)", rule, remedy, (row, col))


def bad_character(cell: Cell, value: object, described: str) -> PuzzleError:
    """An error about a value at (row, column) from 1."""
    problem = f"{shown(value)} stands at row {cell[0]}, column {cell[1]}"
    return PuzzleError(problem, "bad-character", f"use {described}", cell)


def shown(value: object) -> str:
    """A value as an error may quote it: short, whatever was sent."""
    if isinstance(value, str):
        return ascii(value[:20])
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    is_printable = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return str(value) if is_printable else f"a value of type {type(value).__name__}"
