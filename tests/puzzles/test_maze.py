"""Mazes: the check, symmetries, hints, and labels against an independent search."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from puzzle_tools import Cell, cells_where, subsets

from hrm_puzzles import registry
from hrm_puzzles.maze import PATH_TOKEN, WALL_TOKEN, Maze
from hrm_puzzles.maze_generator import GOAL, OPEN, PATH, START, WALL, lengths
from hrm_puzzles.puzzle import RIGHT, Grid

MAZE = registry.get("maze-10x10")
MAZES = [
    Maze(name="maze-4x4", rows=4, cols=4),
    Maze(name="maze-6x9", rows=6, cols=9),
    Maze(name="maze-10x10", rows=10, cols=10),
]
GENERATED = [*MAZES, Maze(name="maze-30x30", rows=30, cols=30)]
DIFFICULTIES = ["easy", "medium", "hard"]
NEIGHBORS = ((-1, 0), (1, 0), (0, -1), (0, 1))
seeds = st.integers(min_value=0, max_value=2**32 - 1)
quick = settings(max_examples=12)


def cells_with(question: Grid, value: int) -> list[Cell]:
    return cells_where(question == value)


def open_cells(question: Grid) -> nx.Graph:
    """The cells beside each other, without walls."""
    cells = nx.grid_2d_graph(*question.shape)
    cells.remove_nodes_from(cells_with(question, WALL))
    return cells


def neighbors(cell: Cell) -> list[Cell]:
    return [(cell[0] + down, cell[1] + right) for down, right in NEIGHBORS]


def shortest_paths(question: Grid) -> set[frozenset[Cell]]:
    """The inner cells of every shortest path from S to G."""
    (start,) = cells_with(question, START)
    (goal,) = cells_with(question, GOAL)
    cells = open_cells(question)
    if not nx.has_path(cells, start, goal):
        return set()
    return {frozenset(path[1:-1]) for path in nx.all_shortest_paths(cells, start, goal)}


def moves_to_goal(question: Grid) -> dict[Cell, int]:
    (goal,) = cells_with(question, GOAL)
    return nx.single_source_shortest_path_length(open_cells(question), goal)


def first_path(question: Grid) -> list[Cell]:
    """From the start, always to the first neighbor that is nearer."""
    moves = moves_to_goal(question)
    path = cells_with(question, START)
    while moves[path[-1]]:
        wanted = moves[path[-1]] - 1
        nearer = [near for near in neighbors(path[-1]) if moves.get(near) == wanted]
        path.append(nearer[0])
    return path


def marked(question: Grid, cells: frozenset[Cell]) -> Grid:
    answer = question.copy()
    for cell in cells:
        answer[cell] = PATH
    return answer


@given(seed=seeds)
@settings(max_examples=6)
def test_of_all_sets_of_marks_only_the_shortest_paths_are_right(seed: int):
    maze = MAZES[0]
    places = np.random.default_rng(seed).permutation(16)
    question = np.full((4, 4), OPEN, np.int8)
    question.reshape(-1)[places[:2]] = (START, GOAL)
    question.reshape(-1)[places[2:6]] = WALL
    sets = subsets(cells_with(question, OPEN))
    answers_BT = np.stack([maze.encode(marked(question, marks)) for marks in sets])
    inputs_BT = np.resize(maze.encode(question), answers_BT.shape)
    verdict_B = maze.check_BT(inputs_BT, answers_BT)
    right = {sets[index] for index in np.flatnonzero(verdict_B == RIGHT).tolist()}
    assert right == shortest_paths(question)


@pytest.mark.parametrize(("maze", "count"), [(MAZES[1], 4), (MAZES[2], 8)])
def test_squares_have_eight_symmetries_and_other_boards_four(maze: Maze, count: int):
    cells_BT = np.tile(np.arange(maze.seq_len), (300, 1))
    rng = np.random.default_rng(0)
    turned_BT, turned_labels_BT = maze.augment_BT(rng, cells_BT, cells_BT)
    assert (turned_BT == turned_labels_BT).all()
    assert turned_BT.dtype == turned_labels_BT.dtype == np.int32
    assert len(np.unique(turned_BT, axis=0)) == count


def test_a_maze_walked_backwards_is_equivalent():
    examples = [MAZE.generate(np.random.default_rng(seed), "easy") for seed in range(4)]
    inputs_BT = np.stack([MAZE.encode(example.question) for example in examples])
    labels_BT = np.stack([MAZE.encode(example.answer) for example in examples])
    exchanged_V = np.array([0, 1, 2, 4, 3, 5])  # start and goal change places
    hash_B = MAZE.equivalence_hash_B(inputs_BT, labels_BT)
    assert (hash_B == MAZE.equivalence_hash_B(exchanged_V[inputs_BT], labels_BT)).all()


@given(seed=seeds)
@quick
def test_hints_name_the_first_way_that_is_nearer_and_the_moves_left(seed: int):
    maze = MAZES[seed % 3]
    example = maze.generate(np.random.default_rng(seed), "easy")
    inputs_1T = maze.encode(example.question)[None]
    labels_1T = maze.encode(example.answer)[None]
    hints = maze.hints(inputs_1T, labels_1T)
    kinds = hints.kinds_BT.reshape(maze.rows, maze.cols)
    after = hints.after_BT.reshape(maze.rows, maze.cols)
    moves_left = moves_to_goal(example.question)
    for cell, moves in moves_left.items():
        expected = 1
        if moves:
            near = [moves_left.get(beside) for beside in neighbors(cell)]
            expected = 2 + 3 * near.index(moves - 1) + moves % 3
        assert kinds[cell] == expected
        assert after[cell] == moves
    assert (kinds > 0).sum() == len(moves_left)
    assert ((hints.kinds_BT == -1) == (inputs_1T == WALL_TOKEN)).all()
    assert kinds.max() < maze.num_hints
    # the answer is known along the path once the start knows its way
    is_path_1T = labels_1T == PATH_TOKEN
    first = example.rating + 1
    on_path = sorted(hints.answer_after_BT[is_path_1T].tolist())
    assert on_path == list(range(first, first + example.rating - 1))
    assert (hints.answer_after_BT[~is_path_1T] == 0).all()


@given(seed=seeds)
@quick
def test_a_turned_maze_marks_the_first_of_its_shortest_paths(seed: int):
    maze = MAZES[1]
    rng = np.random.default_rng(seed)
    example = maze.generate(rng, "medium")
    inputs_BT = np.tile(maze.encode(example.question), (8, 1))
    labels_BT = np.tile(maze.encode(example.answer), (8, 1))
    turned_BT, marked_BT = maze.augment_BT(rng, inputs_BT, labels_BT)
    assert (marked_BT == maze.first_path_BT(turned_BT)).all()
    assert (maze.first_path_BT(inputs_BT) == labels_BT).all()


def test_rendered_answer_shows_the_path_and_crosses_out_what_is_broken():
    maze = Maze(name="maze", rows=4, cols=4)
    question = maze.parse("S..G\n####\n....\n....").grid
    answer = maze.board_of("SooG####........")
    answer[1, 1] = OPEN
    assert maze.render(answer, question).splitlines() == [
        "┌────────┐",
        "│S • • G │",
        "│██✗ ████│",
        "│        │",
        "│        │",
        "└────────┘",
    ]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [5, pytest.param(3334, marks=pytest.mark.slow)])
@pytest.mark.parametrize("maze", GENERATED, ids=lambda maze: maze.name)
@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_label_is_the_first_shortest_path(maze: Maze, difficulty: str, count: int):
    rng = np.random.default_rng(count)
    for _ in range(count):
        example = maze.generate(rng, difficulty)
        path = first_path(example.question)
        assert example.rating == len(path) - 1
        is_marked = example.answer == PATH
        assert set(cells_where(is_marked)) == set(path[1:-1])
        without_marks = np.where(is_marked, 0, example.answer)
        assert (without_marks == example.question).all()
        assert example.rating in lengths(maze.shape, difficulty)


def test_hard_mazes_of_30x30_are_like_the_published_ones():
    assert lengths(GENERATED[3].shape, "hard").start == 111
    starts = [lengths(GENERATED[2].shape, difficulty).start for difficulty in DIFFICULTIES]
    assert starts == [2, 13, 26]
    rng = np.random.default_rng(3)
    has_open_square = set()
    for _ in range(12):
        is_free = GENERATED[3].generate(rng, "hard").question != WALL
        rows = is_free[:-1] & is_free[1:]
        has_open_square.add(bool((rows[:, :-1] & rows[:, 1:]).any()))
    # Corridors of trees are one cell wide. Random walls leave open squares.
    assert has_open_square == {False, True}
