"""Boards as people write them: text, lists of lines, rows of values, or JSON objects.

A `Legend` defines the characters of a puzzle. `reading` reads texts. The puzzle itself judges
whether a board is valid. Shapes: R rows, C columns.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, cast

import numpy as np

from hrm_host.reading import are_strings, is_list
from hrm_puzzles.grid.board import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError
from hrm_puzzles.reading.grids import plain_board, reject_doubtful_zero
from hrm_puzzles.reading.legend import (
    MAX_TEXT,
    BoardSize,
    Cell,
    Legend,
    bad_character,
    shown,
    size_of,
    values_in,
)
from hrm_puzzles.reading.record import board_in
from hrm_puzzles.reading.text import plain

MAX_TOKEN = 2  # characters of the longest number of a cell
SCALARS = frozenset((int, float, str, type(None)))

FromText = Callable[[str], Parsed]


def parsed(size: BoardSize, legend: Legend, from_text: FromText, notation: object) -> Parsed:
    """Read text, JSON in a text, or lists.

    Raises PuzzleError with the rule `not-a-puzzle`, that of `size`, `bad-character` or `ambiguous`.
    """
    if isinstance(notation, str):
        if len(notation) > MAX_TEXT:
            problem = f"the text has {len(notation)} characters, more than any form of a board"
            raise size.error(problem)
        board = plain_board(size.shape, legend, notation)
        if board is not None:
            return board
    notation = board_in(notation)
    if isinstance(notation, str):
        return _from_text(size, legend, from_text, notation)
    if not is_list(notation):
        raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", size.forms)
    if are_strings(notation):
        return _from_strings(size, legend, from_text, notation)
    if any(map(is_list, notation[: size.shape.rows])):
        return _from_rows(size, legend, notation)
    return _from_flat_list(size, legend, notation)


def written(legend: Legend, grid: Grid, notation: Notation) -> object:
    """The grid as a JSON value in the notation of a question."""
    if notation.kind == "numbers":
        return _numbers(legend, grid, notation.blank).tolist()
    if notation.kind == "flat":
        return _numbers(legend, grid, notation.blank).reshape(-1).tolist()
    if notation.kind == "rows":
        characters = {**legend.characters, legend.open_value: str(notation.blank)}
        return [[characters[value] for value in row] for row in grid.tolist()]
    answer = _written_text(legend, grid, notation)
    if notation.kind == "lines":
        return answer.split("\n")
    return answer


def _written_text(legend: Legend, grid: Grid, notation: Notation) -> str:
    """The text of a question with another token in each cell of another value."""
    text = notation.template
    value_of = legend.values
    tokens = {**legend.characters}
    if notation.kind == "words":  # numbers of several digits, and empty cells
        value_of = legend.of_tokens
        tokens = {value: str(value) for value in tokens}
    elif not value_of.keys() >= set(text):
        value_of = values_in(legend, [text[start] for start, _ in notation.cells])
    tokens[legend.open_value] = str(notation.blank)
    pieces: list[str] = []
    end = 0
    for (start, next_end), value in zip(notation.cells, grid.reshape(-1).tolist(), strict=True):
        pieces.append(text[end:start])
        token = text[start:next_end]
        is_kept = value_of[token] == value
        pieces.append(token if is_kept else tokens[value].rjust(len(token)))
        end = next_end
    pieces.append(text[end:])
    return "".join(pieces)


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


def _from_text(size: BoardSize, legend: Legend, from_text: FromText, text: str) -> Parsed:
    """Read a text with `from_text`, unless it holds the cells alone."""
    text = plain(text)
    board = plain_board(size.shape, legend, text)
    if board is None:
        board = from_text(text)
    return board


def _from_strings(size: BoardSize, legend: Legend, from_text: FromText, lines: list[str]) -> Parsed:
    """Read a list of lines, or of all cells."""
    if len(lines) == size.shape.num_cells and max(map(len, lines)) <= MAX_TOKEN:
        return _from_flat_list(size, legend, lines)
    size.require(lines, size.shape.rows, "the list", "rows")
    read = _from_text(size, legend, from_text, "\n".join(lines))
    if read.notation.kind != "text":
        return read
    return replace(read, notation=replace(read.notation, kind="lines"))


def _from_rows(size: BoardSize, legend: Legend, values: list[object]) -> Parsed:
    """Read a list of rows, each a list of characters or of numbers."""
    lists = list(filter(is_list, values))
    cells = list(chain.from_iterable(lists))
    places = (
        (row, col)
        for row, row_cells in enumerate(lists, start=1)
        for col, _ in enumerate(row_cells, start=1)
    )
    value_of = _known_values(legend, cells, places)
    size.rows_of(values)
    kind = "numbers"
    if are_strings(cells) and max(map(len, cells)) <= 1:
        kind = "rows"
    return _of_values(size, legend, cells, value_of, kind)


def _from_flat_list(size: BoardSize, legend: Legend, cells: Sequence[object]) -> Parsed:
    """Read a list of all cells."""
    size.require(cells, size.shape.num_cells, "the list", "values")
    places = map(size.shape.cell_name, range(len(cells)))
    value_of = _known_values(legend, cells, places)
    return _of_values(size, legend, cells, value_of, "flat")


def _of_values(
    size: BoardSize,
    legend: Legend,
    cells: Sequence[object],
    value_of: Mapping[object, int],
    kind: str,
) -> Parsed:
    """The question of values that are known."""
    reject_doubtful_zero(legend, cells)
    values = [value_of[cell] for cell in cells]
    blank: object = legend.open_value
    if legend.open_value in values:
        blank = cells[values.index(legend.open_value)]
    elif str in map(type, cells):
        blank = legend.characters[legend.open_value]
    grid = np.array(values, dtype=np.int8).reshape(size.shape.rows, size.shape.cols)
    notation = Notation(kind=kind, blank=cast("str | int | None", blank))
    return Parsed(grid=grid, notation=notation)


def _known_values(
    legend: Legend, cells: Sequence[object], places: Iterable[Cell]
) -> Mapping[object, int]:
    """The values of cells: numbers, also whole floats or as text, and characters.

    Raises PuzzleError for the first cell that is no number, text or null with a value.
    """
    texts = [cell for cell in cells if isinstance(cell, str)]
    values = values_in(legend, texts)
    known = legend.of_scalars
    if values is not legend.values:
        known = {**known, **values}
    if SCALARS.issuperset(map(type, cells)) and known.keys() >= set(cells):
        return known
    for place, cell in zip(places, cells, strict=True):
        if type(cell) not in SCALARS or cell not in known:
            raise bad_character(place, cell, legend.described)
    return known


# JSON objects: a matrix of numbers, and cells given as [row, column] from 0. The answer has one
# more key.


def check_keys(
    question: dict[str, object],
    keys: tuple[str, ...],
    answer_key: str,
    form: str,
) -> None:
    """Require all of `keys`, and no others except `answer_key`."""
    found = set(question)
    if not set(keys) <= found <= {*keys, answer_key}:
        raise PuzzleError(f"{shown(question)} is not a puzzle", "wrong-keys", form)


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
    cell = value if is_list(value) else []
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
    if not is_list(value):
        remedy = "send a list of [row, column]"
        raise PuzzleError(f"{name} is {shown(value)}", "bad-cell", remedy)
    if len(value) > shape.num_cells:
        remedy = f"send at most {shape.num_cells}"
        raise PuzzleError(f"{name} has {len(value)} cells", "bad-cell", remedy)
    return [cell_of(shape, f"{name}[{index}]", cell) for index, cell in enumerate(value)]


def error_at(cell: Cell, problem: str, rule: str, remedy: str) -> PuzzleError:
    """An error about a cell of an object. It counts the cell from 1, as all errors do."""
    row = cell[0] + 1
    col = cell[1] + 1
    place = f"at row {row}, column {col} (from 1)"
    return PuzzleError(f"{problem} {place}", rule, remedy, (row, col))
