"""An exact Sudoku solver, bounded in work: it generates, rates and checks questions, and never answers for the model.

All candidates of a board stand in one integer (see `sudoku_masks`), so that a dozen operations on long integers look at
all cells, rows, columns and boxes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hrm_puzzles.grid.integer_bits import bits_of
from hrm_puzzles.puzzle import Grid
from hrm_puzzles.sudoku.board import Board
from hrm_puzzles.sudoku.masks import families_of, rivals_of

# The candidates that are left, and those of them that are fixed: what follows from them is left out already.
State = tuple[int, int]
# Puts the candidates of a branching cell in the order in which they are tried.
CandidateOrder = Callable[[list[int]], list[int]]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a search found.

    `backtracks` are the tries that ended without a solution before the first solution. `is_complete` is False when the
    allowance of tries ran out: then there may be more solutions than these.
    """

    solutions: tuple[Grid, ...]
    backtracks: int
    is_complete: bool


class Solver:
    """The rules of one board as bit masks; stateless after construction. Get one from `solver_of`."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.num_cells = board.num_cells
        self._families = families_of(board)
        self.keep = [~rivals for rivals in rivals_of(board, self._families)]

    def given(self, cells: Sequence[int]) -> State:
        """What the givens leave open (0 for a blank), before any reasoning."""
        candidates, fixed = (1 << self.board.side * self.num_cells) - 1, 0
        for cell, digit in enumerate(cells):
            if digit:
                bit = (digit - 1) * self.num_cells + cell
                candidates &= self.keep[bit]
                fixed |= 1 << bit
        return candidates, fixed

    def without(self, state: State, cell: int, digit: int) -> State:
        candidates, fixed = state
        return candidates & ~(1 << (digit - 1) * self.num_cells + cell), fixed

    def propagate(self, state: State) -> State | None:
        """Fix cells with one candidate and digits with one place until nothing changes; None is a contradiction.

        The result does not depend on the order of drawing.
        """
        candidates, fixed = state
        num_idle = 0
        while num_idle < len(self._families):
            for family in self._families:
                singles = family.singles(candidates)
                if singles is None:
                    return None
                fresh = singles & ~fixed
                num_idle = 0 if fresh else num_idle + 1
                for bit in bits_of(fresh):
                    candidates &= self.keep[bit]
                fixed |= fresh
        return candidates, fixed

    def is_solved(self, candidates: int) -> bool:
        """Whether propagated candidates are down to one for each cell."""
        return candidates.bit_count() == self.num_cells

    def branches(self, candidates: int) -> list[int]:
        """The candidate bits, digits rising, of the open cell with the fewest (the first in reading order)."""
        plane_mask = (1 << self.num_cells) - 1
        at_least = [plane_mask] + [0] * (self.board.side + 1)  # at_least[n]: cells with n candidates or more
        for digit in range(self.board.side):
            plane = candidates >> digit * self.num_cells & plane_mask
            for count in range(digit, -1, -1):
                at_least[count + 1] |= at_least[count] & plane
        exactly = (at_least[count] & ~at_least[count + 1] for count in range(2, self.board.side + 1))
        cell = next(bits_of(next(cells for cells in exactly if cells)))
        return [bit for bit in range(cell, candidates.bit_length(), self.num_cells) if candidates >> bit & 1]

    def grid(self, candidates: int) -> Grid:
        """The board of solved candidates."""
        side = self.board.side
        data = np.frombuffer(candidates.to_bytes(side * self.num_cells // 8 + 1, "little"), np.uint8)
        has_digit_ST = np.unpackbits(data, count=side * self.num_cells, bitorder="little").reshape(side, self.num_cells)
        return (has_digit_ST.argmax(axis=0) + 1).astype(np.int8).reshape(side, side)

    def search(
        self, state: State, *, max_solutions: int, max_tries: int | None = None, order: CandidateOrder | None = None
    ) -> Outcome:
        """Depth first from a state, until enough solutions are found or the tries are used up."""
        walk = _Walk(self, max_solutions, max_tries, order)
        walk.explore(state)
        grids = tuple(self.grid(solution) for solution in walk.solutions)
        return Outcome(solutions=grids, backtracks=walk.backtracks, is_complete=not walk.ran_out)


class _Walk:
    """The mutable state of one search."""

    def __init__(self, solver: Solver, max_solutions: int, max_tries: int | None, order: CandidateOrder | None) -> None:
        self.solver = solver
        self.max_solutions = max_solutions
        self.tries_left = -1 if max_tries is None else max_tries  # below zero: no bound
        self.order = order
        self.solutions: list[int] = []
        self.backtracks = 0
        self.ran_out = False

    def explore(self, state: State) -> None:
        state_after = self.solver.propagate(state)
        if state_after is None:
            return
        candidates, fixed = state_after
        if self.solver.is_solved(candidates):
            self.solutions.append(candidates)
            return
        branches = self.solver.branches(candidates)
        for bit in branches if self.order is None else self.order(branches):
            if self._is_over():
                return
            self.tries_left -= 1
            self.explore((candidates & self.solver.keep[bit], fixed | 1 << bit))
            self.backtracks += not self.solutions

    def _is_over(self) -> bool:
        self.ran_out |= self.tries_left == 0 and len(self.solutions) < self.max_solutions
        return self.ran_out or len(self.solutions) >= self.max_solutions


@cache
def solver_of(board: Board) -> Solver:
    return Solver(board)


def solve(board: Board, grid: Grid, *, max_solutions: int = 2, max_tries: int | None = None) -> Outcome:
    """Up to `max_solutions` solutions of a question, with at most `max_tries` guesses."""
    solver = solver_of(board)
    return solver.search(solver.given(grid.reshape(-1).tolist()), max_solutions=max_solutions, max_tries=max_tries)


def rating(board: Board, grid: Grid) -> int:
    """Difficulty of a solvable question: the backtracks of this solver up to its first solution.

    Propagation, then the first open cell in reading order with the fewest candidates, digits rising. The number changes
    when the same puzzle is turned or relabelled.
    """
    return solve(board, grid, max_solutions=1).backtracks
