"""Whether a Sudoku question makes sense: givens that agree, a solution, and only one."""

from __future__ import annotations

import numpy as np

from hrm_puzzles.puzzle import Grid, PuzzleError
from hrm_puzzles.sudoku.board import Board
from hrm_puzzles.sudoku.solver import Outcome, solve

# Some 30 us each on a 9x9 board. Of 4,949 questions of all kinds, many chosen for being hard, 15 would need more.
MAX_TRIES = 500


def check_question(board: Board, grid: Grid) -> None:
    """Refuse givens that clash, and questions with no solution or several.

    The work is bounded: a question too hard to judge within MAX_TRIES guesses is let through.
    """
    outcome = solve(board, grid, max_solutions=2, max_tries=MAX_TRIES)
    if len(outcome.solutions) > 1:
        raise _several_solutions(board, outcome)
    if not outcome.solutions and outcome.is_complete:
        _check_clashes(board, grid)
        raise _no_solution(board, grid)


def _check_clashes(board: Board, grid: Grid) -> None:
    cells = grid.reshape(-1).tolist()
    for unit, members in enumerate(board.units):
        first_cell: dict[int, int] = {}
        for cell in members:
            if cells[cell] and cells[cell] in first_cell:
                raise _clash(board, cells[cell], unit, first_cell[cells[cell]], cell)
            first_cell[cells[cell]] = cell


def _clash(board: Board, digit: int, unit: int, first: int, second: int) -> PuzzleError:
    kind, number = ("row", "column", "box")[unit // board.side], unit % board.side + 1
    problem = f"{digit} is given twice in {kind} {number}, {_at(board, first)} and {_at(board, second)}"
    return PuzzleError(problem, "clashing-givens", "change or clear one of the two", board.cell_name(second))


def _several_solutions(board: Board, outcome: Outcome) -> PuzzleError:
    one, other = (solution.reshape(-1) for solution in outcome.solutions[:2])
    cell = int(np.argmax(one != other))
    problem = f"the puzzle has more than one solution: {_at(board, cell)} can be {one[cell]} or {other[cell]}"
    return PuzzleError(problem, "many-solutions", "give more digits, for example this one", board.cell_name(cell))


def _no_solution(board: Board, grid: Grid) -> PuzzleError:
    stuck = _stuck_cell(board, grid)
    where = "" if stuck is None else f": no digit can go {_at(board, stuck)}"
    remedy = "compare the givens with the source of the puzzle"
    return PuzzleError(
        f"the puzzle has no solution{where}", "no-solution", remedy, None if stuck is None else board.cell_name(stuck)
    )


def _stuck_cell(board: Board, grid: Grid) -> int | None:
    """The first open cell that sees every digit among the givens."""
    cells = grid.reshape(-1)
    for cell in np.flatnonzero(cells == 0).tolist():
        is_peer_T = (board.groups_GT == board.groups_GT[:, cell, None]).any(axis=0)
        if len(set(cells[is_peer_T].tolist()) - {0}) == board.side:
            return cell
    return None


def _at(board: Board, cell: int) -> str:
    row, col = board.cell_name(cell)
    return f"at row {row}, column {col}"
