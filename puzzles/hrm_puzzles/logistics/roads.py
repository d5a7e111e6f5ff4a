"""What it costs to drive from the stops of many cities to all their cells.

A move goes to one of the four neighbours and costs what the entered cell costs.
Shapes: B cities, P stops, T cells.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.bits import bits_from, neighbours, padded_flags, unpadded_BT
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.logistics.board import COSTS
from hrm_puzzles.puzzle import IntArray

Int32Array = NDArray[np.int32]

FAR = 10**6  # where no way leads; sums of a few stay numbers of 32 bits


def distances_BPT(shape: GridShape, costs_BT: IntArray, stops_BP: IntArray) -> Int32Array:
    """Least cost from each stop to each cell, FAR where there is no way.

    All cities and stops go forward together, one unit of cost at a time: reached at time t are the cells of cost c
    beside those reached at t - c.
    """
    roads = {cost: bits_from(shape, np.repeat(costs_BT == cost, stops_BP.shape[1], axis=0)) for cost in COSTS}
    reached = bits_from(shape, np.arange(shape.num_cells) == stops_BP.reshape(-1, 1))
    near = deque([0] * max(COSTS), maxlen=max(COSTS))  # beside what was reached, the latest first
    times_reached = np.zeros(stops_BP.size * (shape.rows + 1) * (shape.cols + 1), dtype=np.int32)
    time, last_change = 0, 0
    while time - last_change < max(COSTS):
        times_reached += padded_flags(shape, reached, stops_BP.size)
        near.appendleft(neighbours(shape, reached))
        before, time = reached, time + 1
        for cost, cells in roads.items():
            reached |= near[cost - 1] & cells
        last_change = time if reached != before else last_change
    reached_NT = unpadded_BT(shape, times_reached)
    distance_NT = np.where(reached_NT > 0, time - reached_NT, FAR).astype(np.int32)
    return distance_NT.reshape(*stops_BP.shape, shape.num_cells)
