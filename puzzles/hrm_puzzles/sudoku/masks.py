"""The rules of Sudoku as masks over one long integer.

Bit d * T + cell says that digit d + 1 may stand in that cell (T cells). Every rule has one form, "each of these sets of
bits holds exactly one": a digit for each cell; a place for each digit in each row, column and box. The sets of one kind
are the same few offsets from many base bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from hrm_puzzles.grid.integer_bits import bits_of
from hrm_puzzles.sudoku.board import Board


@dataclass(frozen=True, kw_only=True)
class Family:
    """Sets of bits {b + i + j} for each bit b of `base`, each i of 0 and `inner`, each j of 0 and `outer`.

    Exactly one bit of each set belongs to a solution.
    """

    base: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @cached_property
    def spread(self) -> int:
        """`bases * spread` are all bits of the sets that begin at these base bits."""
        return sum(1 << i + j for i in (0, *self.inner) for j in (0, *self.outer))

    def singles(self, candidates: int) -> int | None:
        """The candidates that are the only ones of a set; None where a set has none.

        Counts all sets at once, as far as two: over the inner offsets, and these counts over the outer ones.
        """
        once, twice = candidates, 0
        for offsets in (self.inner, self.outer):
            part_once, part_twice = once, twice
            for offset in offsets:
                more = part_once >> offset
                twice |= once & more | part_twice >> offset
                once |= more
        return candidates & (self.base & ~twice) * self.spread if once & self.base == self.base else None


def families_of(board: Board) -> list[Family]:
    """Digits of a cell; places of a digit in a row, in a column, in a box."""
    side, num_cells, rows, cols = board.side, board.num_cells, board.box_rows, board.box_cols
    starts = range(0, side * num_cells, num_cells)

    def family(bases: Iterable[int], step: int, outer_step: int) -> Family:
        """Sets of `side` bits, counted off as the cells of a box are: `cols` steps, and `rows` outer ones."""
        inner, outer = range(step, cols * step, step), range(outer_step, rows * outer_step, outer_step)
        return Family(base=sum(1 << bit for bit in bases), inner=tuple(inner), outer=tuple(outer))

    def in_planes(cells: Iterable[int]) -> Iterable[int]:
        return (start + cell for cell in cells for start in starts)

    corners = (row * side + col for row in range(0, side, rows) for col in range(0, side, cols))
    return [
        family(range(num_cells), num_cells, cols * num_cells),
        family(in_planes(range(0, num_cells, side)), 1, cols),
        family(in_planes(range(side)), side, cols * side),
        family(in_planes(corners), 1, side),
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
