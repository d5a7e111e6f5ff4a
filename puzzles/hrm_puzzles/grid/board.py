"""A rectangular board: its shape, its symmetries, and sets of its cells as bits of one integer.

A long integer holds all cells of a board, or of a whole batch of boards. A dozen operations on it
move every cell by one step. Each board has an empty column on its right and an empty row below. A
step over the edge lands there, and the mask of free cells removes it.
Cell (r, c) of board b is bit (b * (R + 1) + r) * (C + 1) + c.

Example: a board of 1 x 3 cells, so bits 0 to 2 are its cells and bits 3 to 7 are empty.

    free cells               0b111
    the first cell           0b001
    its neighbors           0b1_0010    right, and below the board
    free neighbors          0b010       the second cell
    levels_from the first    [0b001, 0b010, 0b100]

Positions are cells in reading order.
Shapes: B boards, R rows, C columns, T = R * C cells, K symmetries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from hrm_puzzles.puzzle import BoolArray, Int8Array, Int32Array, IntArray, UInt8Array, UInt64Array

NEIGHBORS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right

# Constants of MurmurHash3's 64-bit finalizer.
MURMUR_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
MURMUR_SHIFT = np.uint64(33)
GOLDEN_RATIO = 0x9E3779B97F4A7C15  # 2 ** 64 / phi: multiples of it are well spread


@dataclass(frozen=True, kw_only=True)
class GridShape:
    """A board of `rows` x `cols` cells."""

    rows: int
    cols: int

    @cached_property
    def num_cells(self) -> int:
        return self.rows * self.cols

    def cell_name(self, cell: int) -> tuple[int, int]:
        """The (row, column) of a cell index, counted from 1."""
        return cell // self.cols + 1, cell % self.cols + 1


def num_neighbors_BT(shape: GridShape, is_set_BT: BoolArray) -> Int8Array:
    """The number of set cells among the four neighbors of each cell."""
    is_set_BRC = is_set_BT.reshape(-1, shape.rows, shape.cols)
    margins = ((0, 0), (1, 1), (1, 1))
    padded_BRC = np.pad(is_set_BRC.astype(np.int8), margins)
    rows_BRC = padded_BRC[:, 1:-1]
    cols_BRC = padded_BRC[:, :, 1:-1]
    along_BRC = rows_BRC[:, :, :-2] + rows_BRC[:, :, 2:]
    across_BRC = cols_BRC[:, :-2] + cols_BRC[:, 2:]
    return (along_BRC + across_BRC).reshape(is_set_BT.shape)


def bits_of(number: int) -> Iterator[int]:
    """The positions of the one-bits in rising order."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def bits_from(shape: GridShape, is_set_BT: BoolArray) -> int:
    """The set cells of all boards as one integer."""
    padded_shape = (len(is_set_BT), shape.rows + 1, shape.cols + 1)
    padded_BRC = np.zeros(padded_shape, dtype=np.bool_)
    padded_BRC[:, :-1, :-1] = is_set_BT.reshape(-1, shape.rows, shape.cols)
    packed = np.packbits(padded_BRC, bitorder="little")
    return int.from_bytes(packed.tobytes(), "little")


def flags_from(shape: GridShape, bits: int) -> BoolArray:
    """The inverse of `bits_from` for one board, bool [T]."""
    return unpadded_BT(shape, padded_flags(shape, bits, 1))[0] == 1


def padded_flags(shape: GridShape, bits: int, num_boards: int) -> UInt8Array:
    """One flag per bit of all boards, including the empty columns and rows."""
    num_bits = num_boards * (shape.rows + 1) * (shape.cols + 1)
    data = bits.to_bytes(num_bits // 8 + 1, "little")
    packed = np.frombuffer(data, dtype=np.uint8)
    return np.unpackbits(packed, bitorder="little", count=num_bits)


def unpadded_BT(shape: GridShape, padded: IntArray) -> IntArray:
    """Remove the empty columns and rows from values in the layout of `padded_flags`."""
    padded_BRC = padded.reshape(-1, shape.rows + 1, shape.cols + 1)
    return padded_BRC[:, :-1, :-1].reshape(len(padded_BRC), shape.num_cells)


def neighbors(shape: GridShape, bits: int) -> int:
    """The cells above, below, left and right of the given ones, including cells off the board."""
    stride = shape.cols + 1
    return bits << 1 | bits >> 1 | bits << stride | bits >> stride


def levels_from(shape: GridShape, free: int, start: int, goal: int = 0) -> list[int]:
    """The free cells by their distance from `start`.

    The list ends at the level that holds `goal`, or at the last level with cells.
    """
    levels = [start]
    seen = start
    level = start
    while not level & goal:
        level = neighbors(shape, level) & free & ~seen
        if not level:
            break
        seen |= level
        levels.append(level)
    return levels


def cells_between(shape: GridShape, free: int, start: int, goal: int) -> list[int]:
    """The cells on any shortest path, by their distance from `start`; empty without a path."""
    levels = levels_from(shape, free, start, goal)
    if not levels[-1] & goal:
        return []
    levels[-1] = goal
    for distance in range(len(levels) - 2, -1, -1):
        levels[distance] &= neighbors(shape, levels[distance + 1])
    return levels


@dataclass(frozen=True, kw_only=True)
class GridSymmetry:
    """Position t of the result holds `relabel_V[token at source_T[t]]`."""

    source_T: Int32Array
    relabel_V: Int32Array

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        moved_BT = tokens_BT[..., self.source_T]
        return self.relabel_V[moved_BT]

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        relabel_V = np.argsort(self.relabel_V).astype(np.int32)
        moved_BT = tokens_BT[..., np.argsort(self.source_T)]
        return relabel_V[moved_BT]


@cache
def dihedral_sources_KT(shape: GridShape) -> Int32Array:
    """The source of each position under every symmetry, identity first.

    A square has 8 symmetries, another rectangle has 4.
    """
    cells_T = np.arange(shape.num_cells, dtype=np.int32)
    cells_RC = cells_T.reshape(shape.rows, shape.cols)
    orientations = [cells_RC]
    if shape.rows == shape.cols:
        orientations.append(cells_RC.T)
    sources: list[Int32Array] = []
    for image in orientations:
        for upright in (image, image[::-1]):
            sources.append(upright.reshape(-1))
            sources.append(upright[:, ::-1].reshape(-1))
    return np.stack(sources)


def mixed(values: UInt64Array, salt: int = 0) -> UInt64Array:
    """Apply MurmurHash3's finalizer to each value; every salt gives another hash.

    A sum of mixed values identifies its terms, whatever their order.
    """
    values = values + np.uint64(salt * GOLDEN_RATIO % 2**64)
    for factor in MURMUR_FACTORS:
        values = (values ^ values >> MURMUR_SHIFT) * factor
    return values ^ values >> MURMUR_SHIFT


def dihedral_hash_B(shape: GridShape, tokens_BT: IntArray) -> UInt64Array:
    """A hash that all symmetric copies of a row of tokens share, uint64 [B]."""
    places_T = np.arange(1, shape.num_cells + 1, dtype=np.uint64)
    place_hash_T = mixed(places_T)
    tokens_BT = tokens_BT.astype(np.uint64)
    image_hashes_KB: list[UInt64Array] = []
    for source_T in dihedral_sources_KT(shape):
        cell_hash_BT = mixed(tokens_BT[:, source_T] + place_hash_T)
        image_hashes_KB.append(mixed(cell_hash_BT.sum(axis=1)))
    return mixed(np.sum(image_hashes_KB, axis=0))
