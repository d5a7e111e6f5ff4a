"""Cheapest closed tours of a city, found exactly (Held and Karp).

They generate, rate and check cities and never answer for a model.

Tokens: 0 pad, 1 building, 2 to 4 roads of cost 1, 2 and 4, 5 depot, 6 customer, 7 to 9 roads on the
tour. So an answer, and a question that reveals a part of it, still show the cost of every road.

Example: a city of 1 x 3 cells, depot D, a road of cost 2, customer C (tokens 5, 3, 6).

    costs_BT                        1  2  1
    distances from D                0  2  3    a move costs what the entered cell costs
    distances from C                3  2  0
    optimum                         6          D to C costs 3, and C to D costs 3

Shapes: B cities, P = C + 1 stops (the depot first, then C customers), M = 2 ** C sets of customers,
T cells, K cities with one road closed, N = B * P pairs of a city and a stop.
"""

from collections import deque
from functools import cache

import numpy as np

from hrm_puzzles.grid.board import (
    GridShape,
    bits_from,
    bits_of,
    neighbors,
    num_neighbors_BT,
    padded_flags,
    unpadded_BT,
)
from hrm_puzzles.puzzle import BoolArray, Int32Array, IntArray, IntpArray

COSTS = (1, 2, 4)
ROAD_TOKENS = (2, 3, 4)
DEPOT_TOKEN = 5
CUSTOMER_TOKEN = 6
TOUR = 5  # added to the token of a road on the tour
VOCAB_SIZE = 10
# The cost of entering each token; 0 if it cannot be entered. The last entry is for tokens beyond
# the vocabulary.
COST_OF_TOKEN = np.array([0, 0, 1, 2, 4, 1, 1, 1, 2, 4, 0], dtype=np.int32)

CLOSED_TOGETHER = 64  # cities with one road closed that are searched at once; bounds the memory
FAR = 10**6  # distance if there is no path; sums of a few of them fit into 32 bits

StopPair = tuple[int, int]  # from one stop to the next
State = tuple[int, int]  # the visited customers as bits, and the current stop


def distances_BPT(shape: GridShape, costs_BT: IntArray, stops_BP: IntArray) -> Int32Array:
    """The lowest cost from each stop to each cell; FAR if the cell is out of reach.

    All cities and stops advance together, one unit of cost at a time. A cell of cost c is reached
    at time t if one of its neighbors is reached at time t - c.
    """
    num_cities, num_stops = stops_BP.shape
    num_boards = num_cities * num_stops
    roads: dict[int, int] = {}
    for cost in COSTS:
        is_road_NT = np.repeat(costs_BT == cost, num_stops, axis=0)
        roads[cost] = bits_from(shape, is_road_NT)
    is_stop_NT = np.arange(shape.num_cells) == stops_BP.reshape(-1, 1)
    reached = bits_from(shape, is_stop_NT)
    # Neighbors of the cells reached in the last steps, latest first.
    near = deque([0] * max(COSTS), maxlen=max(COSTS))
    # Each cell counts the steps since it was reached.
    num_bits = num_boards * (shape.rows + 1) * (shape.cols + 1)
    times_reached = np.zeros(num_bits, dtype=np.int32)
    time = 0
    last_change = 0
    while time - last_change < max(COSTS):
        times_reached += padded_flags(shape, reached, num_boards)
        near.appendleft(neighbors(shape, reached))
        before = reached
        time += 1
        for cost, cells in roads.items():
            reached |= near[cost - 1] & cells
        if reached != before:
            last_change = time
    reached_NT = unpadded_BT(shape, times_reached)
    distance_NT = np.where(reached_NT > 0, time - reached_NT, FAR)
    distance_NT = distance_NT.astype(np.int32)
    return distance_NT.reshape(num_cities, num_stops, shape.num_cells)


def distances_PT(shape: GridShape, costs_T: IntArray, stops: list[int]) -> Int32Array:
    """The lowest cost from each stop to each cell of one city."""
    return distances_BPT(shape, costs_T[None], np.array([stops]))[0]


def optimum_B(shape: GridShape, costs_BT: IntArray, tokens_BT: IntArray) -> Int32Array:
    """The cost of the cheapest closed tour through the stops of the tokens; FAR without a tour."""
    optimum_B = np.full(len(costs_BT), FAR, dtype=np.int32)
    is_customer_BT = tokens_BT == CUSTOMER_TOKEN
    num_customers_B = is_customer_BT.sum(axis=1)
    # Cities with the same number of customers are searched together.
    for count in np.unique(num_customers_B).tolist():
        rows = np.flatnonzero(num_customers_B == count)
        depot_B = np.argmax(tokens_BT[rows] == DEPOT_TOKEN, axis=1)
        _, customers = np.nonzero(is_customer_BT[rows])
        customers_BC = customers.reshape(len(rows), -1)
        stops_BP = np.concatenate([depot_B[:, None], customers_BC], axis=1)
        distance_BPT = distances_BPT(shape, costs_BT[rows], stops_BP)
        distance_BPP = np.take_along_axis(distance_BPT, stops_BP[:, None, :], axis=2)
        is_connected_B = (distance_BPP < FAR).all(axis=(1, 2))
        distance_BPP = distance_BPP[is_connected_B]
        way_back_BC = distance_BPP[:, 1:, 0]
        costs_BC = _table_BMC(distance_BPP)[:, -1] + way_back_BC
        optimum_B[rows[is_connected_B]] = costs_BC.min(axis=1)
    return optimum_B


def _table_BMC(distance_BPP: Int32Array) -> Int32Array:
    """The dynamic program of Held and Karp.

    table[mask, c] is the lowest cost to leave the depot, visit the customers in `mask` and end at
    its member c.
    """
    batch = len(distance_BPP)
    num_customers = distance_BPP.shape[1] - 1
    between_BCC = distance_BPP[:, 1:, 1:].swapaxes(1, 2)  # [to, from]
    between_B1CC = between_BCC[:, None]
    table = np.full((batch, 1 << num_customers, num_customers), FAR, dtype=np.int32)
    for customer in range(num_customers):
        table[:, 1 << customer, customer] = distance_BPP[:, 0, customer + 1]
    for masks_K, rest_KC in _layers(num_customers):
        costs_BKCC = table[:, rest_KC] + between_B1CC
        table[:, masks_K] = costs_BKCC.min(axis=3)
    return table


@cache
def _layers(num_customers: int) -> list[tuple[IntpArray, IntpArray]]:
    """The sets of 2, 3, ... customers, and each set without each of its members.

    The second array holds the empty set for customers that are not members.
    """
    masks_M1 = np.arange(1 << num_customers)[:, None]
    customers_C = np.arange(num_customers)
    is_member_MC = (masks_M1 >> customers_C & 1) == 1
    without_MC = masks_M1 ^ (1 << customers_C)
    rest_MC = np.where(is_member_MC, without_MC, 0)
    sizes_M = is_member_MC.sum(axis=1)
    layers: list[tuple[IntpArray, IntpArray]] = []
    for size in range(2, num_customers + 1):
        masks_K = np.flatnonzero(sizes_M == size)
        layers.append((masks_K, rest_MC[masks_K]))
    return layers


class CheapestTours:
    """All cheapest tours through the stops of one city.

    A tour is a walk over states: the customers visited so far, and the current stop. We trace it
    backwards from the last state: all customers visited, back at the depot.
    """

    def __init__(self, distance_PP: Int32Array) -> None:
        self._distance: list[list[int]] = distance_PP.tolist()
        self._table: list[list[int]] = _table_BMC(distance_PP[None])[0].tolist()
        self._end = (len(self._table) - 1, 0)
        self.cost, _ = self._cheapest(*self._end)

    def one(self) -> list[StopPair]:
        """The legs of one tour, last leg first."""
        legs: list[StopPair] = []
        visited, stop = self._end
        while visited:
            _, states_before = self._cheapest(visited, stop)
            visited, before = states_before[0]
            legs.append((before, stop))
            stop = before
        return legs

    def legs(self) -> set[StopPair]:
        """The legs of all tours."""
        legs: set[StopPair] = set()
        waiting: list[State] = [self._end]
        seen: set[State] = {self._end}
        while waiting:
            visited, stop = waiting.pop()
            _, states_before = self._cheapest(visited, stop)
            for state in states_before:
                before_visited, before = state
                legs.add((before, stop))
                if before_visited and state not in seen:
                    seen.add(state)
                    waiting.append(state)
        return legs

    def _cheapest(self, visited: int, stop: int) -> tuple[int, list[State]]:
        """The lowest cost to reach a state, and the states a cheapest tour can come from.

        (0, 0) is the start.
        """
        rest = visited
        if stop:
            rest &= ~(1 << stop - 1)
        if not rest:
            return self._distance[0][stop], [(0, 0)]
        costs: dict[State, int] = {}
        for bit in bits_of(rest):
            before = bit + 1
            costs[rest, before] = self._table[rest][bit] + self._distance[before][stop]
        least = min(costs.values())
        cheapest = [state for state, cost in costs.items() if cost == least]
        return least, cheapest


def is_minimal_B(shape: GridShape, answers_BT: IntArray, best_B: IntArray) -> BoolArray:
    """Whether every marked road is needed for a tour of cost `best_B`."""
    # A tour without a spare road enters every stop and every marked road, and pays for each.
    entered_costs_BT = marked_costs_BT(answers_BT)
    is_minimal_B = entered_costs_BT.sum(axis=1) <= best_B
    heads_BT = _corridor_heads_BT(shape, answers_BT)
    heads_BT[~is_minimal_B] = False
    all_rows_N, all_cells_N = np.nonzero(heads_BT)
    for start in range(0, len(all_rows_N), CLOSED_TOGETHER):
        rows_K = all_rows_N[start : start + CLOSED_TOGETHER]
        cells_K = all_cells_N[start : start + CLOSED_TOGETHER]
        answers_KT = answers_BT[rows_K]
        closed_KT = marked_costs_BT(answers_KT)
        closed_KT[np.arange(len(rows_K)), cells_K] = 0
        optimum_K = optimum_B(shape, closed_KT, answers_KT)
        is_spare_K = optimum_K <= best_B[rows_K]
        is_minimal_B[rows_K[is_spare_K]] = False
    return is_minimal_B


def without_spare_T(shape: GridShape, answer_T: IntArray) -> IntArray:
    """The answer without spare marks: the remaining roads still hold a tour of the same cost."""
    kept_T = answer_T.copy()
    best = optimum_B(shape, marked_costs_BT(kept_T[None]), kept_T[None])[0]
    for cell in np.flatnonzero(answer_T > CUSTOMER_TOKEN).tolist():
        tried_T = kept_T.copy()
        tried_T[cell] -= TOUR
        if optimum_B(shape, marked_costs_BT(tried_T[None]), tried_T[None])[0] == best:
            kept_T = tried_T
    return kept_T


def _corridor_heads_BT(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """The marked roads that are closed one at a time.

    Closing one cell of a corridor closes all of it. So a corridor cell is skipped if the cell above
    it or on its left is also a corridor cell.
    """
    is_marked_BT = answers_BT > CUSTOMER_TOKEN
    is_entered_BT = answers_BT >= DEPOT_TOKEN
    is_corridor_BT = is_marked_BT & (num_neighbors_BT(shape, is_entered_BT) == 2)
    is_corridor_BRC = is_corridor_BT.reshape(-1, shape.rows, shape.cols)
    padded_BRC = np.pad(is_corridor_BRC, ((0, 0), (1, 0), (1, 0)))
    above_BRC = padded_BRC[:, :-1, 1:]
    left_BRC = padded_BRC[:, 1:, :-1]
    goes_on_BT = (above_BRC | left_BRC).reshape(is_marked_BT.shape)
    return is_marked_BT & ~(is_corridor_BT & goes_on_BT)


def marked_costs_BT(answers_BT: IntArray) -> IntArray:
    """The cost of each stop and each marked road; 0 for all other cells."""
    is_entered_BT = answers_BT >= DEPOT_TOKEN
    return np.where(is_entered_BT, COST_OF_TOKEN[answers_BT], 0)
