"""City routing: the answer marks the roads of a cheapest closed tour from the depot through all customers.

A move goes to one of the four neighbours and costs what the entered cell costs: 1 for roads, 2 or 4 for congested
ones, 1 for the depot and the customers. A cell may be driven over more than once and is paid each time.
Text and lists are read as in `grid.notation`, and an object with the stops apart from the grid:

    {"grid": [[0, 1, 2, ...], ...], "depot": [row, column], "customers": [[row, column], ...]}

0 is a building and 1, 2 and 4 are what it costs to enter a road cell; rows and columns count from 0, so that a cell is
grid[row][column]. A stop costs 1 to enter whatever the grid has there. The answer is the same object with "tour": the
cells the tour drives over, stops included, in reading order.
Tokens: see `logistics.tours`. Shapes: B batch, T cells.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.board import UInt64Array, dihedral_hash_B
from hrm_puzzles.grid.notation import Cell, Legend
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.logistics import generator, tours
from hrm_puzzles.logistics.tours import BUILDING, COSTS, CUSTOMER, DEPOT, ON_TOUR, ROAD
from hrm_puzzles.puzzle import Grid, IntArray, Notation, Parsed

CHARACTERS = {BUILDING: "#", ROAD: ".", 2: "2", 4: "4", DEPOT: "D", CUSTOMER: "C", 11: "o", 12: "t", 14: "f"}
LEGEND = Legend(
    values={character: value for value, character in CHARACTERS.items()},
    characters=CHARACTERS,
    open_value=ROAD,
    pads_lines=False,
    described="# for a building, . for a road, 2 or 4 for a congested one, D for the depot and C for a customer",
)
OBJECT_FORM = (
    'send {"grid": rows of 0 (building) and 1, 2 or 4 (cost of a road), "depot": [row, column], "customers": [[row, '
    "column], ...]}"
)
MARKS = {cost: cost + ON_TOUR for cost in COSTS}
PICTURES = {BUILDING: "██", 1: "  ", 2: "2 ", 4: "4 ", DEPOT: "D ", CUSTOMER: "C ", 11: "• ", 12: "2•", 14: "4•"}
PALETTE = {
    BUILDING: "#3b3b3b",
    DEPOT: "#2e9e4f",
    CUSTOMER: "#d0342c",
    1: "#ffffff",
    2: "#ffe08a",
    4: "#f5a623",
    11: "#7db4e6",
    12: "#4f8fcc",
    14: "#2a66a3",
}


@dataclass(frozen=True, kw_only=True)
class Logistics(GridPuzzle):
    """Any cheapest tour is right, with no road marked beside it. A generated city has one; its rating is the cost."""

    noun = "city"
    sides = range(5, 31)
    vocab_size = tours.VOCAB_SIZE
    difficulties = tuple(generator.NUM_CUSTOMERS)
    legend = LEGEND
    marks = MARKS
    token_of_value = tours.TOKEN_OF_VALUE
    value_of_token = tours.VALUE_OF_TOKEN
    pictures = PICTURES
    palette = PALETTE
    check_question = staticmethod(tours.check_question)
    is_right_B = staticmethod(tours.is_cheapest_tour_B)
    generator = staticmethod(generator.generate)

    def equivalence_hash_B(self, inputs_BT: IntArray, labels_BT: IntArray) -> UInt64Array:  # noqa: ARG002
        """The question decides, whatever is revealed of its tour."""
        bare_BT = np.where(inputs_BT > tours.CUSTOMER_TOKEN, inputs_BT - tours.TOUR, inputs_BT)
        return dihedral_hash_B(self.shape, bare_BT)

    def from_object(self, question: dict[object, object]) -> Parsed:
        """Further rules: `wrong-keys`, `bad-cell`, `in-building` and `same-cell`."""
        shape = self.shape
        grid_notation.check_keys(question, ("grid", "depot", "customers"), "tour", OBJECT_FORM)
        described = "0 for a building, 1, 2 or 4"
        grid, rows = grid_notation.numbers_of(shape, question["grid"], (BUILDING, *COSTS), described)
        depot = grid_notation.cell_of(shape, "depot", question["depot"])
        customers = grid_notation.cells_of(shape, "customers", question["customers"])
        for cell in grid_notation.cells_of(shape, "tour", question.get("tour", [])):
            _require_road(grid, cell, "tour")
            grid[cell] = grid[cell] % ON_TOUR + ON_TOUR
        for cell, value, name in [(depot, DEPOT, "depot"), *((cell, CUSTOMER, "customer") for cell in customers)]:
            _require_road(grid, cell, name)
            grid[cell] = value
        template = json.dumps({"grid": rows, "depot": depot, "customers": customers})
        return Parsed(grid=grid, notation=Notation(kind="object", blank=ROAD, template=template))

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        return {**question, "tour": np.argwhere(grid >= DEPOT).tolist()}


def _require_road(grid: Grid, cell: Cell, name: str) -> None:
    if grid[cell] == BUILDING:
        raise grid_notation.error_at(cell, f"the {name} stands in a building", "in-building", "choose a road cell")
    if grid[cell] in (DEPOT, CUSTOMER):
        remedy = "choose another road cell"
        raise grid_notation.error_at(cell, f"the {name} stands on another stop", "same-cell", remedy)
