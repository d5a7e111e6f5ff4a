"""Cities as people write them: the text and lists of `grid_notation`, and an object with the stops given apart.

    {"grid": [[0, 1, 2, ...], ...], "depot": [row, column], "customers": [[row, column], ...]}

There 0 is a building and 1, 2 and 4 are what it costs to enter a road cell; rows and columns count from 0, so that a
cell is grid[row][column]. A stop costs 1 to enter whatever stands under it. The answer is the same object with "tour":
the cells the tour drives over, stops included, in reading order.
"""

from __future__ import annotations

import json
from typing import cast

import numpy as np

from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid import objects as grid_objects
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.notation import Legend
from hrm_puzzles.grid.objects import Cell
from hrm_puzzles.logistics.board import BUILDING, COSTS, CUSTOMER, DEPOT, ON_TOUR, ROAD
from hrm_puzzles.puzzle import Grid, Notation, Parsed

CHARACTERS = {BUILDING: "#", ROAD: ".", 2: "2", 4: "4", DEPOT: "D", CUSTOMER: "C"}
ON_TOUR_CHARACTERS = {ON_TOUR + 1: "o", ON_TOUR + 2: "t", ON_TOUR + 4: "f"}  # one, two, four
LEGEND = Legend(
    values={character: value for value, character in (CHARACTERS | ON_TOUR_CHARACTERS).items()},
    characters=CHARACTERS | ON_TOUR_CHARACTERS,
    open_value=ROAD,
    pads_lines=False,
    described="# for a building, . for a road, 2 or 4 for a congested one, D for the depot and C for a customer",
)
OBJECT_FORM = (
    'send {"grid": rows of 0 (building) and 1, 2 or 4 (cost of a road), "depot": [row, column], "customers": [[row, '
    "column], ...]}"
)


def parsed(shape: GridShape, notation: object) -> Parsed:
    """Read any notation; further rules for objects: `wrong-keys`, `bad-cell`, `in-building` and `same-cell`."""
    if isinstance(notation, dict):
        return _from_object(shape, cast("dict[object, object]", notation))
    return grid_notation.parsed(shape, LEGEND, notation)


def written(grid: Grid, notation: Notation) -> object:
    """The grid in the notation of a question."""
    if notation.kind != "object":
        return grid_notation.written(LEGEND, grid, notation)
    return {**json.loads(notation.template), "tour": np.argwhere(grid >= DEPOT).tolist()}


def _from_object(shape: GridShape, question: dict[object, object]) -> Parsed:
    keys = ("grid", "depot", "customers")
    grid_objects.check_keys(question, keys, "tour", OBJECT_FORM)
    grid, rows = grid_objects.numbers_of(shape, question["grid"], (BUILDING, *COSTS), "0 for a building, 1, 2 or 4")
    depot = grid_objects.cell_of(shape, "depot", question["depot"])
    customers = grid_objects.cells_of(shape, "customers", question["customers"])
    for cell in grid_objects.cells_of(shape, "tour", question.get("tour", [])):
        _check_road(grid, cell, "tour")
        grid[cell] = grid[cell] % ON_TOUR + ON_TOUR
    for cell, value, name in [(depot, DEPOT, "depot"), *((cell, CUSTOMER, "customer") for cell in customers)]:
        _check_road(grid, cell, name)
        grid[cell] = value
    template = json.dumps({"grid": rows, "depot": depot, "customers": customers})
    return Parsed(grid=grid, notation=Notation(kind="object", blank=ROAD, template=template))


def _check_road(grid: Grid, cell: Cell, name: str) -> None:
    """Refuse a place in a building, and one that a stop has taken already."""
    if grid[cell] == BUILDING:
        raise grid_objects.at(cell, f"the {name} stands in a building", "in-building", "choose a road cell")
    if grid[cell] in (DEPOT, CUSTOMER):
        raise grid_objects.at(cell, f"the {name} stands on another stop", "same-cell", "choose another road cell")
