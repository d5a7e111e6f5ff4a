"""Generated mazes are labelled with the first of their shortest paths, by an independent search."""

from collections import deque

import numpy as np
import pytest

from hrm_puzzles.maze import Maze
from hrm_puzzles.maze_generator import GOAL, PATH, START, WALL, lengths
from hrm_puzzles.puzzle import RIGHT, Example, Grid

MAZES = [
    Maze(name="maze-4x4", rows=4, cols=4),
    Maze(name="maze-5x9", rows=5, cols=9),
    Maze(name="maze-10x10", rows=10, cols=10),
    Maze(name="maze-30x30", rows=30, cols=30),
]
DIFFICULTIES = ["easy", "medium", "hard"]
NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1))

Cell = tuple[int, int]


def cells_of(is_set: np.typing.NDArray[np.bool_]) -> list[Cell]:
    rows, cols = np.nonzero(is_set)
    return list(zip(rows.tolist(), cols.tolist(), strict=True))


def neighbours(cell: Cell) -> list[Cell]:
    return [(cell[0] + down, cell[1] + right) for down, right in NEIGHBOURS]


def moves_to_goal(question: Grid) -> dict[Cell, int]:
    free = set(cells_of(question != WALL))
    (goal,) = cells_of(question == GOAL)
    moves = {goal: 0}
    waiting = deque([goal])
    while waiting:
        cell = waiting.popleft()
        for near in neighbours(cell):
            if near in free and near not in moves:
                moves[near] = moves[cell] + 1
                waiting.append(near)
    return moves


def first_path(question: Grid) -> list[Cell]:
    """From the start, always to the first neighbour that is nearer."""
    moves = moves_to_goal(question)
    path = cells_of(question == START)
    while moves[path[-1]]:
        wanted = moves[path[-1]] - 1
        nearer = [near for near in neighbours(path[-1]) if moves.get(near) == wanted]
        path.append(nearer[0])
    return path


def check(maze: Maze, example: Example) -> None:
    """The rating, the marks of the first shortest path and all other cells are right."""
    path = first_path(example.question)
    assert example.rating == len(path) - 1
    is_marked = example.answer == PATH
    assert set(cells_of(is_marked)) == set(path[1:-1])
    without_marks = np.where(is_marked, 0, example.answer)
    assert (without_marks == example.question).all()
    inputs_1T = maze.encode(example.question)[None]
    labels_1T = maze.encode(example.answer)[None]
    assert maze.check_BT(inputs_1T, labels_1T).tolist() == [RIGHT]


def check_many(maze: Maze, difficulty: str, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        example = maze.generate(rng, difficulty)
        check(maze, example)
        assert example.rating in lengths(maze.shape, difficulty)


@pytest.mark.parametrize("maze", MAZES, ids=lambda maze: maze.name)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_label_is_the_first_shortest_path(maze: Maze, difficulty: str) -> None:
    count = 5 if maze.rows == 30 else 20
    check_many(maze, difficulty, count=count, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("maze", MAZES[2:], ids=lambda maze: maze.name)
def test_ten_thousand_labels_are_the_first_shortest_path(maze: Maze, difficulty: str) -> None:
    check_many(maze, difficulty, count=3334, seed=2)


def test_hard_mazes_of_30x30_are_those_of_the_published_set() -> None:
    assert lengths(MAZES[3].shape, "hard").start == 111
    starts = [lengths(MAZES[2].shape, difficulty).start for difficulty in DIFFICULTIES]
    assert starts == [2, 13, 26]


def has_open_square(question: Grid) -> bool:
    is_free = question != WALL
    rows = is_free[:-1] & is_free[1:]
    return bool((rows[:, :-1] & rows[:, 1:]).any())


def test_hard_mazes_of_30x30_are_not_only_trees() -> None:
    rng = np.random.default_rng(3)
    questions = [MAZES[3].generate(rng, "hard").question for _ in range(12)]
    # Corridors of trees are one cell wide. Random walls leave open squares.
    assert {has_open_square(question) for question in questions} == {False, True}
