"""The cells of a maze, shortest paths through it, and whether a question makes sense and an answer is right.

Paths are exact: they generate, rate and check mazes, and never answer for the model. Sets of cells are bits of one
integer, see `grid.board`. Tokens as in the published HRM data: 0 pad, 1 wall, 2 open, 3 start, 4 goal, 5 path.
Shapes: B batch, T cells.
"""

import numpy as np

from hrm_puzzles.grid.board import BoolArray, GridShape, bits_from, levels_from, neighbours, num_neighbours_BT
from hrm_puzzles.puzzle import IntArray, PuzzleError

OPEN, WALL, START, GOAL, PATH = range(5)  # values in grids

WALL_TOKEN, OPEN_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN = range(1, 6)
VOCAB_SIZE = 6

TOKEN_OF_VALUE = np.array([OPEN_TOKEN, WALL_TOKEN, START_TOKEN, GOAL_TOKEN, PATH_TOKEN], dtype=np.int32)
VALUE_OF_TOKEN = np.array([OPEN, WALL, OPEN, START, GOAL, PATH, OPEN], dtype=np.int8)  # last: beyond the vocabulary


def num_moves(shape: GridShape, free: int, start: int, goal: int) -> int | None:
    """Length of a shortest path, or None if there is none."""
    levels = levels_from(shape, free, start, goal)
    return len(levels) - 1 if levels[-1] & goal else None


def cells_between(shape: GridShape, free: int, start: int, goal: int) -> list[int]:
    """The cells on any shortest path, by their distance from `start`; empty if there is no path."""
    levels = levels_from(shape, free, start, goal)
    if not levels[-1] & goal:
        return []
    levels[-1] = goal
    for distance in range(len(levels) - 2, -1, -1):
        levels[distance] &= neighbours(shape, levels[distance + 1])
    return levels


def check_question(shape: GridShape, tokens_T: IntArray) -> None:
    """Refuse a maze without exactly one start and one goal, without a way, or with marks that are no shortest path.

    A maze with its whole path marked passes, so that an answer can be read back.
    """
    for token, name, letter in ((START_TOKEN, "start", "S"), (GOAL_TOKEN, "goal", "G")):
        cells = np.flatnonzero(tokens_T == token).tolist()
        if not cells:
            raise PuzzleError(f"there is no {name}", f"no-{name}", f"mark one open cell with {letter}")
        if len(cells) > 1:
            row, col = shape.cell_name(cells[1])
            problem = f"there are {len(cells)} cells {letter}, the second at row {row}, column {col}"
            raise PuzzleError(problem, f"many-{name}s", f"keep one {letter}", (row, col))
    if _num_moves(shape, tokens_T) is None:
        raise PuzzleError("no way leads from S to G", "no-path", "open a wall between them")
    is_marked_T = tokens_T == PATH_TOKEN
    open_T = np.where(is_marked_T, OPEN_TOKEN, tokens_T)
    if is_marked_T.any() and not is_shortest_path_B(shape, open_T[None], tokens_T[None])[0]:
        raise PuzzleError("the cells marked o are no shortest path", "wrong-marks", "send the maze without marks")


def _num_moves(shape: GridShape, tokens_T: IntArray) -> int | None:
    is_free_T = tokens_T != WALL_TOKEN
    sets = (is_free_T, tokens_T == START_TOKEN, tokens_T == GOAL_TOKEN)
    return num_moves(shape, *(bits_from(shape, is_set_T[None]) for is_set_T in sets))


def is_shortest_path_B(shape: GridShape, inputs_BT: IntArray, answers_BT: IntArray) -> BoolArray:
    """Where the answer keeps walls, start and goal, and its marked cells are one chain of the shortest length."""
    is_marked_BT = answers_BT == PATH_TOKEN
    keeps_B = ((answers_BT == inputs_BT) | ((inputs_BT == OPEN_TOKEN) & is_marked_BT)).all(axis=1)
    is_right_B = np.zeros(len(inputs_BT), dtype=np.bool_)
    kept = np.flatnonzero(keeps_B)
    for row in kept[_is_chain_B(shape, answers_BT[kept])].tolist():
        is_right_B[row] = _num_moves(shape, answers_BT[row]) == is_marked_BT[row].sum() + 1
    return is_right_B


def _is_chain_B(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """Where one start and one goal have one neighbour each on the path, and marked cells have two.

    Then a path leads from start to goal, and any other marks are closed rings. When the number of marks is that of a
    shortest path, there are none left for a ring.
    """
    is_start_BT, is_goal_BT = answers_BT == START_TOKEN, answers_BT == GOAL_TOKEN
    is_end_BT, is_marked_BT = is_start_BT | is_goal_BT, answers_BT == PATH_TOKEN
    has_ends_B = (is_start_BT.sum(axis=1) == 1) & (is_goal_BT.sum(axis=1) == 1)
    num_near_BT = num_neighbours_BT(shape, is_end_BT | is_marked_BT)
    wanted_BT = is_end_BT + np.int8(2) * is_marked_BT
    return has_ends_B & ((num_near_BT == wanted_BT) | ~(is_end_BT | is_marked_BT)).all(axis=1)
