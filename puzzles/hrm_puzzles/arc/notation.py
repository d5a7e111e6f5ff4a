"""ARC as people write it: questions that name their task, and whole tasks in files.

    {"task": "00d62c1b", "input": [[0, 1], [2, 3]]}
    {"task": "00d62c1b", "train": [...], "test": [{"input": [[0, 1], [2, 3]]}], "index": 0}

A grid is a list of lists of the numbers 0 to 9, or lines of digits (a list of strings, or one
text). A text may also hold such a JSON object. `tasks` reads whole tasks.
"""

import numpy as np

from hrm_host.reading import are_strings, is_list, is_object, is_printable
from hrm_puzzles.puzzle import Grid, Notation, Parsed, PuzzleError
from hrm_puzzles.reading.legend import shown
from hrm_puzzles.reading.record import NAME_KEYS, board_in

FORMS = 'send {"task": the name of a task, "input": rows of the numbers 0 to 9}'
ROWS = "write rows of equal length with the numbers 0 to 9"
MAX_NAME = 100  # characters; the name of a variant has 28
DIGITS = "0123456789"
BETWEEN_DIGITS = " ,\t"
TEXT_OF_DIGITS = set(DIGITS + " ,\r\n")


def parsed(notation: object, side: int) -> Parsed:
    """Read a question.

    Raises PuzzleError with a rule and, if a single cell causes the error, its row and column.
    """
    values = _object(notation)
    name = _name(values)
    grid, kind = grid_of(_input(values), side)
    return Parsed(grid=grid, notation=Notation(kind=kind, blank=None), identifier=name)


def written(grid: Grid, notation: Notation) -> object:
    """The grid as a list of rows, or as text if the question was text.

    An answer that is not a grid at all has no rows.
    """
    if notation.kind == "rows":
        return grid.tolist()
    lines = ["".join(map(str, row)) for row in grid.tolist()]
    if notation.kind == "lines":
        return lines
    return "\n".join(lines)


def _object(notation: object) -> dict[str, object]:
    """The JSON object of a question."""
    notation = board_in(notation)
    if isinstance(notation, str) and notation.strip() and set(notation) <= TEXT_OF_DIGITS:
        notation = [notation]
    if isinstance(notation, list):
        problem = "the rows do not name their task"
        raise PuzzleError(problem, "no-task", FORMS)
    if not is_object(notation):
        raise PuzzleError(f"{shown(notation)} is not an ARC question", "not-a-puzzle", FORMS)
    return notation


def _name(values: dict[str, object]) -> str:
    """The name of the task of a question."""
    found = [values[key] for key in NAME_KEYS if key in values]
    if not found or found[0] is None:
        raise PuzzleError("the question does not name its task", "no-task", FORMS)
    name = found[0]
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not is_printable(name):
        raise PuzzleError(f"{shown(name)} is not the name of a task", "no-task", FORMS)
    return name


def _input(values: dict[str, object]) -> object:
    """The grid of the question: `input`, or the input of a task's test pair.

    The first test pair is taken unless the question has an `index`.
    """
    if "input" in values:
        return values["input"]
    pairs = values.get("test")
    if not is_list(pairs) or not pairs:
        raise PuzzleError("the question has no input", "no-input", FORMS)
    index = values.get("index", 0)
    if type(index) is not int or not 0 <= index < len(pairs):
        problem = f"the index is {shown(index)}, but the task has {len(pairs)} test inputs"
        raise PuzzleError(problem, "no-such-index", f"use 0 to {len(pairs) - 1}")
    pair = pairs[index]
    if not is_object(pair) or "input" not in pair:
        raise PuzzleError(f"test pair {index} has no input", "no-input", FORMS)
    return pair["input"]


def grid_of(value: object, side: int) -> tuple[Grid, str]:
    """A grid and its form: "rows" of numbers, "lines" of digits, or one "text" of lines."""
    rows, kind = _rows(value)
    if not rows or not rows[0]:
        raise PuzzleError("the grid has no cells", "empty", ROWS)
    height = len(rows)
    width = len(rows[0])
    if height > side or width > side:
        problem = f"the grid has {height} rows of {width}, but at most {side} of {side} fit"
        remedy = "use a model with a larger canvas, or a smaller grid"
        cell = (1, side + 1) if width > side else (side + 1, 1)
        raise PuzzleError(problem, "too-large", remedy, cell)
    for number, row in enumerate(rows, start=1):
        if len(row) != width:
            problem = f"row {number} has {len(row)} cells, but the first row has {width}"
            cell = (number, min(len(row), width) + 1)
            raise PuzzleError(problem, "wrong-length", ROWS, cell)
    for number, row in enumerate(rows, start=1):
        for col, color in enumerate(row, start=1):
            if type(color) is not int or not 0 <= color <= 9:  # excludes bool
                problem = f"the cell at row {number}, column {col} is {shown(color)}"
                raise PuzzleError(problem, "bad-color", "use the numbers 0 to 9", (number, col))
    return np.array(rows, dtype=np.int8), kind


def _rows(value: object) -> tuple[list[list[object]], str]:
    if isinstance(value, str):
        return [_digits(line) for line in value.splitlines() if line.strip()], "text"
    if not is_list(value):
        raise PuzzleError(f"{shown(value)} is not a grid", "not-a-grid", ROWS)
    if are_strings(value):
        return list(map(_digits, value)), "lines"
    rows: list[list[object]] = []
    for number, row in enumerate(value, start=1):
        if not is_list(row):
            problem = f"row {number} is {shown(row)} instead of a list"
            raise PuzzleError(problem, "not-a-grid", ROWS, (number, 1))
        rows.append(row)
    return rows, "rows"


def _digits(line: str) -> list[object]:
    """The digits of a line as numbers, and every other character as it is."""
    digits: list[object] = []
    for character in line:
        if character in DIGITS:
            digits.append(int(character))
        elif character not in BETWEEN_DIGITS:
            digits.append(character)
    return digits
