"""City routing: the answer marks the roads of a cheapest closed tour from the depot through all customers.

A move goes to one of the four neighbours and costs what the entered cell costs: 1 for roads, 2 or 4 for congested
ones, 1 for the depot and the customers. A cell may be driven over more than once and is paid each time.
Text and lists are read as in `grid.notation`, and an object with the stops apart from the grid of entry costs (0 is a
building): {"grid": [[0, 1, 2, ...], ...], "depot": [row, column], "customers": [[row, column], ...]}. Rows and columns
count from 0. A stop costs 1 to enter whatever the grid has there. The answer is the same object with "tour": the cells
the tour drives over, stops included, in reading order.
Grid values: 0 building, a road's cost (1, or congested 2 and 4), 5 depot, 6 customer; 11, 12 and 14 are roads of cost
1, 2 and 4 on the tour. Tokens: see `tours`. Shapes: B batch, P stops, T cells.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import numpy as np

from hrm_puzzles import tours
from hrm_puzzles.grid import notation as grid_notation
from hrm_puzzles.grid.board import (
    NEIGHBOURS,
    BoolArray,
    GridShape,
    Int32Array,
    bit_at,
    levels_from,
    num_neighbours_BT,
)
from hrm_puzzles.grid.notation import Cell, Legend
from hrm_puzzles.grid.puzzle import GridPuzzle
from hrm_puzzles.puzzle import Example, Grid, IntArray, Leg, PuzzleError, Route, require_difficulty
from hrm_puzzles.tours import (
    COST_OF_TOKEN,
    COSTS,
    CUSTOMER_TOKEN,
    DEPOT_TOKEN,
    FAR,
    TOUR,
    VOCAB_SIZE,
)

BUILDING, ROAD, DEPOT, CUSTOMER = 0, 1, 5, 6  # values in grids
ON_TOUR = 10  # added to the value of a road
VALUE_OF_TOKEN = np.array([1, 0, 1, 2, 4, 5, 6, 11, 12, 14, 1], dtype=np.int8)
TOKEN_OF_VALUE = np.zeros(15, dtype=np.int32)
TOKEN_OF_VALUE[VALUE_OF_TOKEN[1:VOCAB_SIZE]] = np.arange(1, VOCAB_SIZE)

MAX_CUSTOMERS = 8
BLOCK = 64  # answers judged together, which bounds the memory

CHARACTERS = {BUILDING: "#", ROAD: ".", 2: "2", 4: "4", DEPOT: "D", CUSTOMER: "C", 11: "o", 12: "t", 14: "f"}
OBJECT_FORM = (
    'send {"grid": rows of 0 (building) and 1, 2 or 4 (cost of a road), "depot": [row, column], "customers": [[row, '
    "column], ...]}"
)
PICTURES = {BUILDING: "██", 1: "  ", 2: "2 ", 4: "4 ", DEPOT: "D ", CUSTOMER: "C ", 11: "• ", 12: "2•", 14: "4•"}
COLOURS = ["#3b3b3b", "#ffffff", "#ffe08a", "#f5a623", "#2e9e4f", "#d0342c", "#7db4e6", "#4f8fcc", "#2a66a3"]

NUM_CUSTOMERS = {"easy": range(1, 3), "medium": range(3, 6), "hard": range(6, 9)}
NUM_CUSTOMERS_SMALL = {"easy": range(1, 2), "medium": range(2, 4), "hard": range(4, 6)}
SMALL = 64  # cities of fewer cells hold fewer customers
BLOCK_SIDES = (1, 2)  # cells of buildings between two streets
CLOSED_SHARE = 0.3  # of the stretches; fewer where the roads would fall apart
CONGESTION = ((1, 0.6), (2, 0.25), (4, 0.15))  # the share of the stretches for each cost


@dataclass(frozen=True, kw_only=True)
class Logistics(GridPuzzle):
    """Any cheapest tour is right, with no road marked beside it. A generated city has one; its rating is the cost."""

    noun = "city"
    wrong_marks = "the marked roads are no cheapest tour"
    sides = range(5, 31)
    vocab_size = VOCAB_SIZE
    difficulties = tuple(NUM_CUSTOMERS)
    legend = Legend(
        values={character: value for value, character in CHARACTERS.items()},
        characters=CHARACTERS,
        open_value=ROAD,
        pads_lines=False,
        described="# for a building, . for a road, 2 or 4 for a congested one, D for the depot and C for a customer",
    )
    marks: ClassVar = {cost: cost + ON_TOUR for cost in COSTS}
    token_of_value = TOKEN_OF_VALUE
    value_of_token = VALUE_OF_TOKEN
    pictures = PICTURES
    palette: ClassVar = dict(zip(PICTURES, COLOURS, strict=True))

    def check_question(self, tokens_T: IntArray) -> None:
        """Refuse a city without one depot and 1 to 8 customers, or with a customer that no way leads to."""
        depots, customers = (np.flatnonzero(tokens_T == token).tolist() for token in (DEPOT_TOKEN, CUSTOMER_TOKEN))
        _check_counts(self.shape, depots, customers)
        distance_T = tours.distances_BPT(self.shape, COST_OF_TOKEN[tokens_T][None], np.array([depots]))[0, 0]
        for cell in customers:
            if distance_T[cell] == FAR:
                name = self.shape.cell_name(cell)
                problem = f"no way leads from the depot to the customer at row {name[0]}, column {name[1]}"
                raise PuzzleError(problem, "unreachable-customer", "connect it by a road or leave it out", name)

    def bare(self, tokens: IntArray) -> IntArray:
        return np.where(tokens > CUSTOMER_TOKEN, tokens - TOUR, tokens)

    def is_right_B(self, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
        """Where the answer keeps the city, a tour on the marked roads costs as little as any, and none is spare."""
        shape, is_right_B = self.shape, np.zeros(len(inputs_BT), dtype=np.bool_)
        plausible = np.flatnonzero(_is_plausible_B(shape, inputs_BT, answers_BT))
        for start in range(0, len(plausible), BLOCK):
            rows = plausible[start : start + BLOCK]
            answers_KT = answers_BT[rows]
            costs_2KT = np.concatenate([COST_OF_TOKEN[answers_KT], tours.marked_costs_BT(answers_KT)])
            best_K, marked_K = np.split(tours.optimum_B(shape, costs_2KT, np.concatenate([answers_KT, answers_KT])), 2)
            is_cheapest_K = (marked_K == best_K) & (best_K < FAR)
            is_cheapest_K[is_cheapest_K] = tours.is_minimal_B(shape, answers_KT[is_cheapest_K], best_K[is_cheapest_K])
            is_right_B[rows] = is_cheapest_K
        return is_right_B

    def generate(self, rng: np.random.Generator, difficulty: str) -> Example:
        """A city with stops, the only roads a cheapest tour can take, and its cost."""
        counts = num_customers(self.shape, difficulty)
        draw = Random(int(rng.integers(2**63)))  # many single draws, for which this is faster
        while True:
            city = _city(self.shape, draw)
            roads: list[int] = np.flatnonzero(city.costs_T).tolist()
            city.stops = draw.sample(roads, min(len(roads), 1 + draw.choice(counts)))
            city.costs_T[city.stops] = 1
            chosen = _with_one_tour(city, draw)
            if chosen is not None:
                question, answer = _grids(city, chosen[0])
                return Example(question=question, answer=answer, rating=chosen[1])

    def route(self, question: Grid, answer: Grid) -> Route:
        """A leg to each customer and one back to the depot, of a cheapest tour over the marked roads."""
        tokens_T, shape = self.encode(question), self.shape
        is_kept_T = (answer == question).reshape(-1) | (answer == question + ON_TOUR).reshape(-1)
        costs_T = np.where(is_kept_T, tours.marked_costs_BT(self.encode(answer)), 0)
        depot, customers = (np.flatnonzero(tokens_T == token).tolist() for token in (DEPOT_TOKEN, CUSTOMER_TOKEN))
        stops: list[int] = depot + customers
        costs_T[stops] = 1
        optimum = int(tours.optimum_B(shape, COST_OF_TOKEN[tokens_T][None], tokens_T[None])[0])
        start = divmod(stops[0], shape.cols)
        distance_PT = tours.distances_BPT(shape, costs_T[None], np.array([stops]))[0]
        if (distance_PT[:, stops] == FAR).any():
            return Route(start=start, legs=[], cost=None, optimum=optimum)
        cheapest, ahead = tours.CheapestTours(distance_PT[:, stops]), {*stops[1:]}
        entered, legs = list[int](), list[Leg]()
        for before, stop in reversed(cheapest.one()):
            for cell in reversed(_way(shape, distance_PT[before], costs_T, stops[stop], min)):
                entered.append(cell)
                if cell in ahead or (cell == stops[0] and not ahead):  # a tour may pass the depot on its way
                    cells = [divmod(one, shape.cols) for one in entered]
                    legs.append(Leg(to=cells[-1], cost=int(costs_T[entered].sum()), cells=cells))
                    ahead.discard(cell)
                    entered.clear()
        return Route(start=start, legs=legs, cost=cheapest.cost, optimum=optimum)

    def from_object(self, question: dict[object, object]) -> tuple[Grid, dict[str, object]]:
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
        return grid, {"grid": rows, "depot": depot, "customers": customers}

    def question_object(self, grid: Grid) -> dict[str, object]:
        depot, customers = (np.argwhere(grid == value).tolist() for value in (DEPOT, CUSTOMER))
        return {"grid": np.where(grid >= DEPOT, 1, grid).tolist(), "depot": depot[0], "customers": customers}

    def object_of(self, question: dict[str, Any], grid: Grid) -> dict[str, Any]:
        return {**question, "tour": np.argwhere(grid >= DEPOT).tolist()}


def _require_road(grid: Grid, cell: Cell, name: str) -> None:
    if grid[cell] == BUILDING:
        raise grid_notation.error_at(cell, f"the {name} stands in a building", "in-building", "choose a road cell")
    if grid[cell] in (DEPOT, CUSTOMER):
        remedy = "choose another road cell"
        raise grid_notation.error_at(cell, f"the {name} stands on another stop", "same-cell", remedy)


def _check_counts(shape: GridShape, depots: list[int], customers: list[int]) -> None:
    if not depots:
        raise PuzzleError("there is no depot", "no-depot", "mark one road cell with D")
    if len(depots) > 1:
        row, col = shape.cell_name(depots[1])
        problem = f"there are {len(depots)} depots, the second at row {row}, column {col}"
        raise PuzzleError(problem, "many-depots", "keep one D", (row, col))
    if not customers:
        raise PuzzleError("there is no customer", "no-customers", f"mark 1 to {MAX_CUSTOMERS} road cells with C")
    if len(customers) > MAX_CUSTOMERS:
        row, col = shape.cell_name(customers[MAX_CUSTOMERS])
        problem = f"there are {len(customers)} customers, one too many at row {row}, column {col}"
        raise PuzzleError(problem, "too-many-customers", f"keep at most {MAX_CUSTOMERS}", (row, col))


def _is_plausible_B(shape: GridShape, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
    """Where the answer only marks roads, there are one depot and 1 to 8 customers, and no mark is a dead end."""
    is_stop_BT = (inputs_BT == DEPOT_TOKEN) | (inputs_BT == CUSTOMER_TOKEN)
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    is_newly_marked_BT = np.isin(inputs_BT, tours.ROAD_TOKENS) & (answers_BT == inputs_BT + TOUR)
    keeps_B = ((answers_BT == inputs_BT) | is_newly_marked_BT).all(axis=1) & (answers_BT < VOCAB_SIZE).all(axis=1)
    num_stops_B = is_stop_BT.sum(axis=1)
    has_stops_B = ((inputs_BT == DEPOT_TOKEN).sum(axis=1) == 1) & (num_stops_B > 1) & (num_stops_B <= MAX_CUSTOMERS + 1)
    num_ways_BT = num_neighbours_BT(shape, is_stop_BT | is_marked_BT)
    return keeps_B & has_stops_B & (num_ways_BT >= is_stop_BT + 2 * is_marked_BT).all(axis=1)


# Fresh cities: a cheapest tour is chosen first. Wherever another costs the same, a stretch that only that uses gets
# congested, until none is left: the chosen tour costs what it did, and every other at least as much as before.


def num_customers(shape: GridShape, difficulty: str) -> range:
    wanted = NUM_CUSTOMERS_SMALL if shape.num_cells < SMALL else NUM_CUSTOMERS
    require_difficulty(difficulty, wanted)
    return wanted[difficulty]


@dataclass(kw_only=True, eq=False)
class _City:
    """Costs (0: no road), stretches (the cells of a street between crossings, and each crossing), and stops."""

    shape: GridShape
    costs_T: Int32Array
    stretches: list[list[int]]
    stops: list[int]


def _with_one_tour(city: _City, draw: Random) -> tuple[BoolArray, int] | None:
    """The cells of the only cheapest tour and its cost, once congestion leaves only one; None if it does not."""
    chosen_T: BoolArray | None = None
    while True:
        distance_PT = tours.distances_BPT(city.shape, city.costs_T[None], np.array([city.stops]))[0]
        cheapest = tours.CheapestTours(distance_PT[:, city.stops])
        if chosen_T is None:
            chosen_T = np.zeros(city.shape.num_cells, dtype=np.bool_)
            for start, end in cheapest.one():
                chosen_T[_way(city.shape, distance_PT[start], city.costs_T, city.stops[end], draw.choice)] = True
        starts, ends = (list(part) for part in zip(*cheapest.legs(), strict=True))
        through_LT = distance_PT[starts] + distance_PT[ends] - city.costs_T + 1  # the cell's own cost is in both
        whole_L1 = distance_PT[starts, np.array(city.stops)[ends]][:, None]
        others_T = ((through_LT == whole_L1) & (city.costs_T > 0)).any(axis=0) & ~chosen_T
        if not others_T.any():
            tokens_T = TOKEN_OF_VALUE[_grids(city, chosen_T)[1].reshape(-1)]
            is_minimal = tours.is_minimal_B(city.shape, tokens_T[None], np.array([cheapest.cost]))[0]
            return (chosen_T, cheapest.cost) if is_minimal else None
        if not _congest(city, draw, others_T, chosen_T):
            return None


def _way(
    shape: GridShape, distance_T: Int32Array, costs_T: Int32Array, cell: int, choose: Callable[[list[int]], int]
) -> list[int]:
    """The cells that a cheapest way enters, back from `cell` to where `distance_T` is 0, that one left out."""
    cells: list[int] = []
    while distance_T[cell]:
        cells.append(int(cell))
        row, col = divmod(cell, shape.cols)
        places = [(row + down, col + right) for down, right in NEIGHBOURS]
        near = [r * shape.cols + c for r, c in places if 0 <= r < shape.rows and 0 <= c < shape.cols]
        cell = choose([other for other in near if distance_T[other] == distance_T[cell] - costs_T[cell]])
    return cells


def _congest(city: _City, draw: Random, others_T: BoolArray, chosen_T: BoolArray) -> bool:
    """Make a stretch that only other tours use dearer by one step; False if none can be."""
    can_rise_T = (city.costs_T > 0) & (city.costs_T < COSTS[-1]) & ~chosen_T
    stretches = [stretch for stretch in city.stretches if (others_T & can_rise_T)[stretch].any()]
    if not stretches:
        return False
    stretch = np.array(draw.choice(stretches))
    city.costs_T[stretch[can_rise_T[stretch]]] *= 2
    return True


def _grids(city: _City, chosen_T: BoolArray) -> tuple[Grid, Grid]:
    question_T = city.costs_T.astype(np.int8)
    answer_T = question_T + np.int8(ON_TOUR) * chosen_T
    for grid_T in (question_T, answer_T):
        grid_T[city.stops] = [DEPOT] + [CUSTOMER] * (len(city.stops) - 1)
    sides = (city.shape.rows, city.shape.cols)
    return question_T.reshape(sides), answer_T.reshape(sides)


def _city(shape: GridShape, draw: Random) -> _City:
    street_rows, street_cols = _streets(draw, shape.rows), _streets(draw, shape.cols)
    crossings = [[row * shape.cols + col] for row in street_rows for col in street_cols]
    along = [[row * shape.cols + col for col in gap] for gap in _gaps(street_cols, shape.cols) for row in street_rows]
    across = [[row * shape.cols + col for row in gap] for gap in _gaps(street_rows, shape.rows) for col in street_cols]
    stretches = _partly_closed(shape, draw, along + across, crossings) + crossings
    costs_T = np.zeros(shape.num_cells, dtype=np.int32)
    costs, weights = zip(*CONGESTION, strict=True)
    for stretch, cost in zip(stretches, draw.choices(costs, weights, k=len(stretches)), strict=True):
        costs_T[stretch] = cost
    return _City(shape=shape, costs_T=costs_T, stretches=stretches, stops=[])


def _streets(draw: Random, length: int) -> list[int]:
    lines = [draw.randrange(2)]
    while (line := lines[-1] + 1 + draw.choice(BLOCK_SIDES)) < length:
        lines.append(line)
    return lines


def _gaps(lines: list[int], length: int) -> list[range]:
    """What lies between the lines, before the first and behind the last."""
    ends = zip([-1, *lines], [*lines, length], strict=True)
    return [range(one + 1, other) for one, other in ends if other - one > 1]


def _partly_closed(
    shape: GridShape, draw: Random, stretches: list[list[int]], crossings: list[list[int]]
) -> list[list[int]]:
    """The stretches without some random ones, each left out only if the other roads stay connected."""
    bits = [sum(bit_at(shape, *divmod(cell, shape.cols)) for cell in cells) for cells in stretches + crossings]
    roads = sum(bits)
    kept = set(range(len(stretches)))
    for index in draw.sample(range(len(stretches)), round(CLOSED_SHARE * len(stretches))):
        others = roads ^ bits[index]
        if sum(levels_from(shape, others, others & -others)) == others:
            roads = others
            kept.discard(index)
    return [stretches[index] for index in sorted(kept)]
