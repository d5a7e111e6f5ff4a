"""The exact solver breaks ties as our maze data do, and counts what it breaks."""

import numpy as np
import pytest

from hrm_puzzles.grid.bits import bit_at, bits_from, flags_from
from hrm_puzzles.grid.geometry import GridShape
from hrm_puzzles.maze.solver import num_moves, num_shortest_paths, shortest_path

SHAPE = GridShape(rows=3, cols=4)
ALL = bits_from(SHAPE, np.ones((1, 12), dtype=np.bool_))


def cells_of(path: list[int]) -> list[int]:
    return [int(np.flatnonzero(flags_from(SHAPE, bit))[0]) for bit in path]


def test_path_goes_up_else_down_else_left_else_right() -> None:
    corner, opposite = bit_at(SHAPE, 0, 0), bit_at(SHAPE, 2, 3)
    assert cells_of(shortest_path(SHAPE, ALL, corner, opposite)) == [0, 4, 8, 9, 10, 11]
    assert cells_of(shortest_path(SHAPE, ALL, opposite, corner)) == [11, 7, 3, 2, 1, 0]


@pytest.mark.parametrize(("goal", "count"), [((0, 3), 1), ((1, 1), 2), ((2, 3), 10), ((0, 0), 1)])
def test_shortest_paths_of_an_empty_board_are_counted_by_pascal(goal: tuple[int, int], count: int) -> None:
    assert num_shortest_paths(SHAPE, ALL, bit_at(SHAPE, 0, 0), bit_at(SHAPE, *goal)) == count


def test_what_lies_beyond_an_edge_is_no_neighbour() -> None:
    end_of_first_row, start_of_second = bit_at(SHAPE, 0, 3), bit_at(SHAPE, 1, 0)
    only_these = end_of_first_row | start_of_second
    assert num_moves(SHAPE, only_these, end_of_first_row, start_of_second) is None
    assert shortest_path(SHAPE, only_these, end_of_first_row, start_of_second) == []
    assert num_shortest_paths(SHAPE, only_these, end_of_first_row, start_of_second) == 0
