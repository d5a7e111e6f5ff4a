"""The shape of a rectangular board whose positions are its cells in reading order.

Shapes: B batch, R rows, C columns, T = R * C cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import Geometry

ROW, COLUMN = 0, 1
NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


@dataclass(frozen=True, kw_only=True)
class GridShape:
    """A board of `rows` x `cols` cells."""

    rows: int
    cols: int

    @property
    def num_cells(self) -> int:
        return self.rows * self.cols

    @property
    def is_square(self) -> bool:
        return self.rows == self.cols

    @cached_property
    def geometry(self) -> Geometry:
        """Partitions into rows and columns; four heads that start by looking one cell up, down, left and right."""
        row_T, col_T = np.divmod(np.arange(self.num_cells, dtype=np.int32), np.int32(self.cols))
        heads = tuple(((ROW, down), (COLUMN, right)) for down, right in NEIGHBOURS)
        return Geometry(groups_GT=np.stack([row_T, col_T]).astype(np.int32), heads=heads)

    def cell_name(self, cell: int) -> tuple[int, int]:
        """(row, column), counted from 1, of a cell index."""
        return cell // self.cols + 1, cell % self.cols + 1


def num_neighbours_BT(shape: GridShape, is_set_BT: NDArray[np.bool_]) -> NDArray[np.int8]:
    """How many of the four neighbours of each cell are set."""
    padded_BRC = np.pad(is_set_BT.reshape(-1, shape.rows, shape.cols).astype(np.int8), ((0, 0), (1, 1), (1, 1)))
    along_BRC = padded_BRC[:, 1:-1, :-2] + padded_BRC[:, 1:-1, 2:]
    across_BRC = padded_BRC[:, :-2, 1:-1] + padded_BRC[:, 2:, 1:-1]
    return (along_BRC + across_BRC).reshape(is_set_BT.shape)
