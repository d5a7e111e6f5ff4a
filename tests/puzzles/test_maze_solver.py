"""Shortest paths through sets of cells."""

import numpy as np

from hrm_puzzles.grid.board import GridShape, bit_at, bits_from, flags_from
from hrm_puzzles.maze.paths import cells_between, num_moves

SHAPE = GridShape(rows=3, cols=4)
ALL = bits_from(SHAPE, np.ones((1, 12), dtype=np.bool_))


def test_what_lies_beyond_an_edge_is_no_neighbour() -> None:
    end_of_first_row, start_of_second = bit_at(SHAPE, 0, 3), bit_at(SHAPE, 1, 0)
    only_these = end_of_first_row | start_of_second
    assert num_moves(SHAPE, only_these, end_of_first_row, start_of_second) is None
    assert cells_between(SHAPE, only_these, end_of_first_row, start_of_second) == []


def test_the_cells_between_two_corners_are_those_of_every_shortest_path() -> None:
    levels = cells_between(SHAPE, ALL, bit_at(SHAPE, 0, 0), bit_at(SHAPE, 2, 3))
    assert [np.flatnonzero(flags_from(SHAPE, level)).tolist() for level in levels] == [
        *([0], [1, 4], [2, 5, 8]),
        *([3, 6, 9], [7, 10], [11]),
    ]
