"""Boards as people write them, one character or number for each cell: one string, many lines, a list of lines, rows.

A `Legend` says what the characters of a puzzle stand for; what a board means is judged by the puzzle.
Shapes: R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

MAX_TEXT = 4000  # characters: more than any board has


@dataclass(frozen=True, kw_only=True)
class Legend:
    """What stands for what: every character that is read, the one that is written, and the words of an error.

    In lists the values themselves may stand. `open_value` is written with the character that a question used for it;
    `pads_lines` says that it can be a space, so that lines may have lost their ends to an editor.
    """

    values: Mapping[str, int]
    characters: Mapping[int, str]
    open_value: int
    pads_lines: bool
    described: str


def parsed(shape: GridShape, legend: Legend, notation: object) -> Parsed:
    """Read text or lists; raises PuzzleError with the rule `not-a-puzzle`, `wrong-size` or `bad-character`."""
    if isinstance(notation, str):
        return _from_text(shape, legend, notation)
    if isinstance(notation, list):
        return _from_list(shape, legend, cast("list[object]", notation))
    raise PuzzleError(f"{shown(notation)} is not a puzzle", "not-a-puzzle", _forms(shape))


def written(legend: Legend, grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question, as a JSON value."""
    if notation.kind == "numbers":
        return grid.tolist()
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


# Text


def _from_text(shape: GridShape, legend: Legend, text: str) -> Parsed:
    if len(text) > MAX_TEXT:
        raise _wrong_size(shape, f"the text has {len(text)} characters, more than any form of a board")
    lines = _lines(shape, text)
    if len(lines) == 1:
        _expect(shape, lines[0], shape.num_cells, "the text", "characters")
        return _from_lines(shape, legend, lines[0], stride=shape.cols)
    _expect(shape, lines, shape.rows, "the text", "lines")
    if legend.pads_lines and "." not in text:  # editors cut off spaces, and nothing else
        lines = [line.ljust(shape.cols) for line in lines]
    for row, line in enumerate(lines):
        _expect(shape, line, shape.cols, f"row {row + 1}", "characters", row)
    return _from_lines(shape, legend, "\n".join(lines), stride=shape.cols + 1)


def _lines(shape: GridShape, text: str) -> list[str]:
    """The lines of a text, without an empty one too many at its end or, as before a quoted block, at its start."""
    lines = text.replace("\r\n", "\n").split("\n")
    expected = 1 if len(lines) < shape.rows else shape.rows
    if len(lines) > expected and not lines[-1]:
        lines = lines[:-1]
    if len(lines) > expected and not lines[0]:
        lines = lines[1:]
    return lines


def _from_lines(shape: GridShape, legend: Legend, text: str, stride: int) -> Parsed:
    offsets = tuple(row * stride + col for row in range(shape.rows) for col in range(shape.cols))
    characters = [text[offset] for offset in offsets]
    grid = grid_of(shape, [_value(shape, legend, cell, character) for cell, character in enumerate(characters)])
    blank = _blank(legend, characters)
    return Parsed(grid=grid, notation=Notation(kind="text", blank=blank, template=text, cells=offsets))


def _blank(legend: Legend, characters: list[str]) -> str:
    """The character a question uses for an open cell."""
    is_open = (character for character in characters if legend.values[character] == legend.open_value)
    return next(is_open, legend.characters[legend.open_value])


# Lists


def _from_list(shape: GridShape, legend: Legend, values: list[object]) -> Parsed:
    _expect(shape, values, shape.rows, "the list", "rows")
    if all(isinstance(value, str) for value in values):
        read = _from_text(shape, legend, "\n".join(cast("list[str]", values)))
        return replace(read, notation=replace(read.notation, kind="lines"))
    cells = [cell for row in rows_of(shape, values) for cell in row]
    grid = grid_of(shape, [_value(shape, legend, cell, value) for cell, value in enumerate(cells)])
    if not all(isinstance(cell, str) for cell in cells):
        return Parsed(grid=grid, notation=Notation(kind="numbers", blank=legend.open_value))
    return Parsed(grid=grid, notation=Notation(kind="rows", blank=_blank(legend, cast("list[str]", cells))))


def rows_of(shape: GridShape, values: object) -> list[list[object]]:
    """A list of R lists of C values each."""
    if not isinstance(values, list):
        raise _wrong_size(shape, f"{shown(values)} stands where a list of rows is expected")
    _expect(shape, cast("list[object]", values), shape.rows, "the list", "rows")
    return [_row(shape, row, cells) for row, cells in enumerate(cast("list[object]", values))]


def _row(shape: GridShape, row: int, cells: object) -> list[object]:
    if not isinstance(cells, list):
        raise _wrong_size(shape, f"row {row + 1} is {shown(cells)} where a list is expected", row)
    _expect(shape, cast("list[object]", cells), shape.cols, f"row {row + 1}", "values", row)
    return cast("list[object]", cells)


def _value(shape: GridShape, legend: Legend, cell: int, value: object) -> int:
    if isinstance(value, str) and value in legend.values:
        return legend.values[value]
    if type(value) is int and value in legend.characters:  # bool is an int to isinstance, but no cell to a person
        return value
    raise bad_character(shape, cell, value, legend.described)


def grid_of(shape: GridShape, values: list[int]) -> Grid:
    return np.array(values, dtype=np.int8).reshape(shape.rows, shape.cols)


# Errors


def bad_character(shape: GridShape, cell: int, value: object, described: str) -> PuzzleError:
    row, col = shape.cell_name(cell)
    problem = f"{shown(value)} stands at row {row}, column {col}"
    return PuzzleError(problem, "bad-character", f"use {described}", (row, col))


def _expect(shape: GridShape, values: Sized, count: int, subject: str, noun: str, row: int | None = None) -> None:
    if len(values) != count:
        raise _wrong_size(shape, f"{subject} has {len(values)} {noun} where {count} are expected", row)


def _wrong_size(shape: GridShape, problem: str, row: int | None = None) -> PuzzleError:
    return PuzzleError(problem, "wrong-size", _forms(shape), None if row is None else (row + 1, 1))


def _forms(shape: GridShape) -> str:
    rows, cols = shape.rows, shape.cols
    return f"send {rows} lines of {cols} characters, {rows * cols} characters at once, or {rows} lists of {cols}"


def shown(value: object) -> str:
    """A value as an error may quote it: short, whatever was sent."""
    if isinstance(value, str):
        return ascii(value[:20])
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    is_printable = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return str(value) if is_printable else f"a value of type {type(value).__name__}"
