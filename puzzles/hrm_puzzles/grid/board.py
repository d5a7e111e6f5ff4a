"""A rectangular board: its shape, its symmetries, and sets of its cells as bits of one long integer.

A dozen operations on such an integer move all cells of a board, or of a whole batch of boards, one step. Every board
has an empty column to its right and an empty row below: a step over the edge lands there and is removed together with
everything else that is not free. Cell (r, c) of board b is bit (b * (R + 1) + r) * (C + 1) + c.
Positions are cells in reading order. Shapes: B boards, R rows, C columns, T = R * C cells, K symmetries.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import IntArray

BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
UInt64Array = NDArray[np.uint64]

NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1))  # up, down, left, right


@dataclass(frozen=True, kw_only=True)
class GridShape:
    """A board of `rows` x `cols` cells."""

    rows: int
    cols: int

    @property
    def num_cells(self) -> int:
        return self.rows * self.cols

    def cell_name(self, cell: int) -> tuple[int, int]:
        """(row, column), counted from 1, of a cell index."""
        return cell // self.cols + 1, cell % self.cols + 1


def num_neighbours_BT(shape: GridShape, is_set_BT: BoolArray) -> NDArray[np.int8]:
    """How many of the four neighbours of each cell are set."""
    padded_BRC = np.pad(is_set_BT.reshape(-1, shape.rows, shape.cols).astype(np.int8), ((0, 0), (1, 1), (1, 1)))
    along_BRC = padded_BRC[:, 1:-1, :-2] + padded_BRC[:, 1:-1, 2:]
    across_BRC = padded_BRC[:, :-2, 1:-1] + padded_BRC[:, 2:, 1:-1]
    return (along_BRC + across_BRC).reshape(is_set_BT.shape)


def bits_of(number: int) -> Iterator[int]:
    """The positions of the one-bits, rising."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


def bits_from(shape: GridShape, is_set_BT: BoolArray) -> int:
    """The set cells of all boards."""
    padded_BRC = np.zeros((len(is_set_BT), shape.rows + 1, shape.cols + 1), dtype=np.bool_)
    padded_BRC[:, :-1, :-1] = is_set_BT.reshape(-1, shape.rows, shape.cols)
    return int.from_bytes(np.packbits(padded_BRC, bitorder="little").tobytes(), "little")


def flags_from(shape: GridShape, bits: int) -> BoolArray:
    """The inverse of `bits_from` for one board, bool [T]."""
    return unpadded_BT(shape, padded_flags(shape, bits, 1))[0] == 1


def padded_flags(shape: GridShape, bits: int, num_boards: int) -> NDArray[np.uint8]:
    """The bits of all boards one after the other, empty columns and rows included."""
    num_bits = num_boards * (shape.rows + 1) * (shape.cols + 1)
    packed = np.frombuffer(bits.to_bytes(num_bits // 8 + 1, "little"), dtype=np.uint8)
    return np.unpackbits(packed, bitorder="little", count=num_bits)


def unpadded_BT(shape: GridShape, padded: IntArray) -> IntArray:
    """Values in the layout of `padded_flags`, without the empty columns and rows."""
    padded_BRC = padded.reshape(-1, shape.rows + 1, shape.cols + 1)
    return padded_BRC[:, :-1, :-1].reshape(len(padded_BRC), shape.num_cells)


def bit_at(shape: GridShape, row: int, col: int) -> int:
    """The bit of one cell of the first board."""
    return 1 << row * (shape.cols + 1) + col


def neighbours(shape: GridShape, bits: int) -> int:
    """The cells above, below, left and right of the given ones, including those beyond the edge."""
    stride = shape.cols + 1
    return bits << 1 | bits >> 1 | bits << stride | bits >> stride


def levels_from(shape: GridShape, free: int, start: int, goal: int = 0) -> list[int]:
    """The free cells by their distance from `start`, up to the level that holds `goal` or to the last one."""
    levels, seen, level = [start], start, start
    while not level & goal:
        level = neighbours(shape, level) & free & ~seen
        if not level:
            break
        seen |= level
        levels.append(level)
    return levels


@dataclass(frozen=True, kw_only=True)
class GridSymmetry:
    """Position t of the result holds `relabel_V[token at source_T[t]]`."""

    source_T: Int32Array
    relabel_V: Int32Array

    def apply(self, tokens_BT: IntArray) -> Int32Array:
        return self.relabel_V[tokens_BT[..., self.source_T]]

    def invert(self, tokens_BT: IntArray) -> Int32Array:
        return np.argsort(self.relabel_V).astype(np.int32)[tokens_BT[..., np.argsort(self.source_T)]]


@cache
def dihedral_sources_KT(shape: GridShape) -> Int32Array:
    """The source of every position under each of the 8 symmetries of a square or 4 of a rectangle; identity first."""
    cells_RC = np.arange(shape.num_cells, dtype=np.int32).reshape(shape.rows, shape.cols)
    orientations = [cells_RC, cells_RC.T] if shape.rows == shape.cols else [cells_RC]
    images = [flipped for image in orientations for half in (image, image[::-1]) for flipped in (half, half[:, ::-1])]
    return np.stack([image.reshape(-1) for image in images])


def mixed(values: UInt64Array, salt: int = 0) -> UInt64Array:
    """MurmurHash3's finaliser over each value, so that sums of mixed values tell terms apart; each salt is another."""
    values = values + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ values >> np.uint64(33)) * np.uint64(factor)
    return values ^ values >> np.uint64(33)


def dihedral_hash_B(shape: GridShape, tokens_BT: IntArray) -> UInt64Array:
    """The same number for all symmetric copies of a row of tokens, uint64 [B]."""
    place_T = mixed(np.arange(1, shape.num_cells + 1, dtype=np.uint64))
    token_BT = tokens_BT.astype(np.uint64)
    images_KB = [mixed(mixed(token_BT[:, source_T] + place_T).sum(axis=1)) for source_T in dihedral_sources_KT(shape)]
    return mixed(np.sum(images_KB, axis=0))
