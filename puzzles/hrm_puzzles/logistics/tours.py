"""Cheapest closed tours, exactly (Held and Karp): they generate, rate and check, and never answer for the model.

table[mask, c] is the least cost to leave the depot, visit the customers in `mask` and end at its member c.
Shapes: B cities, P = C + 1 stops (the depot first, then C customers), M = 2 ** C sets of customers, T cells.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.integer_bits import bits_of
from hrm_puzzles.logistics.board import CUSTOMER_TOKEN, DEPOT_TOKEN
from hrm_puzzles.logistics.roads import FAR, Int32Array, distances_BPT
from hrm_puzzles.puzzle import IntArray

Leg = tuple[int, int]  # from one stop to another


def optimum_B(shape: GridShape, costs_BT: IntArray, tokens_BT: IntArray) -> Int32Array:
    """Cost of the cheapest closed tour through the stops that stand in the tokens, FAR where there is none."""
    optimum_B = np.full(len(costs_BT), FAR, dtype=np.int32)
    num_customers_B = (tokens_BT == CUSTOMER_TOKEN).sum(axis=1)
    for count in np.unique(num_customers_B).tolist():
        rows = np.flatnonzero(num_customers_B == count)
        stops_BP = stops_of_BP(tokens_BT[rows])
        distance_BPT = distances_BPT(shape, costs_BT[rows], stops_BP)
        distance_BPP = np.take_along_axis(distance_BPT, stops_BP[:, None, :], axis=2)
        hangs_together_B = (distance_BPP < FAR).all(axis=(1, 2))
        optimum_B[rows[hangs_together_B]] = cheapest_B(distance_BPP[hangs_together_B])
    return optimum_B


def stops_of_BP(tokens_BT: IntArray) -> NDArray[np.intp]:
    """Cells of the depot and the customers of cities with equally many."""
    depot_B1 = np.argmax(tokens_BT == DEPOT_TOKEN, axis=1)[:, None]
    customers_BC = np.nonzero(tokens_BT == CUSTOMER_TOKEN)[1].reshape(len(tokens_BT), -1)
    return np.concatenate([depot_B1, customers_BC], axis=1)


def cheapest_B(distance_BPP: Int32Array) -> Int32Array:
    """Cost of the cheapest closed tour through all stops, given the least costs between them."""
    return (table_BMC(distance_BPP)[:, -1] + distance_BPP[:, 1:, 0]).min(axis=1)


def table_BMC(distance_BPP: Int32Array) -> Int32Array:
    batch, num_customers = len(distance_BPP), distance_BPP.shape[1] - 1
    between_B1CC = distance_BPP[:, None, 1:, 1:].swapaxes(2, 3)  # to each (first) from each (second)
    table = np.full((batch, 1 << num_customers, num_customers), FAR, dtype=np.int32)
    for customer in range(num_customers):
        table[:, 1 << customer, customer] = distance_BPP[:, 0, customer + 1]
    for masks_K, rest_KC in _layers(num_customers):
        table[:, masks_K] = (table[:, rest_KC] + between_B1CC).min(axis=3)
    return table


@cache
def _layers(num_customers: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Sets of 2, 3, ... customers, and each without each of its members; in place of a stranger the empty set."""
    masks_M = np.arange(1 << num_customers)
    is_member_MC = masks_M[:, None] >> np.arange(num_customers) & 1 == 1
    rest_MC = np.where(is_member_MC, masks_M[:, None] ^ (1 << np.arange(num_customers)), 0)
    sizes_M = is_member_MC.sum(axis=1)
    layers = [np.flatnonzero(sizes_M == size) for size in range(2, num_customers + 1)]
    return [(masks_K, rest_MC[masks_K]) for masks_K in layers]


class CheapestTours:
    """All cheapest tours through the stops of one city, of which a state (customers visited, stop) is a part."""

    def __init__(self, distance_PP: Int32Array) -> None:
        self._distance: list[list[int]] = distance_PP.tolist()
        self._table: list[list[int]] = table_BMC(distance_PP[None])[0].tolist()
        self._end = (len(self._table) - 1, 0)
        self.cost = self._cheapest(*self._end)[0]

    def one(self) -> list[Leg]:
        """The legs of one of them, the last first."""
        legs: list[Leg] = []
        visited, stop = self._end
        while visited:
            visited, before = self._before(visited, stop)[0]
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
            before = self._before(visited, stop)
            legs |= {(other, stop) for _, other in before}
            fresh = {state for state in before if state[0]} - seen
            seen |= fresh
            waiting.extend(fresh)
        return legs

    def _before(self, visited: int, stop: int) -> list[tuple[int, int]]:
        """The states that a cheapest tour can come from; the depot with nobody visited is where it begins."""
        return self._cheapest(visited, stop)[1]

    def _cheapest(self, visited: int, stop: int) -> tuple[int, list[tuple[int, int]]]:
        rest = visited & ~(1 << stop - 1) if stop else visited
        if not rest:
            return self._distance[0][stop], [(0, 0)]
        members = [bit + 1 for bit in bits_of(rest)]
        costs = [self._table[rest][other - 1] + self._distance[other][stop] for other in members]
        least = min(costs)
        return least, [(rest, other) for other, cost in zip(members, costs, strict=True) if cost == least]
