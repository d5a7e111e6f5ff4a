"""Cities to drive through: a net of streets around blocks of buildings, some stretches closed, some congested."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.bits import bit_at, levels_from
from hrm_puzzles.grid.geometry import GridShape

BLOCK_SIDES = (1, 2)  # cells of buildings between two streets
CLOSED_SHARE = 0.3  # of the stretches; fewer where the roads would fall apart
CONGESTION = ((1, 0.6), (2, 0.25), (4, 0.15))  # the share of the stretches for each cost


@dataclass(frozen=True, kw_only=True, eq=False)
class City:
    """`costs_T` (0 where no road is), and the stretches: the cells of a street between crossings, and each crossing."""

    costs_T: NDArray[np.int32]
    stretches: list[list[int]]


def city(shape: GridShape, draw: Random) -> City:
    """A city whose roads all hang together."""
    street_rows, street_cols = _streets(draw, shape.rows), _streets(draw, shape.cols)
    crossings = [[row * shape.cols + col] for row in street_rows for col in street_cols]
    along = [[row * shape.cols + col for col in gap] for gap in _gaps(street_cols, shape.cols) for row in street_rows]
    across = [[row * shape.cols + col for row in gap] for gap in _gaps(street_rows, shape.rows) for col in street_cols]
    stretches = _partly_closed(shape, draw, along + across, crossings) + crossings
    costs_T = np.zeros(shape.num_cells, dtype=np.int32)
    costs, weights = zip(*CONGESTION, strict=True)
    for stretch, cost in zip(stretches, draw.choices(costs, weights, k=len(stretches)), strict=True):
        costs_T[stretch] = cost
    return City(costs_T=costs_T, stretches=stretches)


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
    """Some stretches left away, each only if the other roads still hang together."""
    bits = [_bits(shape, stretch) for stretch in stretches]
    roads = sum(bits) + sum(_bits(shape, crossing) for crossing in crossings)
    kept = set(range(len(stretches)))
    for index in draw.sample(range(len(stretches)), round(CLOSED_SHARE * len(stretches))):
        if _hangs_together(shape, roads ^ bits[index]):
            roads ^= bits[index]
            kept.discard(index)
    return [stretches[index] for index in sorted(kept)]


def _bits(shape: GridShape, cells: list[int]) -> int:
    return sum(bit_at(shape, *divmod(cell, shape.cols)) for cell in cells)


def _hangs_together(shape: GridShape, roads: int) -> bool:
    return sum(levels_from(shape, roads, roads & -roads)) == roads
