"""A number for each board that turning and mirroring do not change, to keep a test set apart from its training set.

Shapes: B batch, T cells, K symmetries.
"""

from __future__ import annotations

import numpy as np

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.grid.scatter import UInt64Array, mixed
from hrm_puzzles.grid.symmetry import dihedral_sources_KT
from hrm_puzzles.puzzle import IntArray


def equivalence_hash_B(shape: GridShape, tokens_BT: IntArray) -> UInt64Array:
    """The same number for all symmetric copies of a row of tokens, uint64 [B]."""
    place_T = mixed(np.arange(1, shape.num_cells + 1, dtype=np.uint64))
    token_BT = tokens_BT.astype(np.uint64)
    images_KB = [mixed(mixed(token_BT[:, source_T] + place_T).sum(axis=1)) for source_T in dihedral_sources_KT(shape)]
    return mixed(np.sum(images_KB, axis=0))
