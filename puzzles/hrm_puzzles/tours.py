"""Cheapest closed tours of a city, exact (Held and Karp): they generate, rate and check, and never answer for a model.

Tokens: 0 pad, 1 building, 2 to 4 roads of cost 1, 2 and 4, 5 depot, 6 customer, 7 to 9 roads on the tour. So an answer,
and a question that reveals a part of it, still show what every road costs.
Shapes: B cities, P = C + 1 stops (the depot first, then C customers), M = 2 ** C sets of customers, T cells,
K cities with one road closed.
"""

from collections import deque
from functools import cache

import numpy as np

from hrm_puzzles.grid import board as grid_board
from hrm_puzzles.puzzle import IntArray

COSTS = (1, 2, 4)
ROAD_TOKENS = (2, 3, 4)
DEPOT_TOKEN, CUSTOMER_TOKEN = 5, 6
TOUR = 5  # added to the token of a road
VOCAB_SIZE = 10
COST_OF_TOKEN = np.array([0, 0, 1, 2, 4, 1, 1, 1, 2, 4, 0], dtype=np.int32)  # 0: cannot be entered

CLOSED_TOGETHER = 64  # copies of a city with one road closed, which bounds the memory
FAR = 10**6  # the distance where there is no way; sums of a few fit into 32 bits

Leg = tuple[int, int]  # from one stop to another


def distances_BPT(shape: grid_board.GridShape, costs_BT: IntArray, stops_BP: IntArray) -> grid_board.Int32Array:
    """Least cost from each stop to each cell, FAR where there is no way.

    All cities and stops go forward together, one unit of cost at a time: reached at time t are the cells of cost c
    beside those reached at t - c.
    """
    roads = {
        cost: grid_board.bits_from(shape, np.repeat(costs_BT == cost, stops_BP.shape[1], axis=0)) for cost in COSTS
    }
    reached = grid_board.bits_from(shape, np.arange(shape.num_cells) == stops_BP.reshape(-1, 1))
    near = deque([0] * max(COSTS), maxlen=max(COSTS))  # beside what was reached, the latest first
    times_reached = np.zeros(stops_BP.size * (shape.rows + 1) * (shape.cols + 1), dtype=np.int32)
    time, last_change = 0, 0
    while time - last_change < max(COSTS):
        times_reached += grid_board.padded_flags(shape, reached, stops_BP.size)
        near.appendleft(grid_board.neighbours(shape, reached))
        before, time = reached, time + 1
        for cost, cells in roads.items():
            reached |= near[cost - 1] & cells
        last_change = time if reached != before else last_change
    reached_NT = grid_board.unpadded_BT(shape, times_reached)
    distance_NT = np.where(reached_NT > 0, time - reached_NT, FAR).astype(np.int32)
    return distance_NT.reshape(*stops_BP.shape, shape.num_cells)


def optimum_B(shape: grid_board.GridShape, costs_BT: IntArray, tokens_BT: IntArray) -> grid_board.Int32Array:
    """Cost of the cheapest closed tour through the stops in the tokens, FAR where there is none."""
    optimum_B = np.full(len(costs_BT), FAR, dtype=np.int32)
    num_customers_B = (tokens_BT == CUSTOMER_TOKEN).sum(axis=1)
    for count in np.unique(num_customers_B).tolist():
        rows = np.flatnonzero(num_customers_B == count)
        depot_B1 = np.argmax(tokens_BT[rows] == DEPOT_TOKEN, axis=1)[:, None]
        customers_BC = np.nonzero(tokens_BT[rows] == CUSTOMER_TOKEN)[1].reshape(len(rows), -1)
        stops_BP = np.concatenate([depot_B1, customers_BC], axis=1)
        distance_BPT = distances_BPT(shape, costs_BT[rows], stops_BP)
        distance_BPP = np.take_along_axis(distance_BPT, stops_BP[:, None, :], axis=2)
        is_connected_B = (distance_BPP < FAR).all(axis=(1, 2))
        distance_BPP = distance_BPP[is_connected_B]
        costs_BC = _table_BMC(distance_BPP)[:, -1] + distance_BPP[:, 1:, 0]
        optimum_B[rows[is_connected_B]] = costs_BC.min(axis=1)
    return optimum_B


def _table_BMC(distance_BPP: grid_board.Int32Array) -> grid_board.Int32Array:
    """table[mask, c]: the least cost to leave the depot, visit the customers in `mask` and end at its member c."""
    batch, num_customers = len(distance_BPP), distance_BPP.shape[1] - 1
    between_B1CC = distance_BPP[:, None, 1:, 1:].swapaxes(2, 3)  # to each (first) from each (second)
    table = np.full((batch, 1 << num_customers, num_customers), FAR, dtype=np.int32)
    for customer in range(num_customers):
        table[:, 1 << customer, customer] = distance_BPP[:, 0, customer + 1]
    for masks_K, rest_KC in _layers(num_customers):
        table[:, masks_K] = (table[:, rest_KC] + between_B1CC).min(axis=3)
    return table


@cache
def _layers(num_customers: int) -> list[tuple[np.typing.NDArray[np.intp], np.typing.NDArray[np.intp]]]:
    """Sets of 2, 3, ... customers, and each without each of its members; the empty set for those not in it."""
    masks_M = np.arange(1 << num_customers)
    is_member_MC = masks_M[:, None] >> np.arange(num_customers) & 1 == 1
    rest_MC = np.where(is_member_MC, masks_M[:, None] ^ (1 << np.arange(num_customers)), 0)
    sizes_M = is_member_MC.sum(axis=1)
    layers = [np.flatnonzero(sizes_M == size) for size in range(2, num_customers + 1)]
    return [(masks_K, rest_MC[masks_K]) for masks_K in layers]


class CheapestTours:
    """All cheapest tours through the stops of one city, of which a state (customers visited, stop) is a part."""

    def __init__(self, distance_PP: grid_board.Int32Array) -> None:
        self._distance: list[list[int]] = distance_PP.tolist()
        self._table: list[list[int]] = _table_BMC(distance_PP[None])[0].tolist()
        self._end = (len(self._table) - 1, 0)
        self.cost = self._cheapest(*self._end)[0]

    def one(self) -> list[Leg]:
        """The legs of one of them, the last first."""
        legs: list[Leg] = []
        visited, stop = self._end
        while visited:
            visited, before = self._cheapest(visited, stop)[1][0]
            legs.append((before, stop))
            stop = before
        return legs

    def legs(self) -> set[Leg]:
        """The legs that any of them has."""
        legs: set[Leg] = set()
        waiting: list[tuple[int, int]] = [self._end]
        seen = set(waiting)
        while waiting:
            visited, stop = waiting.pop()
            before = self._cheapest(visited, stop)[1]
            legs |= {(other, stop) for _, other in before}
            fresh = {state for state in before if state[0]} - seen
            seen |= fresh
            waiting.extend(fresh)
        return legs

    def _cheapest(self, visited: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
        """The least cost to reach a state, and the states a cheapest tour can come from; (0, 0) is the beginning."""
        rest = visited & ~(1 << stop - 1) if stop else visited
        if not rest:
            return self._distance[0][stop], [(0, 0)]
        members = [bit + 1 for bit in grid_board.bits_of(rest)]
        costs = [self._table[rest][other - 1] + self._distance[other][stop] for other in members]
        least = min(costs)
        return least, [(rest, other) for other, cost in zip(members, costs, strict=True) if cost == least]


def is_minimal_B(shape: grid_board.GridShape, answers_BT: IntArray, best_B: IntArray) -> grid_board.BoolArray:
    """Where closing any one of the marked roads makes every tour on the others dearer than `best_B`."""
    entered_costs_BT = marked_costs_BT(answers_BT)  # a tour without a spare road enters every stop and every mark
    is_minimal_B = entered_costs_BT.sum(axis=1) <= best_B
    heads_BT = _corridor_heads_BT(shape, answers_BT)
    heads_BT[~is_minimal_B] = False
    all_rows_N, all_cells_N = np.nonzero(heads_BT)
    for start in range(0, len(all_rows_N), CLOSED_TOGETHER):
        rows_K = all_rows_N[start : start + CLOSED_TOGETHER]
        cells_K = all_cells_N[start : start + CLOSED_TOGETHER]
        closed_KT = marked_costs_BT(answers_BT[rows_K])
        closed_KT[np.arange(len(rows_K)), cells_K] = 0
        is_spare_K = optimum_B(shape, closed_KT, answers_BT[rows_K]) <= best_B[rows_K]
        is_minimal_B[rows_K[is_spare_K]] = False
    return is_minimal_B


def _corridor_heads_BT(shape: grid_board.GridShape, answers_BT: IntArray) -> grid_board.BoolArray:
    """The marked roads to close in turn: one of a corridor closes it all, so none after another of it, up or left."""
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    has_two_ways_BT = is_marked_BT & (grid_board.num_neighbours_BT(shape, answers_BT >= DEPOT_TOKEN) == 2)
    corridor_BRC = np.pad(has_two_ways_BT.reshape(-1, shape.rows, shape.cols), ((0, 0), (1, 0), (1, 0)))
    goes_on_BT = (corridor_BRC[:, :-1, 1:] | corridor_BRC[:, 1:, :-1]).reshape(is_marked_BT.shape)
    return is_marked_BT & ~(has_two_ways_BT & goes_on_BT)


def marked_costs_BT(answers_BT: IntArray) -> IntArray:
    return np.where(answers_BT >= DEPOT_TOKEN, COST_OF_TOKEN[answers_BT], 0)
