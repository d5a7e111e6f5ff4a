"""Fresh Sudoku questions with exactly one solution, at a stated difficulty.

Clues are taken out of a random full grid in random order, each only while the solution stays unique, until the share of
givens that the difficulty asks for is reached or every given is needed. Questions outside its ratings are discarded.
"""

import numpy as np

from hrm_puzzles.puzzle import Example, require_difficulty
from hrm_puzzles.sudoku.board import SudokuBoard
from hrm_puzzles.sudoku.solver import SudokuSolver, rating, solver_of

ANY = range(10**9)
# Share of cells given (0: every given is needed) and ratings, on 9x9; the smaller boards have no question that needs
# guesses often enough to look for.
DIFFICULTIES = {
    "easy": (0.5, range(1)),  # 40 givens, solved by singles alone
    "medium": (0.37, ANY),  # 30 givens, rating nearly always 0
    "minimal": (0.0, ANY),  # 20 to 28 givens, two of three are rated 0
    "hard": (0.0, ANY[1:]),  # minimal, and singles alone do not solve it
    "extreme": (0.0, ANY[10:]),  # minimal, about one of forty; half a second of work each
}


def difficulties(board: SudokuBoard) -> tuple[str, ...]:
    return tuple(DIFFICULTIES) if board.side > 6 else ("easy", "medium", "minimal")


def generate(board: SudokuBoard, rng: np.random.Generator, difficulty: str) -> Example:
    """A question of one of the `difficulties` of the board, its answer and its rating."""
    require_difficulty(difficulty, difficulties(board))
    given_share, ratings = DIFFICULTIES[difficulty]
    num_spare = board.num_cells - round(given_share * board.num_cells)
    block = min(num_spare, board.num_cells * 3 // 8)  # nearly all of so many clues can go, so they are tried at once
    solver = solver_of(board)
    nothing_given = solver.given([0] * board.num_cells)
    while True:
        found = solver.search(nothing_given, max_solutions=1, order=lambda bits: rng.permutation(bits).tolist())
        answer = found.grids[0]
        cells: list[int] = answer.reshape(-1).tolist()
        order: list[int] = rng.permutation(board.num_cells).tolist()
        _take_out(solver, cells, order[:block])
        for cell in order[block:]:
            if cells.count(0) < num_spare:
                _take_out(solver, cells, [cell])
        question = np.array(cells, dtype=np.int8).reshape(answer.shape)
        found_rating = rating(board, question)
        if found_rating in ratings:
            return Example(question=question, answer=answer, rating=found_rating)


def _take_out(solver: SudokuSolver, cells: list[int], block: list[int]) -> None:
    """Clear the cells of a block one after the other, each only if the solution stays unique.

    Taking out more never makes a solution unique again, so a whole block that can go is the same as its cells one by
    one, and one that cannot is halved.
    """
    clues = [cells[cell] for cell in block]
    for cell in block:
        cells[cell] = 0
    state = solver.given(cells)
    if len(block) == 1:  # another solution would have another digit here
        is_unique = not solver.search(solver.without(state, block[0], clues[0]), max_solutions=1).grids
    else:
        is_unique = len(solver.search(state, max_solutions=2).grids) == 1
    if is_unique:
        return
    for cell, clue in zip(block, clues, strict=True):
        cells[cell] = clue
    if len(block) > 1:
        half = len(block) // 2
        _take_out(solver, cells, block[:half])
        _take_out(solver, cells, block[half:])
