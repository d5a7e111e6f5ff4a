"""ARC questions as people write them: a task's name with one test input, or a whole task with its name.

    {"task": "00d62c1b", "input": [[0, 1], [2, 3]]}
    {"task": "00d62c1b", "train": [...], "test": [{"input": [[0, 1], [2, 3]]}], "index": 0}

A grid is a list of lists of the numbers 0 to 9, or lines of digits (a list of strings, or one text). Text that holds
such a JSON object is read as well.
"""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np

from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError

NAME_KEYS = ("task", "id", "name")
FORMS = 'send {"task": the name of a task, "input": rows of the numbers 0 to 9}'
ROWS = "write rows of equal length with the numbers 0 to 9"
MAX_NAME = 100  # characters; a variant's name has 28


def parsed(notation: object, side: int) -> Parsed:
    """Read a question; raises PuzzleError with a rule and, where one cell is to blame, its row and column."""
    values = _object(notation)
    name = _name(values)
    grid, kind = grid_of(_input(values), side)
    return Parsed(grid=grid, notation=Notation(kind=kind, blank=None), identifier=name)


def written(grid: Grid, notation: Notation) -> object:
    """The grid as a list of rows, or as text where the question was text; no rows where an answer is no grid at all."""
    if notation.kind == "rows":
        return grid.tolist()
    lines = ["".join(map(str, row)) for row in grid.tolist()]
    return lines if notation.kind == "lines" else "\n".join(lines)


def grid_of(value: object, side: int) -> tuple[Grid, str]:
    """A grid and the form it is written in: "rows" of numbers, "lines" of digits, or one "text" of lines."""
    rows, kind = _rows(value)
    if not rows or not rows[0]:
        raise PuzzleError("the grid has no cells", "empty", ROWS)
    if len(rows) > side or len(rows[0]) > side:
        problem = f"the grid has {len(rows)} rows of {len(rows[0])} where at most {side} of {side} fit"
        raise PuzzleError(
            problem, "too-large", "use a model with a larger canvas, or a smaller grid", _beyond(rows, side)
        )
    for number, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            problem = f"row {number} has {len(row)} cells where the first has {len(rows[0])}"
            raise PuzzleError(problem, "wrong-length", ROWS, (number, min(len(row), len(rows[0])) + 1))
    colours = [[_colour(cell, (r, c)) for c, cell in enumerate(row, 1)] for r, row in enumerate(rows, 1)]
    return np.array(colours, dtype=np.int8), kind


def _object(notation: object) -> dict[str, Any]:
    if isinstance(notation, str):
        notation = _from_json(notation)
    if isinstance(notation, list):
        raise PuzzleError("rows alone do not say which task they belong to", "no-task", FORMS)
    if not isinstance(notation, dict):
        raise PuzzleError(f"{_shown(notation)} is not an ARC question", "not-a-puzzle", FORMS)
    return cast("dict[str, Any]", notation)


def _from_json(text: str) -> object:
    """What a text holds; a text of digits is rows alone."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    is_digits = set(text) <= set("0123456789 ,\r\n") and text.strip() != ""
    return [text] if is_digits else value


def _name(values: dict[str, Any]) -> str:
    name = next((values[key] for key in NAME_KEYS if key in values), None)
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        problem = "the question names no task" if name is None else f"{_shown(name)} is no name of a task"
        raise PuzzleError(problem, "no-task", FORMS)
    return name


def _input(values: dict[str, Any]) -> object:
    """The grid asked about: `input`, or the input of a task's test pair (the first one unless there is an `index`)."""
    if "input" in values:
        return values["input"]
    tests, index = values.get("test"), values.get("index", 0)
    if not isinstance(tests, list) or not tests:
        raise PuzzleError("the question has no input", "no-input", FORMS)
    pairs = cast("list[object]", tests)
    if type(index) is not int or not 0 <= index < len(pairs):
        problem = f"the index is {_shown(index)} where the task has {len(pairs)} test inputs"
        raise PuzzleError(problem, "no-such-index", f"use 0 to {len(pairs) - 1}")
    pair = pairs[index]
    if not isinstance(pair, dict) or "input" not in pair:
        raise PuzzleError(f"test pair {index} has no input", "no-input", FORMS)
    return cast("dict[str, object]", pair)["input"]


def _rows(value: object) -> tuple[list[list[object]], str]:
    if isinstance(value, str):
        return [_digits(line) for line in value.splitlines() if line.strip()], "text"
    if not isinstance(value, list):
        raise PuzzleError(f"{_shown(value)} is not a grid", "not-a-grid", ROWS)
    rows = cast("list[object]", value)
    if rows and all(isinstance(row, str) for row in rows):
        return [_digits(cast(str, row)) for row in rows], "lines"
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, list):
            raise PuzzleError(
                f"row {number} is {_shown(row)} where a list is expected", "not-a-grid", ROWS, (number, 1)
            )
    return cast("list[list[object]]", rows), "rows"


def _digits(line: str) -> list[object]:
    return [int(character) if character in "0123456789" else character for character in line if character not in " ,\t"]


def _colour(value: object, cell: tuple[int, int]) -> int:
    if type(value) is int and 0 <= value <= 9:  # bool is an int to isinstance, but no colour to a person
        return value
    problem = f"{_shown(value)} stands at row {cell[0]}, column {cell[1]}"
    raise PuzzleError(problem, "bad-colour", "use the numbers 0 to 9", cell)


def _beyond(rows: list[list[object]], side: int) -> tuple[int, int]:
    """The first cell that does not fit."""
    return (1, side + 1) if len(rows[0]) > side else (side + 1, 1)


def _shown(value: object) -> str:
    """A value as an error may quote it: short, whatever was sent."""
    if isinstance(value, str):
        return ascii(value[:20])
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    is_printable = isinstance(value, float) or (isinstance(value, int) and abs(value) < 10**9)
    return str(value) if is_printable else f"a value of type {type(value).__name__}"
