"""Boards written as a JSON object: a matrix of numbers, and cells named apart as [row, column] from 0.

The object of a question is answered by the same object with one more key.
"""

from __future__ import annotations

from typing import cast

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.notation import bad_character, grid_of, rows_of, shown
from hrm_puzzles.puzzle import Grid, PuzzleError

Cell = tuple[int, int]


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
    """A list of such cells."""
    if not isinstance(value, list):
        raise PuzzleError(f"{name} is {shown(value)}", "bad-cell", "send a list of [row, column]")
    cells = cast("list[object]", value)
    if len(cells) > shape.num_cells:
        raise PuzzleError(f"{name} has {len(cells)} cells", "bad-cell", f"send at most {shape.num_cells}")
    return [cell_of(shape, f"{name}[{index}]", cell) for index, cell in enumerate(cells)]


def check_keys(question: dict[object, object], keys: tuple[str, ...], answer_key: str, form: str) -> None:
    """Refuse an object without all the keys, or with others than the key of the answer."""
    if not set(keys) <= set(question) <= {*keys, answer_key}:
        named = ", ".join(shown(key) for key in list(question)[:6]) or "nothing"
        raise PuzzleError(f"the object has the keys {named}", "wrong-keys", form)


def numbers_of(
    shape: GridShape, value: object, allowed: tuple[int, ...], described: str
) -> tuple[Grid, list[list[object]]]:
    """A grid of the allowed numbers, and the rows it was read from."""
    rows = rows_of(shape, value)
    cells = [number for row in rows for number in row]
    for cell, number in enumerate(cells):
        if type(number) is not int or number not in allowed:
            raise bad_character(shape, cell, number, described)
    return grid_of(shape, cast("list[int]", cells)), rows


def at(cell: Cell, problem: str, rule: str, remedy: str) -> PuzzleError:
    """An error whose cell is named from 1, as all errors do, though objects count from 0."""
    row, col = cell[0] + 1, cell[1] + 1
    return PuzzleError(f"{problem} at row {row}, column {col} (from 1)", rule, remedy, (row, col))
