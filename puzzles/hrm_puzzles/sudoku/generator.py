"""Fresh Sudokus: removes clues from a full grid while the solution stays unique."""

import sys

import numpy as np

from hrm_puzzles.puzzle import Example, Grid
from hrm_puzzles.sudoku.board import SudokuBoard
from hrm_puzzles.sudoku.solver import SudokuSolver, rating, solver_of

# The share of cells that are given, and the ratings. With a share of 0 every given is needed. The
# numbers in the comments are for 9x9. Smaller boards lack the last two, because questions that need
# guesses are too rare there.
DIFFICULTIES = {
    "easy": (0.5, range(1)),  # 40 givens, singles solve it
    "medium": (0.37, range(sys.maxsize)),  # 30 givens, nearly always rated 0
    "minimal": (0.0, range(sys.maxsize)),  # 20 to 28 givens, two thirds are rated 0
    "hard": (0.0, range(1, sys.maxsize)),  # singles do not solve it
    "extreme": (0.0, range(10, sys.maxsize)),  # 1 of 40 minimal ones; 0.5 s each
}


def generate(board: SudokuBoard, rng: np.random.Generator, difficulty: str) -> Example:
    """A question with one solution, of one of the DIFFICULTIES, with its answer and rating.

    Removes clues from a random full grid in random order, each only if the solution stays unique.
    It stops when the share of givens is reached or every given is needed.
    """
    given_share, ratings = DIFFICULTIES[difficulty]
    num_spare = board.num_cells - round(given_share * board.num_cells)
    # Nearly all of the first clues can go, so they are tried as one block.
    num_first = min(num_spare, board.num_cells * 3 // 8)
    solver = solver_of(board)
    while True:
        answer = _full_grid(solver, rng)
        cells: list[int] = answer.reshape(-1).tolist()
        order: list[int] = rng.permutation(board.num_cells).tolist()
        take_out(solver, cells, order[:num_first])
        for cell in order[num_first:]:
            if cells.count(0) < num_spare:
                take_out(solver, cells, [cell])
        question = np.array(cells, dtype=np.int8).reshape(answer.shape)
        found_rating = rating(board, question)
        if found_rating in ratings:
            return Example(question=question, answer=answer, rating=found_rating)


def _full_grid(solver: SudokuSolver, rng: np.random.Generator) -> Grid:
    def shuffled(bits: list[int]) -> list[int]:
        return rng.permutation(bits).tolist()

    nothing_given = solver.given([0] * solver.num_cells)
    solutions = solver.search(nothing_given, max_solutions=1, order=shuffled)
    return solutions.grids[0]


def take_out(solver: SudokuSolver, cells: list[int], block: list[int]) -> None:
    """Clear the cells of a block one after the other, each only if the solution stays unique.

    Fewer clues never make a solution unique again. So a block that can go as a whole gives the
    same result as its cells one by one. A block that cannot is halved.
    """
    clues = [cells[cell] for cell in block]
    for cell in block:
        cells[cell] = 0
    if _is_unique(solver, cells, block, clues):
        return
    for cell, clue in zip(block, clues, strict=True):
        cells[cell] = clue
    if len(block) > 1:
        half = len(block) // 2
        take_out(solver, cells, block[:half])
        take_out(solver, cells, block[half:])


def _is_unique(
    solver: SudokuSolver,
    cells: list[int],
    block: list[int],
    clues: list[int],
) -> bool:
    """Whether `cells` has one solution after the cells of `block` lost their clues."""
    state = solver.given(cells)
    if len(block) > 1:
        return len(solver.search(state, max_solutions=2).found) == 1
    # Another solution would have another digit in this cell.
    others = solver.without(state, block[0], clues[0])
    return not solver.search(others, max_solutions=1).found
