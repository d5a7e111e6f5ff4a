"""Sets of cells as one long integer, so that a dozen operations move a whole board, or a whole batch of them, one step.

Every board has an empty column to its right and an empty row below: what steps over the edge lands there, and is taken
away with everything else that is not free. Cell (r, c) of board b is bit (b * (R + 1) + r) * (C + 1) + c.
Shapes: B boards, R rows, C columns, T = R * C cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.puzzle import IntArray


def bits_from(shape: GridShape, is_set_BT: NDArray[np.bool_]) -> int:
    """The set cells of all boards."""
    padded_BRC = np.zeros((len(is_set_BT), shape.rows + 1, shape.cols + 1), dtype=np.bool_)
    padded_BRC[:, :-1, :-1] = is_set_BT.reshape(-1, shape.rows, shape.cols)
    return int.from_bytes(np.packbits(padded_BRC, bitorder="little").tobytes(), "little")


def flags_from(shape: GridShape, bits: int) -> NDArray[np.bool_]:
    """The inverse of `bits_from` for one board, bool [T]."""
    return unpadded_BT(shape, padded_flags(shape, bits, 1))[0] == 1


def padded_flags(shape: GridShape, bits: int, num_boards: int) -> NDArray[np.uint8]:
    """The bits of all boards one after the other, empty columns and rows included."""
    num_bits = num_boards * (shape.rows + 1) * (shape.cols + 1)
    packed = np.frombuffer(bits.to_bytes(num_bits // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(packed, bitorder="little", count=num_bits)


def unpadded_BT(shape: GridShape, padded: IntArray) -> IntArray:
    """Values that stand as `padded_flags` does, for the cells alone."""
    padded_BRC = padded.reshape(-1, shape.rows + 1, shape.cols + 1)
    return padded_BRC[:, :-1, :-1].reshape(len(padded_BRC), shape.num_cells)


def bit_at(shape: GridShape, row: int, col: int) -> int:
    """The bit of one cell of the first board."""
    return 1 << row * (shape.cols + 1) + col


def neighbours(shape: GridShape, bits: int) -> int:
    """The cells above, below, left and right of the given ones; those beyond the edge are not yet taken away."""
    stride = shape.cols + 1
    return bits << 1 | bits >> 1 | bits << stride | bits >> stride


def levels_from(shape: GridShape, free: int, start: int, goal: int = 0) -> list[int]:
    """The free cells by their distance from `start`, up to the level that holds `goal` or to the last there is."""
    levels, seen, level = [start], start, start
    while not level & goal:
        level = neighbours(shape, level) & free & ~seen
        if not level:
            break
        seen |= level
        levels.append(level)
    return levels
