"""City routing: the answer marks a cheapest closed tour from the depot through all customers.

A move enters one of the four neighbors and costs what the entered cell costs: 1 for roads, 2 or 4
for congested roads, 1 for the depot and the customers. A tour may enter a cell more than once and
pays each time.
Text and lists are read as in `grid.notation`. A JSON object holds the stops apart from the grid of
entry costs, in which 0 is a building:

    {"grid": [[0, 1, 2, ...], ...], "depot": [row, column], "customers": [[row, column], ...]}

Rows and columns count from 0. A stop always costs 1, even if the grid holds another number there.
The answer is the same object with "tour": the cells of the tour in reading order, including stops.
Grid values: 0 building, a road's cost (1, or congested 2 and 4), 5 depot, 6 customer; 11, 12 and 14
are roads of cost 1, 2 and 4 on the tour. Tokens: see `tours`.
Shapes: B batch, P stops, T cells, K answers that are checked together.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hrm_host.reading import counted
from hrm_puzzles import logistics_generator, tours
from hrm_puzzles.grid.board import GridShape, num_neighbors_BT
from hrm_puzzles.grid.notation import cell_of, cells_of, check_keys, numbers_of
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.logistics_generator import (
    BUILDING,
    CUSTOMER,
    DEPOT,
    MAX_CUSTOMERS,
    ON_TOUR,
    ROAD,
    TOKEN_OF_VALUE,
    VALUE_OF_TOKEN,
)
from hrm_puzzles.puzzle import (
    BoolArray,
    Example,
    Grid,
    Int32Array,
    IntArray,
    Leg,
    PuzzleError,
    Route,
)
from hrm_puzzles.reading.legend import Legend
from hrm_puzzles.tours import COST_OF_TOKEN, COSTS, CUSTOMER_TOKEN, DEPOT_TOKEN, FAR, TOUR

BLOCK = 64  # answers that are checked together; bounds the memory

CHARACTERS = {
    BUILDING: "#",
    ROAD: ".",
    2: "2",
    4: "4",
    DEPOT: "D",
    CUSTOMER: "C",
    11: "o",
    12: "t",
    14: "f",
}
OBJECT_FORM = (
    'send {"grid": rows of 0 (building) and 1, 2 or 4 (cost of a road), "depot": [row, column], '
    '"customers": [[row, column], ...]}'
)


@dataclass(frozen=True, kw_only=True)
class Logistics(GridPuzzle):
    """Any cheapest tour is right if it does not mark a spare road.

    A generated city has a single cheapest tour. The rating is its cost.
    """

    noun = "city"
    wrong_marks = "the marked roads are not a cheapest tour"
    sides = range(5, 31)
    vocab_size = tours.VOCAB_SIZE
    difficulties = logistics_generator.DIFFICULTIES
    legend = Legend(
        values={character: value for value, character in CHARACTERS.items()},
        characters=CHARACTERS,
        open_value=ROAD,
        described=(
            "# for a building, . for a road, 2 or 4 for a congested one, "
            "D for the depot and C for a customer"
        ),
    )
    marks: ClassVar = {cost: cost + ON_TOUR for cost in COSTS}
    wall = BUILDING
    wall_noun = "building"
    stops = (DEPOT, CUSTOMER)
    keys = ("grid", "depot", "customers")
    token_of_value = TOKEN_OF_VALUE
    value_of_token = VALUE_OF_TOKEN
    pictures: ClassVar = {
        BUILDING: "██",
        ROAD: "  ",
        2: "2 ",
        4: "4 ",
        DEPOT: "D ",
        CUSTOMER: "C ",
        11: "• ",
        12: "2•",
        14: "4•",
    }

    def check_question(self, tokens_T: IntArray) -> None:
        """Require one depot and 1 to 8 customers, all connected to it."""
        self.require_one(tokens_T, DEPOT_TOKEN, "depot", "D")
        depot, *customers = _stops_of(tokens_T)
        _check_customers(self.shape, customers)
        distance_PT = tours.distances_PT(self.shape, COST_OF_TOKEN[tokens_T], [depot])
        for cell in customers:
            if distance_PT[0, cell] == FAR:
                row, col = self.shape.cell_name(cell)
                customer = f"the customer at row {row}, column {col}"
                problem = f"{customer} is not connected to the depot"
                remedy = "add a road or remove the customer"
                raise PuzzleError(problem, "unreachable-customer", remedy, (row, col))

    def bare(self, tokens: IntArray) -> IntArray:
        return np.where(tokens > CUSTOMER_TOKEN, tokens - TOUR, tokens)

    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
        """Whether the marks hold a cheapest tour, none is spare, and nothing else changed."""
        is_right_B = np.zeros(len(inputs_BT), dtype=np.bool_)
        is_plausible_B = _is_plausible_B(self.shape, inputs_BT, answers_BT)
        plausible = np.flatnonzero(is_plausible_B)
        for start in range(0, len(plausible), BLOCK):
            rows = plausible[start : start + BLOCK]
            is_right_B[rows] = self._is_cheapest_K(answers_BT[rows])
        return is_right_B

    def _is_cheapest_K(self, answers_KT: IntArray) -> BoolArray:
        """Whether the marked roads hold a cheapest tour and nothing else."""
        # One search finds the optimum on all roads and the optimum on the marked roads.
        all_costs_KT = COST_OF_TOKEN[answers_KT]
        marked_costs_KT = tours.marked_costs_BT(answers_KT)
        costs_BT = np.concatenate([all_costs_KT, marked_costs_KT])
        tokens_BT = np.concatenate([answers_KT, answers_KT])
        best_K, marked_K = np.split(tours.optimum_B(self.shape, costs_BT, tokens_BT), 2)
        is_right_K = (marked_K == best_K) & (best_K < FAR)
        cheapest = np.flatnonzero(is_right_K)
        is_right_K[cheapest] = tours.is_minimal_B(
            self.shape, answers_KT[cheapest], best_K[cheapest]
        )
        return is_right_K

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        return logistics_generator.generate(self.shape, rng, difficulty)

    def label_of(self, question: Grid) -> Grid:
        tokens_T = self.encode(question)
        self.check_question(tokens_T)
        costs_T = COST_OF_TOKEN[tokens_T]
        entered = self._entered(costs_T, _stops_of(tokens_T))
        assert entered is not None, "check_question rejects a city without a tour"
        is_driven_T = np.zeros(self.seq_len, dtype=np.bool_)
        is_driven_T[entered] = True
        is_road_T = np.isin(tokens_T, tours.ROAD_TOKENS)
        label_T = np.where(is_driven_T & is_road_T, tokens_T + TOUR, tokens_T)
        if not self.is_right_B(tokens_T[None], label_T[None])[0]:
            label_T = tours.without_spare_T(self.shape, label_T)
        return self.decode(label_T)

    def route(self, question: Grid, answer: Grid) -> Route:
        """One leg to each customer and one back to the depot, on the marked roads."""
        shape = self.shape
        tokens_T = self.encode(question)
        all_costs_T = COST_OF_TOKEN[tokens_T]
        optimum = int(tours.optimum_B(shape, all_costs_T[None], tokens_T[None])[0])
        stops = _stops_of(tokens_T)
        start = divmod(stops[0], shape.cols)
        is_kept = (answer == question) | (answer == question + ON_TOUR)
        costs_T = np.where(is_kept.reshape(-1), tours.marked_costs_BT(self.encode(answer)), 0)
        costs_T[stops] = 1
        entered = self._entered(costs_T, stops)
        if entered is None:
            return Route(start=start, legs=[], cost=None, optimum=optimum)
        legs = self._legs(entered, stops, costs_T)
        return Route(start=start, legs=legs, cost=int(costs_T[entered].sum()), optimum=optimum)

    def _entered(self, costs_T: Int32Array, stops: list[int]) -> list[int] | None:
        """The cells that one cheapest tour enters, in order; None if there is no tour."""
        distance_PT = tours.distances_PT(self.shape, costs_T, stops)
        distance_PP = distance_PT[:, stops]
        if (distance_PP == FAR).any():
            return None
        entered: list[int] = []
        for before, stop in reversed(tours.CheapestTours(distance_PP).one()):
            distance_T = distance_PT[before]
            back = logistics_generator.way(self.shape, distance_T, costs_T, stops[stop], min)
            entered.extend(reversed(back))
        return entered

    def _legs(self, entered: list[int], stops: list[int], costs_T: Int32Array) -> list[Leg]:
        """Cut the entered cells at each customer when it is first entered, and at the end.

        A tour may pass the depot on its way.
        """
        depot, *customers = stops
        ahead = set(customers)
        legs: list[Leg] = []
        cells: list[tuple[int, int]] = []
        cost = 0
        for cell in entered:
            cells.append(divmod(cell, self.shape.cols))
            cost += int(costs_T[cell])
            is_end = cell == depot and not ahead
            if cell in ahead or is_end:
                legs.append(Leg(to=cells[-1], cost=cost, cells=cells))
                ahead.discard(cell)
                cells = []
                cost = 0
        return legs

    def from_object(self, question: dict[str, object]) -> tuple[Grid, dict[str, object]]:
        """Read a JSON object.

        Raises PuzzleError with the rule `wrong-keys`, `bad-cell`, `in-building` or `same-cell`.
        """
        shape = self.shape
        check_keys(question, self.keys, "tour", OBJECT_FORM)
        described = "0 for a building, 1, 2 or 4"
        grid, rows = numbers_of(shape, question["grid"], (BUILDING, *COSTS), described)
        depot = cell_of(shape, "depot", question["depot"])
        customers = cells_of(shape, "customers", question["customers"])
        tour = cells_of(shape, "tour", question.get("tour", []))
        for cell in tour:
            self.place(grid, [cell], grid[cell] % ON_TOUR + ON_TOUR, "tour")
        self.place(grid, [depot], DEPOT, "depot")
        self.place(grid, customers, CUSTOMER, "customer")
        return grid, {"grid": rows, "depot": depot, "customers": customers}

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        tour = np.argwhere(grid >= DEPOT).tolist()
        return {**question, "tour": tour}


def _stops_of(tokens_T: IntArray) -> list[int]:
    """The depot, then the customers."""
    depots: list[int] = np.flatnonzero(tokens_T == DEPOT_TOKEN).tolist()
    customers: list[int] = np.flatnonzero(tokens_T == CUSTOMER_TOKEN).tolist()
    return depots + customers


def _check_customers(shape: GridShape, customers: list[int]) -> None:
    if not customers:
        remedy = f"mark 1 to {MAX_CUSTOMERS} road cells with C"
        raise PuzzleError("the city has no customer", "no-customers", remedy)
    if len(customers) > MAX_CUSTOMERS:
        row, col = shape.cell_name(customers[MAX_CUSTOMERS])
        extra = f"one too many at row {row}, column {col}"
        problem = f"the city has {counted(len(customers), 'customer')}, {extra}"
        remedy = f"keep at most {MAX_CUSTOMERS}"
        raise PuzzleError(problem, "too-many-customers", remedy, (row, col))


def _is_plausible_B(shape: GridShape, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
    """Whether an answer is worth a search: it only marks roads, it has one depot and 1 to 8
    customers, and no mark is a dead end.
    """
    is_newly_marked_BT = np.isin(inputs_BT, tours.ROAD_TOKENS) & (answers_BT == inputs_BT + TOUR)
    is_kept_BT = (answers_BT == inputs_BT) | is_newly_marked_BT
    is_known_BT = answers_BT < tours.VOCAB_SIZE
    keeps_B = is_kept_BT.all(axis=1) & is_known_BT.all(axis=1)

    is_depot_BT = inputs_BT == DEPOT_TOKEN
    is_stop_BT = is_depot_BT | (inputs_BT == CUSTOMER_TOKEN)
    num_depots_B = is_depot_BT.sum(axis=1)
    num_stops_B = is_stop_BT.sum(axis=1)
    has_customers_B = (num_stops_B > 1) & (num_stops_B <= MAX_CUSTOMERS + 1)
    has_stops_B = (num_depots_B == 1) & has_customers_B

    # A tour enters and leaves a marked road through two cells. A stop can be a dead end.
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    num_ways_BT = num_neighbors_BT(shape, is_stop_BT | is_marked_BT)
    needed_BT = is_stop_BT + 2 * is_marked_BT
    return keeps_B & has_stops_B & (num_ways_BT >= needed_BT).all(axis=1)
