"""The rules of Sudoku as masks over one long integer.

Bit d * T + cell says that digit d + 1 may stand in that cell (T cells). Every rule has one form, "each of these sets of
bits holds exactly one": a digit for each cell; a place for each digit in each row, column and box. The sets of one kind
are the same few offsets from many base bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hrm_puzzles.bits import bits_of
from hrm_puzzles.sudoku_board import Board


@dataclass(frozen=True, kw_only=True)
class Family:
    """Sets of bits {b + offset} for each bit b of `base`; exactly one bit of each set belongs to a solution."""

    base: int
    offsets: tuple[int, ...]

    @property
    def spread(self) -> int:
        """`bases * spread` are all bits of the sets that begin at these base bits."""
        return sum(1 << offset for offset in self.offsets)


def families_of(board: Board) -> list[Family]:
    """Digits of a cell; places of a digit in a row, in a column, in a box."""
    side, num_cells = board.side, board.num_cells
    starts = range(0, side * num_cells, num_cells)

    def family(cells: Iterable[int], offsets: Sequence[int]) -> Family:
        base = sum(1 << cell for cell in cells)
        return Family(base=sum(base << start for start in starts), offsets=tuple(offsets))

    corners = (row * side + col for row in range(0, side, board.box_rows) for col in range(0, side, board.box_cols))
    in_box = [row * side + col for row in range(board.box_rows) for col in range(board.box_cols)]
    return [
        Family(base=(1 << num_cells) - 1, offsets=tuple(starts)),
        family(range(0, num_cells, side), range(side)),
        family(range(side), range(0, num_cells, side)),
        family(corners, in_box),
    ]


def rivals_of(board: Board, families: list[Family]) -> list[int]:
    """For each bit, the other bits that share a set with it: what must go when it is chosen."""
    rivals = [0] * (board.side * board.num_cells)
    for family in families:
        for base in bits_of(family.base):
            members = family.spread << base
            for bit in bits_of(members):
                rivals[bit] |= members ^ 1 << bit
    return rivals
