"""ARC grids on the square canvas of the published data, and a hash that all variants share.

Tokens: 0 pad, 1 end mark, color c is c + 2. The row just below the grid and the column just right
of it are end marks if the canvas has room for them. Their corner is pad. The origin of a grid is
the canvas cell of its first cell.

Example: the grid [[7, 0]] on a canvas of 3 x 3, at the origins (0, 0) and (1, 0).

    9 2 1      0 0 0
    1 1 0      9 2 1
    0 0 0      1 1 0

Shapes: B batch, S side of the canvas, T = S * S, C = 10 colors, K cells with a color.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from hrm_puzzles.grid.board import mixed
from hrm_puzzles.puzzle import (
    BoolArray,
    FloatArray,
    Grid,
    Int32Array,
    IntArray,
    IntpArray,
    UInt64Array,
)

PAD = 0
END = 1
FIRST_COLOR = 2
NUM_COLORS = 10
VOCAB = FIRST_COLOR + NUM_COLORS

# Each turn of `variants` as a sum: 1 reverses rows, 2 reverses columns, 4 transposes after that.
FLIPS_OF_TURN = (0, 6, 3, 5, 2, 1, 4, 7)
REVERSED_ROWS = 1
REVERSED_COLUMNS = 2
TRANSPOSED = 4

# Each place of a canvas has a random number below 2 ** 42. Sums of 64 x 64 of them stay below
# 2 ** 53, so float64 is exact.
LARGEST_CANVAS = 64
UNUSED_BITS = np.uint64(22)


def canvas_T(grid: Grid, side: int, origin: tuple[int, int] = (0, 0)) -> Int32Array:
    """A grid on its canvas, [T]. The grid must fit there."""
    return _canvas_of_T(grid.astype(np.int32) + FIRST_COLOR, side, origin, PAD)


def _canvas_of_T(tokens: IntArray, side: int, origin: tuple[int, int], pad: int) -> Int32Array:
    """The tokens of a grid on its canvas with end marks. `pad` is the value of all other cells."""
    top, left = origin
    bottom = top + tokens.shape[0]
    right = left + tokens.shape[1]
    # One row and one column more than the canvas, for end marks that fall off it.
    canvas = np.full((side + 1, side + 1), pad, dtype=np.int32)
    if tokens.size:
        canvas[top:bottom, right] = END
        canvas[bottom, left:right] = END
        canvas[top:bottom, left:right] = tokens
    return canvas[:side, :side].reshape(-1)


def grid_at(tokens_T: IntArray, side: int, origin: tuple[int, int] = (0, 0)) -> Grid:
    """The largest box of colors that starts at the origin, as published scoring crops it.

    Ties go to the box with fewer rows. The result is 0 x 0 if the origin does not have a color.

    Example: rows with 3, 2 and 2 colors in a line have boxes of 1 x 3, 2 x 2 and 3 x 2 cells.
    Their widths are 3, 2, 2 and their areas 3, 4, 6, so the result has 3 rows of 2.
    """
    top, left = origin
    canvas = np.asarray(tokens_T).reshape(side, side)[top:, left:]
    is_in_line = np.cumprod(is_color(canvas), axis=1, dtype=np.int64)
    num_in_row_S = is_in_line.sum(axis=1)
    width_S = np.minimum.accumulate(num_in_row_S)  # width of the box that ends in this row
    area_S = width_S * np.arange(1, len(width_S) + 1)
    last = int(area_S.argmax())
    if area_S[last] == 0:
        return np.zeros((0, 0), dtype=np.int8)
    box = canvas[: last + 1, : width_S[last]]
    return (box - FIRST_COLOR).astype(np.int8)


class Boxes(NamedTuple):
    """The smallest box around the colors of each canvas, [B] each.

    Without any color it is the whole canvas.
    """

    top_B: IntpArray
    left_B: IntpArray
    height_B: IntpArray
    width_B: IntpArray


def boxes_of_B(tokens_BT: IntArray, side: int) -> Boxes:
    is_color_BT = is_color(np.asarray(tokens_BT))
    is_color_BSS = is_color_BT.reshape(-1, side, side)
    top_B, height_B = _extent(np.any(is_color_BSS, axis=2))
    left_B, width_B = _extent(np.any(is_color_BSS, axis=1))
    return Boxes(top_B, left_B, height_B, width_B)


def _extent(has_color_BS: BoolArray) -> tuple[IntpArray, IntpArray]:
    """The first line with a color, and the number of lines up to the last one.

    Example: lines 0 1 1 0 begin at line 1 and have 4 - 1 - 1 = 2 lines.
    """
    num_lines = has_color_BS.shape[1]
    first_B = has_color_BS.argmax(axis=1)
    num_after_B = has_color_BS[:, ::-1].argmax(axis=1)
    return first_B, num_lines - num_after_B - first_B


def moved_BT(
    tokens_BT: IntArray,
    boxes: Boxes,
    top_B: IntpArray,
    left_B: IntpArray,
    side: int,
) -> Int32Array:
    """Move the grids in `boxes` so that their first cells are at (top, left).

    The rest is pad or, in labels, the value that the loss skips.
    """
    moved_BT = np.empty((len(tokens_BT), side * side), dtype=np.int32)
    for row, tokens_T in enumerate(np.asarray(tokens_BT)):
        bottom = boxes.top_B[row] + boxes.height_B[row]
        right = boxes.left_B[row] + boxes.width_B[row]
        grid = tokens_T.reshape(side, side)[boxes.top_B[row] : bottom, boxes.left_B[row] : right]
        origin = (int(top_B[row]), int(left_B[row]))
        pad = min(int(tokens_T.min()), PAD)
        moved_BT[row] = _canvas_of_T(grid, side, origin, pad)
    return moved_BT


def is_color(tokens: IntArray) -> BoolArray:
    return (tokens >= FIRST_COLOR) & (tokens < VOCAB)


def pair_hash_B(inputs_BT: IntArray, labels_BT: IntArray, side: int) -> UInt64Array:
    """A hash that all variants of a pair share, wherever its grids are, uint64 [B].

    For each of the eight turns and each color, the numbers of the color's places in question and
    answer are added up. Sums over colors and turns follow. The reverse is not proven: two pairs
    may share a hash. This only leaves a puzzle out of a split.

    Example: the grid [[7, 0, 0]], whose places have the numbers a, b and c. Unturned, color 7 has
    the sum a, and color 0 has b + c. Turned left-right, they have c and a + b. A variant that is
    turned left-right has these sums in the other order, so the sum over turns is the same. In a
    variant with color 4 in place of 7, the sums a and c belong to color 4, so the sum over
    colors is the same.
    """
    sums_TBC = np.zeros((len(FLIPS_OF_TURN), len(inputs_BT), NUM_COLORS))
    _add_sums(sums_TBC, inputs_BT, _place_numbers(salt=3), side)
    _add_sums(sums_TBC, labels_BT, _place_numbers(salt=4), side)
    by_color_TBC = mixed(sums_TBC.astype(np.uint64))
    # Color 0 is the background and keeps its role in every variant. The others are exchanged.
    background_TB = mixed(by_color_TBC[..., 0], salt=1)
    by_turn_TB = background_TB + by_color_TBC[..., 1:].sum(axis=2)
    return mixed(mixed(by_turn_TB, salt=2).sum(axis=0))


def _add_sums(
    sums_TBC: FloatArray,
    tokens_BT: IntArray,
    numbers: FloatArray,
    side: int,
) -> None:
    """Add, for each turn, pair and color, the numbers of its places after the turn."""
    tokens_BT = np.asarray(tokens_BT)
    num_bins = len(tokens_BT) * NUM_COLORS
    boxes = boxes_of_B(tokens_BT, side)
    canvas_K, place_K = np.nonzero(is_color(tokens_BT))
    color_K = tokens_BT[canvas_K, place_K] - FIRST_COLOR
    bin_K = canvas_K * NUM_COLORS + color_K
    # Rows and columns count from the first cell of the grid, in both directions.
    row_K = place_K // side - boxes.top_B[canvas_K]
    col_K = place_K % side - boxes.left_B[canvas_K]
    reversed_row_K = boxes.height_B[canvas_K] - 1 - row_K
    reversed_col_K = boxes.width_B[canvas_K] - 1 - col_K
    for turn, flips in enumerate(FLIPS_OF_TURN):
        turned_row_K = row_K
        turned_col_K = col_K
        if flips & REVERSED_ROWS:
            turned_row_K = reversed_row_K
        if flips & REVERSED_COLUMNS:
            turned_col_K = reversed_col_K
        if flips & TRANSPOSED:
            turned_row_K, turned_col_K = turned_col_K, turned_row_K
        weights_K = numbers[turned_row_K, turned_col_K]
        sums = np.bincount(bin_K, weights=weights_K, minlength=num_bins)
        sums_TBC[turn] += sums.reshape(-1, NUM_COLORS)


@cache
def _place_numbers(salt: int) -> FloatArray:
    """A random number for each place of a canvas; questions and answers have other salts."""
    places = np.arange(LARGEST_CANVAS**2, dtype=np.uint64)
    numbers = mixed(places, salt) >> UNUSED_BITS
    return numbers.astype(np.float64).reshape(LARGEST_CANVAS, LARGEST_CANVAS)
