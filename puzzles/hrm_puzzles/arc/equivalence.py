"""A number for each ARC pair that no turn, exchange of the colours 1 to 9 or move on the canvas changes.

For each of the eight turns and each colour, the numbers of the colour's places in question and answer are added up;
sums over colours and turns follow. The reverse is not proven: two pairs may share a number, which errs on the safe
side.
Shapes: B batch, T tokens, C = 10 colours, K cells that hold a colour, of all canvases of a batch together.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.arc.canvas import FIRST_COLOUR, NUM_COLOURS, boxes_of_B, is_colour
from hrm_puzzles.arc.variants import NUM_TURNS
from hrm_puzzles.grid.scatter import UInt64Array, mixed
from hrm_puzzles.puzzle import IntArray

FloatArray = NDArray[np.float64]


def equivalence_hash_B(inputs_BT: IntArray, labels_BT: IntArray, side: int) -> UInt64Array:
    """The same number for all variants of a pair, wherever it stands, uint64 [B]."""
    sums_TBC = _sums_TBC(inputs_BT, side, part=0) + _sums_TBC(labels_BT, side, part=1)
    by_colour_TBC = mixed(sums_TBC.astype(np.uint64))
    by_turn_TB = mixed(by_colour_TBC[..., 0], salt=1) + by_colour_TBC[..., 1:].sum(axis=2)
    return mixed(mixed(by_turn_TB, salt=2).sum(axis=0))


def _sums_TBC(tokens_BT: IntArray, side: int, part: int) -> FloatArray:
    """For each turn, canvas and colour the sum of the numbers of its places; exact, since it stays below 2 ** 53."""
    boxes = boxes_of_B(tokens_BT, side)
    canvas_K, place_K = np.nonzero(is_colour(np.asarray(tokens_BT)))
    row_K, col_K = place_K // side - boxes.top_B[canvas_K], place_K % side - boxes.left_B[canvas_K]
    last_row_K, last_col_K = boxes.height_B[canvas_K] - 1, boxes.width_B[canvas_K] - 1
    bin_K = canvas_K * NUM_COLOURS + np.asarray(tokens_BT)[canvas_K, place_K] - FIRST_COLOUR
    sums: list[FloatArray] = []
    for turn in range(NUM_TURNS):
        up_K = last_row_K - row_K if turn & 1 else row_K
        across_K = last_col_K - col_K if turn & 2 else col_K
        pair = (across_K, up_K) if turn & 4 else (up_K, across_K)
        numbers_K = _places(part)[pair]
        totals = np.bincount(bin_K, weights=numbers_K, minlength=len(tokens_BT) * NUM_COLOURS)
        sums.append(totals.astype(np.float64).reshape(-1, NUM_COLOURS))
    return np.stack(sums)


@cache
def _places(part: int) -> FloatArray:
    """A random number below 2 ** 42 for each place of the questions (part 0) or of the answers (part 1)."""
    numbers = mixed(np.arange(64 * 64, dtype=np.uint64), salt=3 + part) >> np.uint64(22)
    return numbers.astype(np.float64).reshape(64, 64)
