"""Whether a city makes sense, and whether an answer marks a cheapest tour and nothing else.

Shapes: B batch, K cities with one road closed, T cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.geometry import GridShape, num_neighbours_BT
from hrm_puzzles.logistics.board import (
    COST_OF_TOKEN,
    CUSTOMER_TOKEN,
    DEPOT_TOKEN,
    MAX_CUSTOMERS,
    ROAD_TOKENS,
    TOUR,
    VOCAB_SIZE,
)
from hrm_puzzles.logistics.roads import FAR, distances_BPT
from hrm_puzzles.logistics.tours import optimum_B
from hrm_puzzles.puzzle import IntArray, PuzzleError

BoolArray = NDArray[np.bool_]

BLOCK = 64  # answers looked at together, which bounds the memory


def check_question(shape: GridShape, tokens_T: IntArray) -> None:
    """Refuse a city without one depot and 1 to 8 customers, or with a customer that no way leads to.

    A city with a whole cheapest tour marked passes, so that an answer can be read back.
    """
    depots, customers = (np.flatnonzero(tokens_T == token).tolist() for token in (DEPOT_TOKEN, CUSTOMER_TOKEN))
    _check_counts(shape, depots, customers)
    distance_T = distances_BPT(shape, COST_OF_TOKEN[tokens_T][None], np.array([depots]))[0, 0]
    for cell in customers:
        if distance_T[cell] == FAR:
            name = shape.cell_name(cell)
            problem = f"no way leads from the depot to the customer at row {name[0]}, column {name[1]}"
            raise PuzzleError(problem, "unreachable-customer", "connect it by a road or leave it out", name)
    is_marked_T = tokens_T > CUSTOMER_TOKEN
    bare_T = np.where(is_marked_T, tokens_T - TOUR, tokens_T)
    if is_marked_T.any() and not is_cheapest_tour_B(shape, bare_T[None], tokens_T[None])[0]:
        raise PuzzleError("the marked roads are no cheapest tour", "wrong-marks", "send the city without marks")


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


def is_cheapest_tour_B(shape: GridShape, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
    """Where the answer keeps the city, a tour on the marked roads costs as little as any, and none can be unmarked."""
    is_right_B = np.zeros(len(inputs_BT), dtype=np.bool_)
    plausible = np.flatnonzero(_is_plausible_B(shape, inputs_BT, answers_BT))
    for start in range(0, len(plausible), BLOCK):
        rows = plausible[start : start + BLOCK]
        is_right_B[rows] = _is_optimal_B(shape, answers_BT[rows])
    return is_right_B


def _is_plausible_B(shape: GridShape, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
    """Where the answer only marks roads, one depot and 1 to 8 customers are there, and no mark is a dead end."""
    is_stop_BT = (inputs_BT == DEPOT_TOKEN) | (inputs_BT == CUSTOMER_TOKEN)
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    is_newly_marked_BT = np.isin(inputs_BT, ROAD_TOKENS) & (answers_BT == inputs_BT + TOUR)
    keeps_B = ((answers_BT == inputs_BT) | is_newly_marked_BT).all(axis=1) & (answers_BT < VOCAB_SIZE).all(axis=1)
    num_stops_B = is_stop_BT.sum(axis=1)
    has_stops_B = ((inputs_BT == DEPOT_TOKEN).sum(axis=1) == 1) & (num_stops_B > 1) & (num_stops_B <= MAX_CUSTOMERS + 1)
    num_ways_BT = num_neighbours_BT(shape, is_stop_BT | is_marked_BT)
    return keeps_B & has_stops_B & (num_ways_BT >= is_stop_BT + 2 * is_marked_BT).all(axis=1)


def _is_optimal_B(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """Both halves of the proof for answers that are plausible."""
    costs_2BT = np.concatenate([COST_OF_TOKEN[answers_BT], _marked_costs_BT(answers_BT)])
    optima_2B = optimum_B(shape, costs_2BT, np.concatenate([answers_BT, answers_BT]))
    best_B, marked_B = np.split(optima_2B, 2)
    is_right_B = (marked_B == best_B) & (best_B < FAR)
    rows = np.flatnonzero(is_right_B)
    is_right_B[rows] = is_minimal_B(shape, answers_BT[rows], best_B[rows])
    return is_right_B


def is_minimal_B(shape: GridShape, answers_BT: IntArray, best_B: IntArray) -> BoolArray:
    """Where closing any one of the marked roads makes every tour on the others dearer than `best_B`."""
    rows_K, cells_K = np.nonzero(_corridor_heads_BT(shape, answers_BT))
    closed_KT = _marked_costs_BT(answers_BT)[rows_K]
    closed_KT[np.arange(len(rows_K)), cells_K] = 0
    is_spare_K = optimum_B(shape, closed_KT, answers_BT[rows_K]) <= best_B[rows_K]
    is_minimal_B = np.ones(len(answers_BT), dtype=np.bool_)
    is_minimal_B[rows_K[is_spare_K]] = False
    return is_minimal_B


def _corridor_heads_BT(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """Marked roads of which every other is an equal: closing any cell of a corridor closes all of it.

    Left out are cells with two ways whose upper or left neighbour has two ways as well.
    """
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    has_two_ways_BT = is_marked_BT & (num_neighbours_BT(shape, answers_BT >= DEPOT_TOKEN) == 2)
    corridor_BRC = np.pad(has_two_ways_BT.reshape(-1, shape.rows, shape.cols), ((0, 0), (1, 0), (1, 0)))
    goes_on_BT = (corridor_BRC[:, :-1, 1:] | corridor_BRC[:, 1:, :-1]).reshape(is_marked_BT.shape)
    return is_marked_BT & ~(has_two_ways_BT & goes_on_BT)


def _marked_costs_BT(answers_BT: IntArray) -> IntArray:
    return np.where(answers_BT >= DEPOT_TOKEN, COST_OF_TOKEN[answers_BT], 0)
