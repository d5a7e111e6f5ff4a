"""Fresh cities with exactly one cheapest tour, as far as its roads go, for a stated number of customers.

A cheapest tour is chosen first. Wherever another tour costs the same, a stretch that only the other uses gets
congested, until none is left: the chosen tour costs what it did, and every other at least as much as before.
A city is a net of streets around blocks of buildings, some stretches closed, some congested.
Shapes: P stops, T cells.
"""

from dataclasses import dataclass
from random import Random

import numpy as np

from hrm_puzzles.grid.board import NEIGHBOURS, BoolArray, GridShape, Int32Array, bit_at, levels_from
from hrm_puzzles.logistics import tours
from hrm_puzzles.logistics.tours import CheapestTours
from hrm_puzzles.puzzle import Example, Grid, require_difficulty

NUM_CUSTOMERS = {"easy": range(1, 3), "medium": range(3, 6), "hard": range(6, 9)}
NUM_CUSTOMERS_SMALL = {"easy": range(1, 2), "medium": range(2, 4), "hard": range(4, 6)}
SMALL = 64  # cities of fewer cells hold fewer customers
BLOCK_SIDES = (1, 2)  # cells of buildings between two streets
CLOSED_SHARE = 0.3  # of the stretches; fewer where the roads would fall apart
CONGESTION = ((1, 0.6), (2, 0.25), (4, 0.15))  # the share of the stretches for each cost


def num_customers(shape: GridShape, difficulty: str) -> range:
    wanted = NUM_CUSTOMERS_SMALL if shape.num_cells < SMALL else NUM_CUSTOMERS
    require_difficulty(difficulty, wanted)
    return wanted[difficulty]


def generate(shape: GridShape, rng: np.random.Generator, difficulty: str) -> Example:
    """A city with stops, the only roads a cheapest tour can take, and its cost."""
    counts = num_customers(shape, difficulty)
    draw = Random(int(rng.integers(2**63)))  # many single draws, for which this is faster
    while True:
        city = _city(shape, draw)
        roads: list[int] = np.flatnonzero(city.costs_T).tolist()
        city.stops = draw.sample(roads, min(len(roads), 1 + draw.choice(counts)))
        city.costs_T[city.stops] = 1
        chosen = _with_one_tour(city, draw)
        if chosen is not None:
            question, answer = _grids(city, chosen[0])
            return Example(question=question, answer=answer, rating=chosen[1])


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
        cheapest = CheapestTours(distance_PT[:, city.stops])
        if chosen_T is None:
            chosen_T = _cells_of_one(city, draw, distance_PT, cheapest)
        starts, ends = (list(part) for part in zip(*cheapest.legs(), strict=True))
        through_LT = distance_PT[starts] + distance_PT[ends] - city.costs_T + 1  # the cell's own cost is in both
        whole_L1 = distance_PT[starts, np.array(city.stops)[ends]][:, None]
        others_T = ((through_LT == whole_L1) & (city.costs_T > 0)).any(axis=0) & ~chosen_T
        if not others_T.any():
            tokens_T = tours.TOKEN_OF_VALUE[_grids(city, chosen_T)[1].reshape(-1)]
            is_minimal = tours.is_minimal_B(city.shape, tokens_T[None], np.array([cheapest.cost]))[0]
            return (chosen_T, cheapest.cost) if is_minimal else None
        if not _congest(city, draw, others_T, chosen_T):
            return None


def _cells_of_one(city: _City, draw: Random, distance_PT: Int32Array, cheapest: CheapestTours) -> BoolArray:
    """The cells of one cheapest tour, by random cheapest ways between its stops."""
    cells_T = np.zeros(city.shape.num_cells, dtype=np.bool_)
    for start, end in cheapest.one():
        cell, distance_T, costs_T = city.stops[end], distance_PT[start], city.costs_T
        while cell != city.stops[start]:
            cells_T[cell] = True
            row, col = divmod(cell, city.shape.cols)
            places = [(row + down, col + right) for down, right in NEIGHBOURS]
            near = [r * city.shape.cols + c for r, c in places if 0 <= r < city.shape.rows and 0 <= c < city.shape.cols]
            cell = draw.choice([other for other in near if distance_T[other] == distance_T[cell] - costs_T[cell]])
    return cells_T


def _congest(city: _City, draw: Random, others_T: BoolArray, chosen_T: BoolArray) -> bool:
    """Make a stretch that only other tours use dearer by one step; False if none can be."""
    can_rise_T = (city.costs_T > 0) & (city.costs_T < tours.COSTS[-1]) & ~chosen_T
    stretches = [stretch for stretch in city.stretches if (others_T & can_rise_T)[stretch].any()]
    if not stretches:
        return False
    stretch = np.array(draw.choice(stretches))
    city.costs_T[stretch[can_rise_T[stretch]]] *= 2
    return True


def _grids(city: _City, chosen_T: BoolArray) -> tuple[Grid, Grid]:
    question_T = city.costs_T.astype(np.int8)
    answer_T = question_T + np.int8(tours.ON_TOUR) * chosen_T
    for grid_T in (question_T, answer_T):
        grid_T[city.stops] = [tours.DEPOT] + [tours.CUSTOMER] * (len(city.stops) - 1)
    sides = (city.shape.rows, city.shape.cols)
    return question_T.reshape(sides), answer_T.reshape(sides)


# Streets


def _city(shape: GridShape, draw: Random) -> _City:
    """A city without stops whose roads are all connected."""
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
    """The rows or columns that are streets."""
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
    bits = [_bits(shape, stretch) for stretch in stretches]
    roads = sum(bits) + sum(_bits(shape, crossing) for crossing in crossings)
    kept = set(range(len(stretches)))
    for index in draw.sample(range(len(stretches)), round(CLOSED_SHARE * len(stretches))):
        others = roads ^ bits[index]
        if sum(levels_from(shape, others, others & -others)) == others:
            roads = others
            kept.discard(index)
    return [stretches[index] for index in sorted(kept)]


def _bits(shape: GridShape, cells: list[int]) -> int:
    return sum(bit_at(shape, *divmod(cell, shape.cols)) for cell in cells)
