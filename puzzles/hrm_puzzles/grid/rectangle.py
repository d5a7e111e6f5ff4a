"""What mazes and cities share: a rectangle of cells, one puzzle id, a proof, the symmetries of a rectangle.

Shapes: B batch, T cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid import curriculum as grid_curriculum
from hrm_puzzles.grid import symmetry as grid_symmetry
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.symmetry import GridSymmetry
from hrm_puzzles.puzzle import Geometry, IntArray


@dataclass(frozen=True, kw_only=True)
class GridPuzzle:
    """Boards of `rows` x `cols` cells; `puzzle.Puzzle` says what each method promises."""

    name: str
    rows: int
    cols: int

    num_puzzle_ids = 1
    proof_exists = True

    @cached_property
    def shape(self) -> GridShape:
        return GridShape(rows=self.rows, cols=self.cols)

    @property
    def seq_len(self) -> int:
        return self.shape.num_cells

    @property
    def geometry(self) -> Geometry:
        return self.shape.geometry

    def symmetry(self, rng: np.random.Generator) -> GridSymmetry:
        return grid_symmetry.random_symmetry(self.shape, rng)

    def augment_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        return grid_symmetry.augmented_BT(self.shape, rng, inputs_BT, labels_BT)

    def reveal_BT(
        self, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray, num_revealed_B: IntArray
    ) -> NDArray[np.int32]:
        return grid_curriculum.revealed_BT(rng, inputs_BT, labels_BT, num_revealed_B)
