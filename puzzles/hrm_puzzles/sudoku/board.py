"""The geometry of a Sudoku board: any side, any box shape, one code path for 4x4, 6x6 and 9x9.

Shapes: S side, T = S * S cells in reading order, U = 3 * S units (rows, columns, boxes).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Board:
    """A board of `side` digits whose boxes have `box_rows` x `box_cols` = `side` cells."""

    box_rows: int
    box_cols: int

    @property
    def side(self) -> int:
        return self.box_rows * self.box_cols

    @property
    def num_cells(self) -> int:
        return self.side**2

    @property
    def is_transposable(self) -> bool:
        """Whether turning rows into columns keeps the boxes; not so on 6x6, where they are wider than high."""
        return self.box_rows == self.box_cols

    @cached_property
    def groups_GT(self) -> NDArray[np.int32]:
        """Row, column and box index of each cell, [3, T]."""
        row_T, col_T = np.divmod(np.arange(self.num_cells, dtype=np.int32), np.int32(self.side))
        boxes_per_band = self.side // self.box_cols
        box_T = row_T // self.box_rows * boxes_per_band + col_T // self.box_cols
        return np.stack([row_T, col_T, box_T]).astype(np.int32)

    @cached_property
    def units_US(self) -> NDArray[np.intp]:
        """The cells of each row, column and box, [3 * S, S], in reading order within a unit."""
        order_GT = np.argsort(self.groups_GT, axis=1, kind="stable")
        return order_GT.reshape(3 * self.side, self.side)

    @cached_property
    def units(self) -> list[list[int]]:
        """The same as lists, for walks cell by cell."""
        return self.units_US.tolist()

    def cell_name(self, cell: int) -> tuple[int, int]:
        """(row, column), counted from 1, of a cell index."""
        return cell // self.side + 1, cell % self.side + 1
