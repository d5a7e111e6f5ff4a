"""Whether a maze makes sense (one start, one goal, a way between them), and whether an answer is a shortest path.

Shapes: B batch, T cells.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.grid.bits import bits_from
from hrm_puzzles.grid.geometry import GridShape, num_neighbours_BT
from hrm_puzzles.maze.board import GOAL_TOKEN, OPEN_TOKEN, PATH_TOKEN, START_TOKEN, WALL_TOKEN
from hrm_puzzles.maze.solver import num_moves
from hrm_puzzles.puzzle import IntArray, PuzzleError

BoolArray = NDArray[np.bool_]


def check_question(shape: GridShape, tokens_T: IntArray) -> None:
    """Refuse a maze without exactly one start and one goal, without a way, or with marks that are no shortest path.

    A maze whose whole path is marked passes, so that an answer can be read back.
    """
    for token, name, letter in ((START_TOKEN, "start", "S"), (GOAL_TOKEN, "goal", "G")):
        _check_one(shape, np.flatnonzero(tokens_T == token).tolist(), name, letter)
    if _num_moves(shape, tokens_T) is None:
        raise PuzzleError("no way leads from S to G", "no-path", "open a wall between them")
    is_marked_T = tokens_T == PATH_TOKEN
    open_T = np.where(is_marked_T, OPEN_TOKEN, tokens_T)
    if is_marked_T.any() and not is_shortest_path_B(shape, open_T[None], tokens_T[None])[0]:
        raise PuzzleError("the cells marked o are no shortest path", "wrong-marks", "send the maze without marks")


def _check_one(shape: GridShape, cells: list[int], name: str, letter: str) -> None:
    if not cells:
        raise PuzzleError(f"there is no {name}", f"no-{name}", f"mark one open cell with {letter}")
    if len(cells) > 1:
        row, col = shape.cell_name(cells[1])
        problem = f"there are {len(cells)} cells {letter}, the second at row {row}, column {col}"
        raise PuzzleError(problem, f"many-{name}s", f"keep one {letter}", (row, col))


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
    for row in kept[is_chain_B(shape, answers_BT[kept])].tolist():
        is_right_B[row] = _num_moves(shape, answers_BT[row]) == is_marked_BT[row].sum() + 1
    return is_right_B


def is_chain_B(shape: GridShape, answers_BT: IntArray) -> BoolArray:
    """Where one start and one goal have one neighbour each on the path, and marked cells have two.

    Then a path leads from start to goal, and any other marks are closed rings. When the number of marks is that of a
    shortest path, there are none left for a ring.
    """
    is_end_BT = (answers_BT == START_TOKEN) | (answers_BT == GOAL_TOKEN)
    is_marked_BT = answers_BT == PATH_TOKEN
    has_ends_B = ((answers_BT == START_TOKEN).sum(axis=1) == 1) & ((answers_BT == GOAL_TOKEN).sum(axis=1) == 1)
    num_near_BT = num_neighbours_BT(shape, is_end_BT | is_marked_BT)
    wanted_BT = is_end_BT + np.int8(2) * is_marked_BT
    return has_ends_B & ((num_near_BT == wanted_BT) | ~(is_end_BT | is_marked_BT)).all(axis=1)
