"""Cells of a grid, every set of them, and open mazes."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]


def cells_where(is_set: NDArray[np.bool_]) -> list[Cell]:
    rows, cols = np.nonzero(is_set)
    return list(zip(rows.tolist(), cols.tolist(), strict=True))


def subsets(cells: list[Cell]) -> list[frozenset[Cell]]:
    found = []
    for size in range(len(cells) + 1):
        found.extend(map(frozenset, combinations(cells, size)))
    return found


def open_maze(rows: int, cols: int) -> str:
    """Return a maze without walls, from one corner to the other."""
    lines = ["." * cols] * rows
    lines[0] = "S" + lines[0][1:]
    lines[-1] = lines[-1][:-1] + "G"
    return "\n".join(lines)
