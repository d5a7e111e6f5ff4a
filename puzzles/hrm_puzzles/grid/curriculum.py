"""Showing a part of the answer in the question, for training.

Shapes: B batch, T cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import IntArray


def revealed_BT(
    rng: np.random.Generator, inputs_BT: IntArray, labels_BT: IntArray, num_revealed_B: IntArray
) -> NDArray[np.int32]:
    """Questions with that many random cells of each row, among those its label changes, already as in the label."""
    is_open_BT = inputs_BT != labels_BT
    order_BT = np.argsort(np.where(is_open_BT, rng.random(inputs_BT.shape), 2.0), axis=1)  # open cells come first
    rank_BT = np.argsort(order_BT, axis=1)
    is_revealed_BT = is_open_BT & (rank_BT < np.asarray(num_revealed_B)[:, None])
    return np.where(is_revealed_BT, labels_BT, inputs_BT).astype(np.int32)
