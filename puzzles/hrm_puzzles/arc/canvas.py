"""ARC grids on the square canvas of the published data: grid to tokens and back, and grids moved about on it.

Tokens: 0 pad, 1 end mark, colour c at c + 2. End marks are the row just below the grid and the column just right of it,
as far as the canvas reaches; their corner is pad. A grid's origin is the canvas cell of its first cell.
Shapes: B batch, S side of the canvas, T = S * S.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import Grid, IntArray

PAD = 0
END = 1
FIRST_COLOUR = 2
NUM_COLOURS = 10
VOCAB = FIRST_COLOUR + NUM_COLOURS

BoolArray = NDArray[np.bool_]
IntpArray = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True, eq=False)
class Boxes:
    """The smallest box around the colours of each canvas, [B] each; of a whole canvas where there is no colour."""

    top_B: IntpArray
    left_B: IntpArray
    height_B: IntpArray
    width_B: IntpArray

    def at(self, top_B: IntpArray, left_B: IntpArray) -> Boxes:
        return Boxes(top_B=top_B, left_B=left_B, height_B=self.height_B, width_B=self.width_B)

    def rows_BS(self, side: int, *, below: int = 0) -> BoolArray:
        return _within_BS(side, self.top_B, self.height_B + below)

    def cols_BS(self, side: int, *, right: int = 0) -> BoolArray:
        return _within_BS(side, self.left_B, self.width_B + right)


def canvas_T(grid: Grid, side: int, origin: tuple[int, int] = (0, 0)) -> NDArray[np.int32]:
    """A grid on its canvas, [T]; the grid must fit there."""
    (top, left), (height, width) = origin, grid.shape
    canvas = np.full((side + 1, side + 1), PAD, dtype=np.int32)  # one more than the canvas, where marks may fall
    if grid.size:
        canvas[top : top + height, left + width] = END
        canvas[top + height, left : left + width] = END
        canvas[top : top + height, left : left + width] = grid.astype(np.int32) + FIRST_COLOUR
    return canvas[:side, :side].reshape(-1)


def grid_at(tokens_T: IntArray, side: int, origin: tuple[int, int] = (0, 0)) -> Grid:
    """The largest box of colours whose first cell is the origin, as the published scoring crops.

    Of boxes of equal area it is the one with the fewest rows; 0 x 0 where the origin holds no colour.
    """
    tokens = np.asarray(tokens_T).reshape(side, side)[origin[0] :, origin[1] :]
    num_in_row_S = np.cumprod(is_colour(tokens), axis=1, dtype=np.int64).sum(axis=1)
    width_S = np.minimum.accumulate(num_in_row_S)  # of the box that ends in this row
    area_S = width_S * np.arange(1, len(width_S) + 1)
    last = int(area_S.argmax())
    height = last + 1 if area_S[last] else 0
    return (tokens[:height, : width_S[last]] - FIRST_COLOUR).astype(np.int8)


def is_colour(tokens: IntArray) -> BoolArray:
    return (tokens >= FIRST_COLOUR) & (tokens < VOCAB)


def boxes_of_B(tokens_BT: IntArray, side: int) -> Boxes:
    is_colour_BSS = is_colour(np.asarray(tokens_BT)).reshape(-1, side, side)
    top_B, height_B = _extent(np.any(is_colour_BSS, axis=2))
    left_B, width_B = _extent(np.any(is_colour_BSS, axis=1))
    return Boxes(top_B=top_B, left_B=left_B, height_B=height_B, width_B=width_B)


def is_grid_B(tokens_BT: IntArray, side: int) -> BoolArray:
    """Whether each canvas is exactly one grid with its end marks, wherever it stands."""
    boxes = boxes_of_B(tokens_BT, side)
    is_colour_BT = is_colour(np.asarray(tokens_BT))
    expected_BT = np.where(is_colour_BT, tokens_BT, _marks_BT(boxes, side))
    is_full_B = is_colour_BT.sum(axis=1) == boxes.height_B * boxes.width_B
    return is_full_B & (expected_BT == tokens_BT).all(axis=1)


def moved_BT(tokens_BT: IntArray, boxes: Boxes, top_B: IntpArray, left_B: IntpArray, side: int) -> NDArray[np.int32]:
    """The grids that stand in `boxes`, drawn anew with their first cells at (top, left).

    Around them is pad, or what the canvas has in the place of pad (the label that the loss skips).
    """
    line_S = np.arange(side)
    row_BS = np.clip(line_S + (boxes.top_B - top_B)[:, None], 0, side - 1)
    col_BS = np.clip(line_S + (boxes.left_B - left_B)[:, None], 0, side - 1)
    source_BT = (row_BS[:, :, None] * side + col_BS[:, None, :]).reshape(-1, side * side)
    there = boxes.at(top_B, left_B)
    inside_BT = (there.rows_BS(side)[:, :, None] & there.cols_BS(side)[:, None, :]).reshape(-1, side * side)
    pad_B1 = np.minimum(np.asarray(tokens_BT).min(axis=1, keepdims=True), PAD)
    around_BT = np.where(_marks_BT(there, side) == END, END, pad_B1)
    return np.where(inside_BT, np.take_along_axis(tokens_BT, source_BT, axis=1), around_BT).astype(np.int32)


def _marks_BT(boxes: Boxes, side: int) -> NDArray[np.int32]:
    """The end marks of grids that fill the boxes, pad elsewhere, also inside."""
    rows_BS, cols_BS = boxes.rows_BS(side), boxes.cols_BS(side)
    below_BS, right_BS = boxes.rows_BS(side, below=1) & ~rows_BS, boxes.cols_BS(side, right=1) & ~cols_BS
    is_mark_BSS = below_BS[:, :, None] & cols_BS[:, None, :] | rows_BS[:, :, None] & right_BS[:, None, :]
    return np.where(is_mark_BSS, END, PAD).astype(np.int32).reshape(-1, side * side)


def _within_BS(side: int, first_B: IntpArray, count_B: IntpArray) -> BoolArray:
    line_S = np.arange(side)
    return (line_S >= first_B[:, None]) & (line_S < (first_B + count_B)[:, None])


def _extent(has_colour_BS: BoolArray) -> tuple[IntpArray, IntpArray]:
    """First line with a colour, and the number of lines up to the last one."""
    first_B = has_colour_BS.argmax(axis=1)
    return first_B, has_colour_BS.shape[1] - has_colour_BS[:, ::-1].argmax(axis=1) - first_B
