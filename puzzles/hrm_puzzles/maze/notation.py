"""Mazes as people write them: the text and lists of `grid_notation`, and an object with start and goal given apart.

    {"grid": [[0, 1, ...], ...], "start": [row, column], "goal": [row, column]}

There 1 is a wall and 0 an open cell, and rows and columns count from 0, so that a cell is grid[row][column]. The
answer is the same object with "path": the cells from start to goal in walking order.
"""

from __future__ import annotations

import json
from collections import deque
from typing import cast

import numpy as np

from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid import objects as grid_objects
from hrm_puzzles.grid.geometry import NEIGHBOURS, GridShape
from hrm_puzzles.grid.notation import Legend
from hrm_puzzles.grid.objects import Cell
from hrm_puzzles.maze.board import GOAL, OPEN, PATH, START, WALL
from hrm_puzzles.puzzle import Grid, Notation, Parsed

LEGEND = Legend(
    values={"#": WALL, "█": WALL, " ": OPEN, ".": OPEN, "S": START, "G": GOAL, "o": PATH},
    characters={WALL: "#", OPEN: " ", START: "S", GOAL: "G", PATH: "o"},
    open_value=OPEN,
    pads_lines=True,
    described="# for a wall, . or a space for an open cell, S for the start and G for the goal",
)
OBJECT_FORM = 'send {"grid": rows of 0 (open) and 1 (wall), "start": [row, column], "goal": [row, column]}'


def parsed(shape: GridShape, notation: object) -> Parsed:
    """Read any notation; further rules for objects: `wrong-keys`, `bad-cell`, `in-wall` and `same-cell`."""
    if isinstance(notation, dict):
        return _from_object(shape, cast("dict[object, object]", notation))
    return grid_notation.parsed(shape, LEGEND, notation)


def written(grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question; objects name the marked cells in walking order, strays last."""
    if notation.kind != "object":
        return grid_notation.written(LEGEND, grid, notation)
    question = json.loads(notation.template)
    start, goal = tuple(question["start"]), tuple(question["goal"])
    marked = {cast(Cell, tuple(cell)) for cell in np.argwhere(grid == PATH).tolist()} - {start, goal}
    return {**question, "path": [list(cell) for cell in (start, *_walked(start, marked), goal)]}


def _walked(start: Cell, marked: set[Cell]) -> list[Cell]:
    """The marked cells by their distance from the start along marked cells; those out of reach follow."""
    order, waiting, left = list[Cell](), deque([start]), set(marked)
    while waiting:
        row, col = waiting.popleft()
        near = [(row + down, col + right) for down, right in NEIGHBOURS if (row + down, col + right) in left]
        left -= set(near)
        order += near
        waiting += near
    return order + sorted(left)


def _from_object(shape: GridShape, question: dict[object, object]) -> Parsed:
    grid_objects.check_keys(question, ("grid", "start", "goal"), "path", OBJECT_FORM)
    grid, rows = grid_objects.numbers_of(shape, question["grid"], (OPEN, WALL), "1 for a wall and 0 for an open cell")
    start, goal = (grid_objects.cell_of(shape, name, question[name]) for name in ("start", "goal"))
    marked = grid_objects.cells_of(shape, "path", question.get("path", []))
    placed = [*((cell, PATH, "path") for cell in marked), (start, START, "start"), (goal, GOAL, "goal")]
    for cell, value, name in placed:
        if grid[cell] == WALL:
            raise grid_objects.at(cell, f"the {name} lies in a wall", "in-wall", "choose an open cell")
        grid[cell] = value
    if start == goal:
        raise grid_objects.at(goal, "start and goal are the same cell", "same-cell", "move one of them")
    template = json.dumps({"grid": rows, "start": start, "goal": goal})
    return Parsed(grid=grid, notation=Notation(kind="object", blank=OPEN, template=template))
