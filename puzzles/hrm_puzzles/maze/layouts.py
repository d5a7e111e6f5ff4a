"""Walls to lose one's way in: spanning trees, the same with a few walls opened, and walls thrown at random.

A layout is the set of open cells as bits of one integer, see `grid_bits`. Trees are drawn on every second row and
column; a side of even length keeps one line of wall, on a random side.
"""

from __future__ import annotations

from random import Random

from hrm_puzzles.grid.bits import bit_at
from hrm_puzzles.grid.geometry import GridShape

WALL_SHARES = (0.3, 0.5)  # the range of the published mazes' generation (Searchformer)
OPENINGS = (3, 12)  # walls that a braided maze of 30x30 opens; smaller ones fewer by their area


def spanning_tree(shape: GridShape, draw: Random) -> int:
    """One way between any two open cells. Branches grow from the newest place or from any, as often as is drawn."""
    steps = (2, -2, 2 * (shape.cols + 1), -2 * (shape.cols + 1))
    fresh = set(_lattice(shape, draw))
    newest_share = draw.choice((0.0, 0.5, 0.9, 1.0))
    growing = [draw.choice(sorted(fresh))]
    fresh.discard(growing[0])
    open_cells = 1 << growing[0]
    while growing:
        index = -1 if draw.random() < newest_share else draw.randrange(len(growing))
        place = growing[index]
        ways = [step for step in steps if place + step in fresh]
        if not ways:
            growing[index] = growing[-1]
            growing.pop()
            continue
        step = draw.choice(ways)
        open_cells |= 1 << place + step | 1 << place + step // 2
        growing.append(place + step)
        fresh.discard(place + step)
    return open_cells


def braided(shape: GridShape, draw: Random) -> int:
    """A spanning tree with some of the walls between its places opened, which makes rings."""
    open_cells = spanning_tree(shape, draw)
    stride = shape.cols + 1
    across = open_cells << 1 & open_cells >> 1  # closed cells between two open ones, side by side or above each other
    along = open_cells << stride & open_cells >> stride
    walls = [1 << bit for bit in _cells(shape) if (across ^ along) >> bit & 1 and not open_cells >> bit & 1]
    share = shape.num_cells / 900
    for wall in draw.sample(walls, min(len(walls), max(1, round(share * draw.randint(*OPENINGS))))):
        open_cells |= wall
    return open_cells


def random_walls(shape: GridShape, draw: Random) -> int:
    cells = _cells(shape)
    num_open = shape.num_cells - round(shape.num_cells * draw.uniform(*WALL_SHARES))
    return sum(1 << bit for bit in draw.sample(cells, num_open))


LAYOUTS = (spanning_tree, braided, random_walls)


def _cells(shape: GridShape) -> list[int]:
    return [row * (shape.cols + 1) + col for row in range(shape.rows) for col in range(shape.cols)]


def _lattice(shape: GridShape, draw: Random) -> list[int]:
    """The places of a tree: every second cell, from the first or, where that fits as well, the second line on."""
    first_row, first_col = (draw.randrange(2) if length % 2 == 0 else 0 for length in (shape.rows, shape.cols))
    rows, cols = range(first_row, shape.rows, 2), range(first_col, shape.cols, 2)
    return [bit_at(shape, row, col).bit_length() - 1 for row in rows for col in cols]
