"""Maze tokens, the check, symmetries and the curriculum, on square and other boards."""

from itertools import compress, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_puzzles import registry
from hrm_puzzles.maze import PATH_TOKEN, WALL_TOKEN, Maze
from hrm_puzzles.puzzle import RIGHT, WRONG, Grid

MAZE = registry.get("maze-10x10")
SHAPES = [(4, 4), (6, 9), (10, 10)]
MAZES = [Maze(name=f"maze-{rows}x{cols}", rows=rows, cols=cols) for rows, cols in SHAPES]
OPEN, WALL, START, GOAL, PATH = range(5)
NEIGHBOURS = ((-1, 0), (1, 0), (0, -1), (0, 1))
seeds = st.integers(min_value=0, max_value=2**32 - 1)
quick = settings(deadline=None, max_examples=12)

WITH_RINGS = """\
S....
.###.
.#.#.
.###.
....G"""


def verdict(maze: Maze, question: Grid, answer: Grid) -> int:
    return int(maze.check_BT(maze.encode(question)[None], maze.encode(answer)[None])[0])


def simple_paths(question: Grid) -> list[frozenset[tuple[int, int]]]:
    """The inner cells of every path from S to G that enters no cell twice, by trying all ways."""
    start, goal = (tuple(np.argwhere(question == value)[0].tolist()) for value in (START, GOAL))
    found: list[frozenset[tuple[int, int]]] = []

    def walk(cell: tuple[int, int], before: frozenset[tuple[int, int]]) -> None:
        if cell == goal:
            found.append(before - {start})
            return
        for down, right in NEIGHBOURS:
            row, col = cell[0] + down, cell[1] + right
            inside = 0 <= row < question.shape[0] and 0 <= col < question.shape[1]
            if inside and question[row, col] != WALL and (row, col) not in before:
                walk((row, col), before | {cell})

    walk(start, frozenset())
    return found


def all_moves_left(question: Grid) -> dict[tuple[int, int], int]:
    """Of every cell that reaches the goal, one ring of cells after the other."""
    ring = {tuple(cell) for cell in np.argwhere(question == GOAL).tolist()}
    found, free = dict.fromkeys(ring, 0), {tuple(cell) for cell in np.argwhere(question != WALL).tolist()}
    for moves in range(1, question.size):
        ring = {(row + down, col + right) for row, col in ring for down, right in NEIGHBOURS} & free - found.keys()
        found |= dict.fromkeys(ring, moves)
    return found


def marked(question: Grid, cells: frozenset[tuple[int, int]]) -> Grid:
    answer = question.copy()
    for cell in cells:
        answer[cell] = PATH
    return answer


def test_tokens_are_the_published_ones() -> None:
    maze = registry.get("maze")
    assert (maze.vocab_size, maze.seq_len, maze.num_puzzle_ids) == (6, 900, 1)
    grid = MAZES[0].board_of("# SGo" + "." * 11)
    assert MAZES[0].encode(grid)[:6].tolist() == [1, 2, 3, 4, 5, 2]
    assert (MAZES[0].decode(MAZES[0].encode(grid)) == grid).all()


def test_tokens_that_stand_for_nothing_decode_to_open_cells() -> None:
    tokens_T = np.resize(np.array([0, 1, 6, 10**6, -5]), 100)
    assert MAZE.decode(tokens_T).reshape(-1)[:5].tolist() == [OPEN, WALL, OPEN, OPEN, OPEN]


@pytest.mark.parametrize("sides", [(3, 9), (9, 31)])
def test_boards_too_small_or_too_large_are_refused(sides: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="choose sides from 4 to 30"):
        Maze(name="maze", rows=sides[0], cols=sides[1])


def test_any_shortest_path_is_right() -> None:
    maze = Maze(name="maze", rows=5, cols=5)
    question = maze.parse(WITH_RINGS).grid
    paths = simple_paths(question)
    assert [len(path) for path in paths] == [7, 7]
    assert [verdict(maze, question, marked(question, path)) for path in paths] == [RIGHT, RIGHT]


def test_detour_is_wrong() -> None:
    question, short, long = (
        MAZES[0].board_of(text + "....") for text in ("S..G.##.....", "SooG.##.....", "S..Go##ooooo")
    )
    assert (verdict(MAZES[0], question, short), verdict(MAZES[0], question, long)) == (RIGHT, WRONG)


@given(seed=seeds)
@quick
def test_of_all_simple_paths_just_the_shortest_are_right(seed: int) -> None:
    rng = np.random.default_rng(seed)
    question = (rng.random((4, 4)) < 0.25).astype(np.int8)
    ends = rng.choice(16, 2, replace=False)
    question.reshape(-1)[ends] = (START, GOAL)
    paths = simple_paths(question)
    shortest = min(map(len, paths), default=0)
    for path in paths:
        assert verdict(MAZES[0], question, marked(question, path)) == (RIGHT if len(path) == shortest else WRONG)


def test_of_all_sets_of_marks_just_the_shortest_paths_are_right() -> None:
    question = MAZES[0].board_of("S..#.#.....G#...")
    cells = [tuple(cell) for cell in np.argwhere(question == OPEN).tolist()]
    sets = [frozenset(compress(cells, chosen)) for chosen in product((False, True), repeat=len(cells))]
    answers_BT = np.stack([MAZES[0].encode(marked(question, some)) for some in sets])
    verdict_B = MAZES[0].check_BT(np.resize(MAZES[0].encode(question), answers_BT.shape), answers_BT)
    paths = simple_paths(question)
    shortest = {path for path in paths if len(path) == min(map(len, paths))}
    assert len(shortest) > 1
    assert set(compress(sets, verdict_B == RIGHT)) == shortest


def test_path_through_a_wall_is_wrong() -> None:
    maze = Maze(name="maze", rows=5, cols=5)
    question = maze.parse(WITH_RINGS).grid
    answer = marked(question, simple_paths(question)[0])
    answer[1, 1] = PATH
    assert verdict(maze, question, answer) == WRONG


def test_shortest_path_with_a_ring_beside_it_is_wrong() -> None:
    maze = Maze(name="maze", rows=6, cols=6)
    question = maze.board_of("S...G." + "......" * 5)
    answer = maze.board_of("Soo.G." + "......" + "......" + "...oo." + "...oo." + "......")
    assert verdict(maze, question, answer) == WRONG
    answer[0, 3] = PATH
    assert verdict(maze, question, answer) == WRONG


@pytest.mark.parametrize(("maze", "count"), [(MAZES[1], 4), (MAZES[2], 8)])
def test_squares_have_eight_symmetries_and_other_boards_four(maze: Maze, count: int) -> None:
    cells_BT = np.tile(np.arange(maze.seq_len), (300, 1))
    turned_BT, turned_labels_BT = maze.augment_BT(np.random.default_rng(0), cells_BT, cells_BT)
    assert (turned_BT == turned_labels_BT).all()
    assert turned_BT.dtype == turned_labels_BT.dtype == np.int32
    assert len(np.unique(turned_BT, axis=0)) == count


def test_a_maze_walked_backwards_is_equivalent() -> None:
    made = [MAZE.generate(np.random.default_rng(seed), "easy") for seed in range(4)]
    inputs_BT = np.stack([MAZE.encode(example.question) for example in made])
    labels_BT = np.stack([MAZE.encode(example.answer) for example in made])
    backwards_BT = np.where(inputs_BT == 3, 4, np.where(inputs_BT == 4, 3, inputs_BT))
    hash_B = MAZE.equivalence_hash_B(inputs_BT, labels_BT)
    assert (hash_B == MAZE.equivalence_hash_B(backwards_BT, labels_BT)).all()


@given(seed=seeds)
@quick
def test_hints_name_the_first_way_that_is_nearer_and_the_moves_left(seed: int) -> None:
    maze = MAZES[seed % 3]
    example = maze.generate(np.random.default_rng(seed), "easy")
    question, answer = maze.encode(example.question)[None], maze.encode(example.answer)[None]
    hints, after, _ = (known[0].reshape(maze.rows, maze.cols) for known in maze.hints(question, answer))
    moves_left = all_moves_left(maze.decode(question[0]))
    for (row, col), moves in moves_left.items():
        near = [moves_left.get((row + down, col + right)) for down, right in NEIGHBOURS]
        assert hints[row, col] == (2 + 3 * near.index(moves - 1) + moves % 3 if moves else 1)
        assert after[row, col] == moves
    assert (hints > 0).sum() == len(moves_left)
    assert ((hints == -1) == (question[0].reshape(hints.shape) == WALL_TOKEN)).all()
    assert hints.max() < maze.num_hints


@given(seed=seeds)
@quick
def test_the_answer_is_known_along_the_path_once_the_start_knows_its_way(seed: int) -> None:
    maze = MAZES[seed % 3]
    example = maze.generate(np.random.default_rng(seed), "easy")
    question, answer = maze.encode(example.question)[None], maze.encode(example.answer)[None]
    after_BT = maze.hints(question, answer).answer_after_BT
    num_marked = example.rating - 1
    assert sorted(after_BT[answer == PATH_TOKEN].tolist()) == [example.rating + 1 + k for k in range(num_marked)]
    assert (after_BT[answer != PATH_TOKEN] == 0).all()


@given(seed=seeds)
@quick
def test_a_turned_maze_marks_the_first_of_its_shortest_paths(seed: int) -> None:
    maze, rng = MAZES[1], np.random.default_rng(seed)
    example = maze.generate(rng, "medium")
    inputs_BT, labels_BT = (maze.encode(grid)[None].repeat(8, 0) for grid in (example.question, example.answer))
    turned_BT, marked_BT = maze.augment_BT(rng, inputs_BT, labels_BT)
    assert (marked_BT == maze.first_path_BT(turned_BT)).all()
    assert (maze.check_BT(turned_BT, marked_BT) == RIGHT).all()
    assert (maze.first_path_BT(inputs_BT) == labels_BT).all()


def test_rendered_answer_shows_the_path_and_crosses_out_what_is_broken() -> None:
    maze = Maze(name="maze", rows=4, cols=4)
    question = maze.parse("S..G\n####\n....\n....").grid
    answer = maze.board_of("SooG####........")
    answer[1, 1] = OPEN
    assert maze.render(answer, question) == "┌────────┐\n│S • • G │\n│██✗ ████│\n│        │\n│        │\n└────────┘"
