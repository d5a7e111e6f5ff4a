"""Hard Sudokus by hill climbing: change some givens and keep what costs the solver more.

Random minimal questions hardly ever need many backtracks: one of forty needs ten. A climb starts
from a random minimal question. A step removes one or two givens, adds others until the solution is
unique, and removes every given that is not needed. The climb keeps a step if the rating does not
fall. Steps change the solution too.

The rating depends on the order of the cells, and a climb also exploits that: turned and relabeled
copies of the first six climbs to 200 are rated 3 to 18 on (geometric) average.
"""

import numpy as np

from hrm_puzzles.puzzle import Example, Grid
from hrm_puzzles.sudoku import generator, solver
from hrm_puzzles.sudoku.board import SudokuBoard

MAX_REMOVED = 2  # givens per step
# Steps without a gain after which a climb starts again elsewhere: some three seconds.
MAX_IDLE_STEPS = 1000
# A step is rated before needless givens are removed. It is given up below this share of the present
# rating, because the rating hardly ever recovers. This makes a step three times as fast.
HOPELESS = 0.3


def climb(board: SudokuBoard, rng: np.random.Generator, min_rating: int) -> Example:
    """A question with one solution, all of whose givens are needed, rated `min_rating` or more."""
    while True:
        question = generator.generate(board, rng, "minimal").question
        rating = solver.rating(board, question)
        num_idle = 0
        while rating < min_rating and num_idle < MAX_IDLE_STEPS:
            num_idle += 1
            wider = with_other_givens(board, rng, question)
            if solver.rating(board, wider) < HOPELESS * rating:
                continue
            changed = without_needless_givens(board, rng, wider)
            changed_rating = solver.rating(board, changed)
            if changed_rating > rating:
                num_idle = 0
            if changed_rating >= rating:
                question = changed
                rating = changed_rating
        if rating >= min_rating:
            (answer,) = solver.solve(board, question).grids
            return Example(question=question, answer=answer, rating=rating)


def with_other_givens(board: SudokuBoard, rng: np.random.Generator, question: Grid) -> Grid:
    """Exchange some givens; the result has one solution again.

    Each given that it adds is a digit that tells two solutions apart.
    """
    cells_T = question.reshape(-1).copy()
    num_removed = int(rng.integers(1, MAX_REMOVED + 1))
    removed = rng.choice(np.flatnonzero(cells_T), num_removed, replace=False)
    cells_T[removed] = 0
    search = solver.solver_of(board)

    def shuffled(bits: list[int]) -> list[int]:
        return rng.permutation(bits).tolist()

    while True:
        state = search.given(cells_T.tolist())
        grids = search.search(state, max_solutions=2, order=shuffled).grids
        if len(grids) == 1:
            return cells_T.reshape(question.shape)
        first_T, second_T = (grid.reshape(-1) for grid in grids)
        cell = int(rng.choice(np.flatnonzero(first_T != second_T)))
        cells_T[cell] = first_T[cell]


def without_needless_givens(board: SudokuBoard, rng: np.random.Generator, question: Grid) -> Grid:
    """Remove givens in random order, each only if the solution stays unique."""
    cells: list[int] = question.reshape(-1).tolist()
    for cell in rng.permutation(np.flatnonzero(question)).tolist():
        generator.take_out(solver.solver_of(board), cells, [cell])
    return np.array(cells, dtype=np.int8).reshape(question.shape)
