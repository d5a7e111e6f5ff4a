"""Fresh cities with a single cheapest tour.

A cheapest tour is chosen first. While another tour costs the same, a stretch that only other tours
use becomes congested. The chosen tour keeps its cost, and no other tour becomes cheaper.
Shapes: P stops, T cells, L legs of cheapest tours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np

from hrm_puzzles import tours
from hrm_puzzles.grid.board import NEIGHBORS, GridShape, levels_from
from hrm_puzzles.puzzle import BoolArray, Example, Int32Array, require_difficulty
from hrm_puzzles.tours import COSTS, VOCAB_SIZE

BUILDING, ROAD = 0, 1  # values in grids
DEPOT, CUSTOMER = 5, 6
ON_TOUR = 10  # added to the value of a road on the tour
VALUE_OF_TOKEN = np.array([1, 0, 1, 2, 4, 5, 6, 11, 12, 14, 1], dtype=np.int8)
TOKEN_OF_VALUE = np.zeros(15, dtype=np.int32)
TOKEN_OF_VALUE[VALUE_OF_TOKEN[1:VOCAB_SIZE]] = np.arange(1, VOCAB_SIZE)

MAX_CUSTOMERS = 8
NUM_CUSTOMERS = {"easy": range(1, 3), "medium": range(3, 6), "hard": range(6, 9)}
NUM_CUSTOMERS_SMALL = {"easy": range(1, 2), "medium": range(2, 4), "hard": range(4, 6)}
DIFFICULTIES = tuple(NUM_CUSTOMERS)
SMALL = 64  # cells; smaller cities hold fewer customers
BLOCK_SIDES = (1, 2)  # numbers of cells between two streets
# Share of the stretches that are closed. It is lower if the roads would become disconnected.
CLOSED_SHARE = 0.3
# Shares of the stretches by their cost.
CONGESTION = {1: 0.6, 2: 0.25, 4: 0.15}


@dataclass(kw_only=True, eq=False)
class _City:
    """A city whose costs rise until it has one cheapest tour.

    A cost of 0 is a building. A stretch is the cells of a street between two crossings, or one
    crossing. `stops` holds the depot and then the customers.
    """

    shape: GridShape
    costs_T: Int32Array
    stretches: list[list[int]]
    stops: list[int]


def num_customers(shape: GridShape, difficulty: str) -> range:
    """The possible numbers of customers of a difficulty."""
    wanted = NUM_CUSTOMERS
    if shape.num_cells < SMALL:
        wanted = NUM_CUSTOMERS_SMALL
    require_difficulty(difficulty, wanted)
    return wanted[difficulty]


def generate(shape: GridShape, rng: np.random.Generator, difficulty: str) -> Example:
    """A city with stops, the roads of its only cheapest tour, and the cost of that tour."""
    counts = num_customers(shape, difficulty)
    # Python's generator is faster for many single draws.
    draw = Random(int(rng.integers(2**63)))
    while True:
        city = _city(shape, draw, counts)
        example = _with_one_tour(city, draw)
        if example is not None:
            return example


def _with_one_tour(city: _City, draw: Random) -> Example | None:
    """Congest the city until one cheapest tour is left; None if this fails."""
    chosen_T = None
    while True:
        distance_PT = tours.distances_PT(city.shape, city.costs_T, city.stops)
        cheapest = tours.CheapestTours(distance_PT[:, city.stops])
        if chosen_T is None:
            chosen_T = _cells_of_one(city, draw, cheapest, distance_PT)
        others_T = _on_cheapest_T(city, cheapest, distance_PT) & ~chosen_T
        if not others_T.any():
            return _example(city, chosen_T, cheapest.cost)
        if not _congest(city, draw, others_T, chosen_T):
            return None


def _cells_of_one(
    city: _City,
    draw: Random,
    cheapest: tours.CheapestTours,
    distance_PT: Int32Array,
) -> BoolArray:
    """The cells of one cheapest tour, drawn at random."""
    cells_T = np.zeros(city.shape.num_cells, dtype=np.bool_)
    for start, end in cheapest.one():
        stop = city.stops[end]
        cells = way(city.shape, distance_PT[start], city.costs_T, stop, draw.choice)
        cells_T[cells] = True
    return cells_T


def _on_cheapest_T(
    city: _City,
    cheapest: tours.CheapestTours,
    distance_PT: Int32Array,
) -> BoolArray:
    """The roads of all cheapest tours."""
    legs_L2 = np.array(list(cheapest.legs()))
    starts_L = legs_L2[:, 0]
    ends_L = legs_L2[:, 1]
    # Both distances end at the cell, so they count its cost twice. They never count the cost of the
    # stop at the end, which is 1.
    through_LT = distance_PT[starts_L] + distance_PT[ends_L] - city.costs_T + 1
    end_cells_L = np.array(city.stops)[ends_L]
    whole_L = distance_PT[starts_L, end_cells_L]
    is_on_way_LT = (through_LT == whole_L[:, None]) & (city.costs_T > 0)
    return is_on_way_LT.any(axis=0)


def way(
    shape: GridShape,
    distance_T: Int32Array,
    costs_T: Int32Array,
    cell: int,
    choose: Callable[[list[int]], int],
) -> list[int]:
    """The cells that a cheapest way enters, last cell first.

    The way leads to `cell`. It starts at the cell with distance 0 and does not enter that cell.
    `choose` picks one of several equally cheap cells.
    """
    cells: list[int] = []
    while distance_T[cell]:
        cells.append(int(cell))
        distance_before = distance_T[cell] - costs_T[cell]
        near = _cells_beside(shape, cell)
        cell = choose([other for other in near if distance_T[other] == distance_before])
    return cells


def _cells_beside(shape: GridShape, cell: int) -> list[int]:
    row, col = divmod(cell, shape.cols)
    cells: list[int] = []
    for down, right in NEIGHBORS:
        near_row = row + down
        near_col = col + right
        if 0 <= near_row < shape.rows and 0 <= near_col < shape.cols:
            cells.append(near_row * shape.cols + near_col)
    return cells


def _congest(city: _City, draw: Random, others_T: BoolArray, chosen_T: BoolArray) -> bool:
    """Double the cost of a stretch that only other tours use; False if none is left."""
    can_rise_T = (city.costs_T > 0) & (city.costs_T < COSTS[-1]) & ~chosen_T
    can_help_T = others_T & can_rise_T
    stretches = [stretch for stretch in city.stretches if can_help_T[stretch].any()]
    if not stretches:
        return False
    stretch = np.array(draw.choice(stretches))
    rising = stretch[can_rise_T[stretch]]
    city.costs_T[rising] *= 2
    return True


def _example(city: _City, chosen_T: BoolArray, cost: int) -> Example | None:
    """The question, and the answer that marks the chosen cells; None if a mark is spare."""
    depot, *customers = city.stops
    question_T = city.costs_T.astype(np.int8)
    answer_T = question_T + np.int8(ON_TOUR) * chosen_T
    for grid_T in (question_T, answer_T):
        grid_T[depot] = DEPOT
        grid_T[customers] = CUSTOMER
    tokens_1T = TOKEN_OF_VALUE[answer_T[None]]
    if not tours.is_minimal_B(city.shape, tokens_1T, np.array([cost]))[0]:
        return None
    sides = (city.shape.rows, city.shape.cols)
    return Example(question=question_T.reshape(sides), answer=answer_T.reshape(sides), rating=cost)


def _city(shape: GridShape, draw: Random, counts: range) -> _City:
    """Streets with random costs, some of them closed, and stops on them."""
    stretches = _stretches(shape, draw)
    costs = list(CONGESTION)
    weights = list(CONGESTION.values())
    drawn = draw.choices(costs, weights, k=len(stretches))
    costs_T = np.zeros(shape.num_cells, dtype=np.int32)
    for stretch, cost in zip(stretches, drawn, strict=True):
        costs_T[stretch] = cost
    roads: list[int] = np.flatnonzero(costs_T).tolist()
    num_stops = 1 + draw.choice(counts)
    stops = draw.sample(roads, min(len(roads), num_stops))
    costs_T[stops] = 1
    return _City(shape=shape, costs_T=costs_T, stretches=stretches, stops=stops)


def _stretches(shape: GridShape, draw: Random) -> list[list[int]]:
    """The stretches that are open, then all crossings."""
    street_rows = _streets(draw, shape.rows)
    street_cols = _streets(draw, shape.cols)
    stretches: list[list[int]] = []
    for cols in _gaps(street_cols, shape.cols):
        for row in street_rows:
            stretches.append([row * shape.cols + col for col in cols])
    for rows in _gaps(street_rows, shape.rows):
        for col in street_cols:
            stretches.append([row * shape.cols + col for row in rows])
    crossings: list[list[int]] = []
    for row in street_rows:
        for col in street_cols:
            crossings.append([row * shape.cols + col])
    return _partly_closed(shape, draw, stretches, crossings) + crossings


def _streets(draw: Random, length: int) -> list[int]:
    """The lines of parallel streets, with blocks of buildings between them."""
    lines: list[int] = []
    line = draw.randrange(2)
    while line < length:
        lines.append(line)
        line += 1 + draw.choice(BLOCK_SIDES)
    return lines


def _gaps(lines: list[int], length: int) -> list[range]:
    """The ranges between the lines, before the first and after the last."""
    gaps: list[range] = []
    start = 0
    for line in [*lines, length]:
        if line > start:
            gaps.append(range(start, line))
        start = line + 1
    return gaps


def _partly_closed(
    shape: GridShape,
    draw: Random,
    stretches: list[list[int]],
    crossings: list[list[int]],
) -> list[list[int]]:
    """Remove random stretches, each only if the other roads stay connected."""
    stretch_bits = [_bits(shape, cells) for cells in stretches]
    roads = sum(stretch_bits) + sum(_bits(shape, cells) for cells in crossings)
    kept = set(range(len(stretches)))
    num_closed = round(CLOSED_SHARE * len(stretches))
    for index in draw.sample(range(len(stretches)), num_closed):
        others = roads ^ stretch_bits[index]
        first = others & -others
        reached = sum(levels_from(shape, others, first))
        if reached == others:
            roads = others
            kept.discard(index)
    return [stretches[index] for index in sorted(kept)]


def _bits(shape: GridShape, cells: list[int]) -> int:
    bits = 0
    for cell in cells:
        row, col = divmod(cell, shape.cols)
        bits |= 1 << row * (shape.cols + 1) + col
    return bits
