"""Boards as people write them: text, lists of lines, rows of values, or JSON objects.

A `Legend` defines the characters of a puzzle. The puzzle itself judges whether a board is valid.
Shapes: R rows, C columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

MAX_TEXT = 4000  # characters; every form of a board is shorter, including headers
MAX_SHOWN = 20  # characters of a string that an error quotes
MAX_SHOWN_NUMBER = 10**9  # an error does not quote larger integers
MAX_SHOWN_KEYS = 6  # keys of an object that an error quotes

Cell = tuple[int, int]
FromText = Callable[[str], Parsed]


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The characters of a puzzle.

    `values` has every character that is read, `characters` the one that is written for each value.
    Lists may also hold the values themselves, and null for an open cell. An open cell is written
    with the character that the question uses for it. If this can be a space, editors may have cut
    lines short: `pads_lines` restores them. `described` explains the characters in error messages.
    """

    values: Mapping[str, int]
    characters: Mapping[int, str]
    open_value: int
    pads_lines: bool
    described: str


@runtime_checkable
class Lettered(Protocol):
    """A puzzle with a legend. It reads rows of values; the web page draws its boards as symbols."""

    @property
    def legend(self) -> Legend: ...


@dataclass(frozen=True, kw_only=True)
class BoardSize:
    """The required size of a board, and the rule and the remedy of errors about it."""

    shape: GridShape
    rule: str
    forms: str

    def error(self, problem: str) -> PuzzleError:
        return PuzzleError(problem, self.rule, self.forms)

    def error_in_row(self, problem: str, row: int) -> PuzzleError:
        """An error about a row, counted from 0. It points to the row's first cell."""
        return PuzzleError(problem, self.rule, self.forms, (row + 1, 1))

    def require(self, values: Sized, count: int, subject: str, noun: str) -> None:
        if len(values) != count:
            raise self.error(_wrong_count(values, count, subject, noun))

    def require_row(self, values: Sized, noun: str, row: int) -> None:
        """Require one value per column in a row, counted from 0."""
        if len(values) != self.shape.cols:
            problem = _wrong_count(values, self.shape.cols, f"row {row + 1}", noun)
            raise self.error_in_row(problem, row)

    def rows_of(self, values: object) -> list[list[object]]:
        """Require a list of R lists of C values each."""
        if not isinstance(values, list):
            raise self.error(f"a list of rows is expected, but the value is {shown(values)}")
        rows = cast("list[object]", values)
        self.require(rows, self.shape.rows, "the list", "rows")
        for number, row in enumerate(rows):
            if not isinstance(row, list):
                problem = f"row {number + 1} is {shown(row)} instead of a list"
                raise self.error_in_row(problem, number)
            self.require_row(cast("list[object]", row), "values", number)
        return cast("list[list[object]]", rows)


def _wrong_count(values: Sized, count: int, subject: str, noun: str) -> str:
    return f"{subject} has {len(values)} {noun} instead of {count}"


def size_of(shape: GridShape) -> BoardSize:
    lines = f"{shape.rows} lines of {shape.cols} characters"
    text = f"{shape.num_cells} characters at once"
    lists = f"{shape.rows} lists of {shape.cols}"
    forms = f"send {lines}, {text}, or {lists}"
    return BoardSize(shape=shape, rule="wrong-size", forms=forms)


def parsed(size: BoardSize, legend: Legend, from_text: FromText, notation: object) -> Parsed:
    """Read text or lists.

    Raises PuzzleError with the rule `not-a-puzzle`, that of `size`, or `bad-character`.
    """
    if isinstance(notation, str):
        if len(notation) > MAX_TEXT:
            problem = f"the text has {len(notation)} characters, more than any form of a board"
            raise size.error(problem)
        return from_text(notation)
    if not isinstance(notation, list):
        raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", size.forms)
    values = cast("list[object]", notation)
    if values and _are_strings(values):
        lines = cast("list[str]", values)
        size.require(lines, size.shape.rows, "the list", "rows")
        read = parsed(size, legend, from_text, "\n".join(lines))
        return replace(read, notation=replace(read.notation, kind="lines"))
    if any(isinstance(value, list) for value in values[: size.shape.rows]):
        return _from_rows(size, legend, values)
    return _from_flat_list(size, legend, values)


def _are_strings(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def written(legend: Legend, grid: Grid, notation: Notation) -> object:
    """The grid as a JSON value in the notation of a question."""
    if notation.kind == "numbers":
        return _numbers(legend, grid, notation.blank).tolist()
    if notation.kind == "flat":
        return _numbers(legend, grid, notation.blank).reshape(-1).tolist()
    characters = {**legend.characters, legend.open_value: str(notation.blank)}
    if notation.kind == "rows":
        return [[characters[value] for value in row] for row in grid.tolist()]
    text = list(notation.template)
    for offset, value in zip(notation.cells, grid.reshape(-1).tolist(), strict=True):
        if legend.values[text[offset]] != value:
            text[offset] = characters[value]
    answer = "".join(text)
    if notation.kind == "lines":
        return answer.split("\n")
    return answer


def _numbers(legend: Legend, grid: Grid, blank: str | int | None) -> np.typing.NDArray[Any]:
    """The values of a grid, and `blank` for open cells."""
    numbers = grid.astype(object)
    numbers[grid == legend.open_value] = blank
    return numbers


def text_of(legend: Legend, grid: Grid) -> str:
    """The grid as lines of text, with a dot for an open cell."""
    characters = {**legend.characters, legend.open_value: "."}
    lines = ["".join(characters[value] for value in row) for row in grid.tolist()]
    return "\n".join(lines)


def lines_parsed(size: BoardSize, legend: Legend, text: str) -> Parsed:
    """Read lines of equal length, or all cells in one line."""
    shape = size.shape
    lines = _lines_of(text, shape.rows)
    if len(lines) == 1:
        size.require(lines[0], shape.num_cells, "the text", "characters")
        offsets = tuple(range(shape.num_cells))
    else:
        size.require(lines, shape.rows, "the text", "lines")
        if legend.pads_lines and "." not in text:  # editors remove only end spaces
            lines = [line.ljust(shape.cols) for line in lines]
        for row, line in enumerate(lines):
            size.require_row(line, "characters", row)
        offsets = _offsets_of_lines(shape)
    text = "\n".join(lines)
    characters = [text[offset] for offset in offsets]
    grid = _grid(shape, legend, characters)
    blank = _blank(legend, characters)
    notation = Notation(kind="text", blank=blank, template=text, cells=offsets)
    return Parsed(grid=grid, notation=notation)


def _lines_of(text: str, num_rows: int) -> list[str]:
    """The lines of a text without an empty line at its end or, as in quoted blocks, its start."""
    lines = text.replace("\r\n", "\n").split("\n")
    expected = num_rows
    if len(lines) < num_rows:
        expected = 1
    if len(lines) > expected and not lines[-1]:
        lines = lines[:-1]
    if len(lines) > expected and not lines[0]:
        lines = lines[1:]
    return lines


def _offsets_of_lines(shape: GridShape) -> tuple[int, ...]:
    """The offset of each cell in a text of lines."""
    stride = shape.cols + 1  # each line ends with a newline
    offsets: list[int] = []
    for row in range(shape.rows):
        start = row * stride
        offsets.extend(range(start, start + shape.cols))
    return tuple(offsets)


def _from_rows(size: BoardSize, legend: Legend, values: list[object]) -> Parsed:
    """Read a list of rows, each a list of characters or of numbers."""
    rows = size.rows_of(values)
    cells = [cell for row in rows for cell in row]
    grid = _grid(size.shape, legend, cells)
    if _are_strings(cells):
        blank = _blank(legend, cast("list[str]", cells))
        notation = Notation(kind="rows", blank=blank)
    else:
        notation = Notation(kind="numbers", blank=_blank_number(legend, cells))
    return Parsed(grid=grid, notation=notation)


def _from_flat_list(size: BoardSize, legend: Legend, cells: list[object]) -> Parsed:
    """Read a list of all cells."""
    size.require(cells, size.shape.num_cells, "the list", "values")
    grid = _grid(size.shape, legend, cells)
    notation = Notation(kind="flat", blank=_blank_number(legend, cells))
    return Parsed(grid=grid, notation=notation)


def _grid(shape: GridShape, legend: Legend, cells: Sequence[object]) -> Grid:
    values: list[int] = []
    for cell, value in enumerate(cells):
        if isinstance(value, str) and value in legend.values:
            values.append(legend.values[value])
        elif type(value) is int and value in legend.characters:  # excludes bool
            values.append(value)
        elif value is None:
            values.append(legend.open_value)
        else:
            raise bad_character(shape.cell_name(cell), value, legend.described)
    return np.array(values, dtype=np.int8).reshape(shape.rows, shape.cols)


def _blank(legend: Legend, characters: list[str]) -> str:
    """The character that a question uses for an open cell."""
    for character in characters:
        if legend.values[character] == legend.open_value:
            return character
    return legend.characters[legend.open_value]


def _blank_number(legend: Legend, cells: list[object]) -> int | None:
    if None in cells:
        return None
    return legend.open_value


# JSON objects: a matrix of numbers, and cells given as [row, column] from 0. The answer has one
# more key.


def check_keys(
    question: dict[object, object],
    keys: tuple[str, ...],
    answer_key: str,
    form: str,
) -> None:
    """Require all of `keys`, and no others except `answer_key`."""
    found = set(question)
    if not set(keys) <= found <= {*keys, answer_key}:
        first = [shown(key) for key in list(question)[:MAX_SHOWN_KEYS]]
        named = ", ".join(first) or "nothing"
        raise PuzzleError(f"the object has the keys {named}", "wrong-keys", form)


def numbers_of(
    shape: GridShape,
    value: object,
    allowed: tuple[int, ...],
    described: str,
) -> tuple[Grid, list[list[object]]]:
    """A grid of the allowed numbers, and the rows it was read from."""
    rows = size_of(shape).rows_of(value)
    for row, numbers in enumerate(rows, start=1):
        for col, number in enumerate(numbers, start=1):
            if type(number) is not int or number not in allowed:
                raise bad_character((row, col), number, described)
    return np.array(rows, dtype=np.int8), rows


def cell_of(shape: GridShape, name: str, value: object) -> Cell:
    """Read [row, column] from 0, as in grid[row][column]."""
    cell: list[object] = []
    if isinstance(value, list):
        cell = cast("list[object]", value)
    if len(cell) == 2 and all(type(number) is int for number in cell):
        row, col = cast("list[int]", cell)
        if 0 <= row < shape.rows and 0 <= col < shape.cols:
            return row, col
    text = shown(value)
    if 0 < len(cell) <= 3:
        text = f"[{', '.join(map(shown, cell))}]"
    problem = f"{name} is {text}, which is not a cell of the grid"
    last = f"[{shape.rows - 1}, {shape.cols - 1}]"
    raise PuzzleError(problem, "bad-cell", f"send [row, column] from [0, 0] to {last}")


def cells_of(shape: GridShape, name: str, value: object) -> list[Cell]:
    if not isinstance(value, list):
        remedy = "send a list of [row, column]"
        raise PuzzleError(f"{name} is {shown(value)}", "bad-cell", remedy)
    cells = cast("list[object]", value)
    if len(cells) > shape.num_cells:
        remedy = f"send at most {shape.num_cells}"
        raise PuzzleError(f"{name} has {len(cells)} cells", "bad-cell", remedy)
    return [cell_of(shape, f"{name}[{index}]", cell) for index, cell in enumerate(cells)]


def error_at(cell: Cell, problem: str, rule: str, remedy: str) -> PuzzleError:
    """An error about a cell of an object. It counts the cell from 1, as all errors do."""
    row = cell[0] + 1
    col = cell[1] + 1
    place = f"at row {row}, column {col} (from 1)"
    return PuzzleError(f"{problem} {place}", rule, remedy, (row, col))


def bad_character(cell: Cell, value: object, described: str) -> PuzzleError:
    """An error about the value of the cell at (row, column) from 1."""
    row, col = cell
    problem = f"the cell at row {row}, column {col} is {shown(value)}"
    return PuzzleError(problem, "bad-character", f"use {described}", cell)


def shown(value: object) -> str:
    """A short form of any value, for error messages."""
    if isinstance(value, str):
        return ascii(value[:MAX_SHOWN])
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(value)
    if isinstance(value, int) and abs(value) < MAX_SHOWN_NUMBER:
        return str(value)
    return f"a value of type {type(value).__name__}"
