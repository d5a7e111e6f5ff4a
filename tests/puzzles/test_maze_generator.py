"""Generated mazes are labelled with the first of their shortest paths; an independent search says so."""

from collections import deque

import numpy as np
import pytest

from hrm_puzzles.grid.board import GridShape, bit_at, bits_from, cells_between, flags_from
from hrm_puzzles.maze import Maze
from hrm_puzzles.maze_generator import lengths
from hrm_puzzles.puzzle import RIGHT, Example, Grid

MAZES = [Maze(name=f"maze-{rows}x{cols}", rows=rows, cols=cols) for rows, cols in [(4, 4), (5, 9), (10, 10), (30, 30)]]
WALL, START, GOAL, PATH = 1, 2, 3, 4


def first_path(question: Grid) -> tuple[list[tuple[int, int]], bool]:
    """From the start, always to the first neighbour one move nearer; and whether there is another shortest path."""
    cells = {(row, col): int(question[row, col]) for row in range(len(question)) for col in range(len(question[0]))}
    goal = next(cell for cell, value in cells.items() if value == GOAL)
    moves, waiting = {goal: 0}, deque([goal])
    while waiting:
        cell = waiting.popleft()
        for near in neighbours(cell):
            if cells.get(near, WALL) != WALL and near not in moves:
                moves[near] = moves[cell] + 1
                waiting.append(near)
    path, has_ties = [next(cell for cell, value in cells.items() if value == START)], False
    while path[-1] != goal:
        nearer = [near for near in neighbours(path[-1]) if moves.get(near, -1) == moves[path[-1]] - 1]
        has_ties |= len(nearer) > 1
        path.append(nearer[0])
    return path, has_ties


def neighbours(cell: tuple[int, int]) -> list[tuple[int, int]]:
    return [(cell[0] + down, cell[1] + right) for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1))]


def faults(example: Example) -> list[str]:
    """What is wrong with a generated maze: its rating, cells that changed, or marks beside the first shortest path."""
    path, _ = first_path(example.question)
    marked = {tuple(cell) for cell in np.argwhere(example.answer == PATH).tolist()}
    found = {
        "rating": example.rating != len(path) - 1,
        "cells changed": (np.where(example.answer == PATH, 0, example.answer) != example.question).any(),
        "marks": marked != {*path[1:-1]},
    }
    return [name for name, is_wrong in found.items() if is_wrong]


def check_many(maze: Maze, difficulty: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        example = maze.generate(rng, difficulty)
        assert faults(example) == []
        assert example.rating in lengths(maze.shape, difficulty)
        tokens = maze.encode(example.question)[None], maze.encode(example.answer)[None]
        assert maze.check_BT(*tokens).tolist() == [RIGHT]


@pytest.mark.parametrize("maze", MAZES, ids=lambda maze: maze.name)
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_label_is_the_first_shortest_path(maze: Maze, difficulty: str) -> None:
    check_many(maze, difficulty, count=20 if maze.rows < 30 else 5, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
@pytest.mark.parametrize("maze", MAZES[2:], ids=lambda maze: maze.name)
def test_ten_thousand_labels_are_the_first_shortest_path(maze: Maze, difficulty: str) -> None:
    check_many(maze, difficulty, count=3334, seed=2)


def test_hard_mazes_of_30x30_are_those_of_the_published_set() -> None:
    assert lengths(MAZES[3].shape, "hard").start == 111
    starts = [lengths(MAZES[2].shape, difficulty).start for difficulty in ("easy", "medium", "hard")]
    assert starts == [2, 13, 26]


def test_hard_mazes_of_30x30_are_not_trees_alone() -> None:
    rng = np.random.default_rng(3)
    boards = [MAZES[3].generate(rng, "hard").question != WALL for _ in range(12)]
    has_squares = [(board[:-1, :-1] & board[1:, :-1] & board[:-1, 1:] & board[1:, 1:]).any() for board in boards]
    assert len(set(has_squares)) == 2  # corridors of trees are one cell wide, between random walls there are squares


def test_mazes_of_random_walls_have_several_shortest_paths_and_trees_one() -> None:
    rng = np.random.default_rng(4)
    ties = [first_path(MAZES[2].generate(rng, "medium").question)[1] for _ in range(30)]
    assert 0 < sum(ties) < 30


def test_what_lies_beyond_an_edge_is_no_neighbour() -> None:
    shape = GridShape(rows=3, cols=4)
    end_of_first_row, start_of_second = bit_at(shape, 0, 3), bit_at(shape, 1, 0)
    only_these = end_of_first_row | start_of_second
    assert cells_between(shape, only_these, end_of_first_row, start_of_second) == []


def test_the_cells_between_two_corners_are_those_of_every_shortest_path() -> None:
    shape = GridShape(rows=3, cols=4)
    everywhere = bits_from(shape, np.ones((1, 12), dtype=np.bool_))
    levels = cells_between(shape, everywhere, bit_at(shape, 0, 0), bit_at(shape, 2, 3))
    assert [np.flatnonzero(flags_from(shape, level)).tolist() for level in levels] == [
        *([0], [1, 4], [2, 5, 8]),
        *([3, 6, 9], [7, 10], [11]),
    ]
