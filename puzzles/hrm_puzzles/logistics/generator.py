"""Fresh cities with exactly one cheapest tour, as far as its roads go, for a stated number of customers.

A cheapest tour is chosen first. Wherever another tour costs the same, a stretch that only the other uses gets
congested, until none is left: the chosen tour costs what it did, and every other at least as much as before.
Shapes: P stops, T cells.
"""

from __future__ import annotations

from random import Random

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.geometry import NEIGHBOURS, GridShape
from hrm_puzzles.logistics.board import (
    COSTS,
    CUSTOMER,
    DEPOT,
    ON_TOUR,
    TOKEN_OF_VALUE,
)
from hrm_puzzles.logistics.city import City, city
from hrm_puzzles.logistics.roads import distances_BPT
from hrm_puzzles.logistics.rules import is_minimal_B
from hrm_puzzles.logistics.tours import CheapestTours
from hrm_puzzles.puzzle import Example, Grid, PuzzleError

BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]

NUM_CUSTOMERS = {"easy": range(1, 3), "medium": range(3, 6), "hard": range(6, 9)}
NUM_CUSTOMERS_SMALL = {"easy": range(1, 2), "medium": range(2, 4), "hard": range(4, 6)}
SMALL = 64  # cities of fewer cells hold fewer customers


def num_customers(shape: GridShape, difficulty: str) -> range:
    wanted = NUM_CUSTOMERS_SMALL if shape.num_cells < SMALL else NUM_CUSTOMERS
    if difficulty not in wanted:
        known = ", ".join(wanted)
        raise PuzzleError(f"there is no difficulty {difficulty[:40]!r}", "unknown-difficulty", f"use one of {known}")
    return wanted[difficulty]


def generate(shape: GridShape, rng: np.random.Generator, difficulty: str) -> Example:
    """A city with stops, the only roads a cheapest tour can take, and its cost."""
    counts = num_customers(shape, difficulty)
    draw = Random(int(rng.integers(2**63)))  # many single draws, for which this is faster
    while True:
        drawn = city(shape, draw)
        roads: list[int] = np.flatnonzero(drawn.costs_T).tolist()
        stops = draw.sample(roads, min(len(roads), 1 + draw.choice(counts)))
        drawn.costs_T[stops] = 1
        chosen = _with_one_tour(shape, draw, drawn, stops)
        if chosen is not None:
            return _example(shape, drawn, stops, *chosen)


def _with_one_tour(shape: GridShape, draw: Random, drawn: City, stops: list[int]) -> tuple[BoolArray, int] | None:
    """The cells of the only cheapest tour, and its cost, once the city is changed so; None where it could not be."""
    chosen_T: BoolArray | None = None
    while True:
        distance_PT = distances_BPT(shape, drawn.costs_T[None], np.array([stops]))[0]
        tours = CheapestTours(distance_PT[:, stops])
        if chosen_T is None:
            chosen_T = _cells_of_one(shape, draw, drawn, stops, distance_PT, tours)
        others_T = _cells_of_all(drawn, stops, distance_PT, tours) & ~chosen_T
        if not others_T.any():
            return (chosen_T, tours.cost) if _is_minimal(shape, drawn, stops, chosen_T, tours.cost) else None
        if not _congest(draw, drawn, others_T, chosen_T):
            return None


def _cells_of_all(drawn: City, stops: list[int], distance_PT: Int32Array, tours: CheapestTours) -> BoolArray:
    """The cells that any cheapest tour enters."""
    starts, ends = (list(part) for part in zip(*tours.legs(), strict=True))
    through_LT = distance_PT[starts] + distance_PT[ends] - drawn.costs_T + 1  # the cell's own cost is in both
    whole_L1 = distance_PT[starts, np.array(stops)[ends]][:, None]
    return ((through_LT == whole_L1) & (drawn.costs_T > 0)).any(axis=0)


def _cells_of_one(
    shape: GridShape, draw: Random, drawn: City, stops: list[int], distance_PT: Int32Array, tours: CheapestTours
) -> BoolArray:
    """The cells of one cheapest tour, by random cheapest ways between its stops."""
    cells_T = np.zeros(shape.num_cells, dtype=np.bool_)
    for start, end in tours.one():
        cell, distance_T, costs_T = stops[end], distance_PT[start], drawn.costs_T
        while cell != stops[start]:
            cells_T[cell] = True
            near = _neighbours(shape, cell)
            cell = draw.choice([other for other in near if distance_T[other] == distance_T[cell] - costs_T[cell]])
    return cells_T


def _neighbours(shape: GridShape, cell: int) -> list[int]:
    row, col = divmod(cell, shape.cols)
    places = [(row + down, col + right) for down, right in NEIGHBOURS]
    return [row * shape.cols + col for row, col in places if 0 <= row < shape.rows and 0 <= col < shape.cols]


def _congest(draw: Random, drawn: City, others_T: BoolArray, chosen_T: BoolArray) -> bool:
    """Make a stretch that only other tours use dearer by one step, if there is one that can be."""
    can_rise_T = (drawn.costs_T > 0) & (drawn.costs_T < COSTS[-1]) & ~chosen_T
    stretches = [stretch for stretch in drawn.stretches if (others_T & can_rise_T)[stretch].any()]
    if not stretches:
        return False
    stretch = np.array(draw.choice(stretches))
    drawn.costs_T[stretch[can_rise_T[stretch]]] *= 2
    return True


def _is_minimal(shape: GridShape, drawn: City, stops: list[int], chosen_T: BoolArray, cost: int) -> bool:
    """Whether no tour of this cost does without any of the chosen roads: so that there is no other answer."""
    answer = _grids(shape, drawn, stops, chosen_T)[1]
    tokens_T = TOKEN_OF_VALUE[answer.reshape(-1)]
    return bool(is_minimal_B(shape, tokens_T[None], np.array([cost]))[0])


def _grids(shape: GridShape, drawn: City, stops: list[int], chosen_T: BoolArray) -> tuple[Grid, Grid]:
    question_T = drawn.costs_T.astype(np.int8)
    answer_T = question_T + np.int8(ON_TOUR) * chosen_T
    for grid_T in (question_T, answer_T):
        grid_T[stops] = [DEPOT] + [CUSTOMER] * (len(stops) - 1)
    return question_T.reshape(shape.rows, shape.cols), answer_T.reshape(shape.rows, shape.cols)


def _example(shape: GridShape, drawn: City, stops: list[int], chosen_T: BoolArray, cost: int) -> Example:
    question, answer = _grids(shape, drawn, stops, chosen_T)
    return Example(question=question, answer=answer, rating=cost)
