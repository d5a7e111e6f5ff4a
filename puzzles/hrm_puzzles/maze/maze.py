"""Mazes of 4x4 to 30x30: the answer marks a shortest path from S to G.

Text and lists are read as in `grid.notation`, and an object with start and goal apart from the grid:

    {"grid": [[0, 1, ...], ...], "start": [row, column], "goal": [row, column]}

1 is a wall and 0 an open cell; rows and columns count from 0, so that a cell is grid[row][column]. The answer is the
same object with "path": the cells from start to goal in walking order.
Tokens: see `maze.paths`. Shapes: B batch, T cells.
"""

import json
from collections import deque
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.board import NEIGHBOURS, UInt64Array, dihedral_hash_B
from hrm_puzzles.grid.notation import Cell, Legend
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.maze import generator, paths
from hrm_puzzles.maze.paths import GOAL, OPEN, PATH, START, WALL
from hrm_puzzles.puzzle import Grid, IntArray, Notation, Parsed

LEGEND = Legend(
    values={"#": WALL, "█": WALL, " ": OPEN, ".": OPEN, "S": START, "G": GOAL, "o": PATH},
    characters={WALL: "#", OPEN: " ", START: "S", GOAL: "G", PATH: "o"},
    open_value=OPEN,
    pads_lines=True,
    described="# for a wall, . or a space for an open cell, S for the start and G for the goal",
)
OBJECT_FORM = 'send {"grid": rows of 0 (open) and 1 (wall), "start": [row, column], "goal": [row, column]}'
MARKS = {OPEN: PATH}
PICTURES = {OPEN: "  ", WALL: "██", START: "S ", GOAL: "G ", PATH: "• "}
PALETTE = {OPEN: "#ffffff", WALL: "#3b3b3b", START: "#2e9e4f", GOAL: "#d0342c", PATH: "#7db4e6"}


@dataclass(frozen=True, kw_only=True)
class Maze(GridPuzzle):
    """Any shortest path is right. A generated maze has exactly one; its rating is the length in moves."""

    noun = "maze"
    sides = range(4, 31)
    vocab_size = paths.VOCAB_SIZE
    difficulties = generator.DIFFICULTIES
    legend = LEGEND
    marks = MARKS
    token_of_value = paths.TOKEN_OF_VALUE
    value_of_token = paths.VALUE_OF_TOKEN
    pictures = PICTURES
    palette = PALETTE
    check_question = staticmethod(paths.check_question)
    is_right_B = staticmethod(paths.is_shortest_path_B)
    generator = staticmethod(generator.generate)

    def board_of(self, text: str) -> Grid:
        """The cells of one row of a CSV file, question or answer; the board is not judged."""
        return grid_notation.parsed(self.shape, LEGEND, text).grid

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:  # noqa: ARG002
        """The question decides, whatever is revealed of its path, and a maze walked backwards is the same."""
        bare_BT = np.where(inputs_BT == paths.PATH_TOKEN, paths.OPEN_TOKEN, inputs_BT)
        either_end_BT = np.where(bare_BT == paths.GOAL_TOKEN, paths.START_TOKEN, bare_BT)
        return dihedral_hash_B(self.shape, either_end_BT)

    def from_object(self, question: dict[object, object]) -> Parsed:
        """Further rules: `wrong-keys`, `bad-cell`, `in-wall` and `same-cell`."""
        shape = self.shape
        grid_notation.check_keys(question, ("grid", "start", "goal"), "path", OBJECT_FORM)
        described = "1 for a wall and 0 for an open cell"
        grid, rows = grid_notation.numbers_of(shape, question["grid"], (OPEN, WALL), described)
        start, goal = (grid_notation.cell_of(shape, name, question[name]) for name in ("start", "goal"))
        marked = grid_notation.cells_of(shape, "path", question.get("path", []))
        placed = [*((cell, PATH, "path") for cell in marked), (start, START, "start"), (goal, GOAL, "goal")]
        for cell, value, name in placed:
            if grid[cell] == WALL:
                raise grid_notation.error_at(cell, f"the {name} lies in a wall", "in-wall", "choose an open cell")
            grid[cell] = value
        if start == goal:
            raise grid_notation.error_at(goal, "start and goal are the same cell", "same-cell", "move one of them")
        template = json.dumps({"grid": rows, "start": start, "goal": goal})
        return Parsed(grid=grid, notation=Notation(kind="object", blank=OPEN, template=template))

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        """The marked cells in walking order, strays last."""
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
