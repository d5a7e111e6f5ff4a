"""Turning and mirroring a board: the 8 dihedral symmetries of a square, the 4 of another rectangle.

Shapes: B batch, R rows, C columns, T = R * C cells, K symmetries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.puzzle import IntArray

Int32Array = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class GridSymmetry:
    """Position t of the result holds the token at `source_T[t]`."""

    source_T: Int32Array

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        return tokens_BT[..., self.source_T].astype(np.int32)

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        """The exact inverse: it undoes `apply` on puzzles, labels and answers alike."""
        return tokens_BT[..., np.argsort(self.source_T)].astype(np.int32)


@cache
def dihedral_sources_KT(shape: GridShape) -> Int32Array:
    """The source of every position under each symmetry that keeps the shape, the identity first."""
    cells_RC = np.arange(shape.num_cells, dtype=np.int32).reshape(shape.rows, shape.cols)
    orientations = [cells_RC, cells_RC.T] if shape.is_square else [cells_RC]
    images = [flipped for image in orientations for half in (image, image[::-1]) for flipped in (half, half[:, ::-1])]
    return np.stack([image.reshape(-1) for image in images])


def random_symmetry(shape: GridShape, rng: np.random.Generator) -> GridSymmetry:
    sources_KT = dihedral_sources_KT(shape)
    return GridSymmetry(source_T=sources_KT[rng.integers(len(sources_KT))])


def augmented_BT(
    shape: GridShape, rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray
) -> tuple[Int32Array, Int32Array]:
    """Questions and labels under a fresh random symmetry for each row."""
    sources_KT = dihedral_sources_KT(shape)
    source_BT = sources_KT[rng.integers(len(sources_KT), size=len(inputs_BT))]
    turned = (np.take_along_axis(tokens_BT, source_BT, axis=1) for tokens_BT in (inputs_BT, labels_BT))
    return next(turned).astype(np.int32), next(turned).astype(np.int32)
