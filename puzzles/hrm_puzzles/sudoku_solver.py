"""An exact Sudoku solver, bounded in work: it generates, rates and checks questions, and never answers for the model.

All candidates of a board stand in one integer (see `sudoku_masks`), so that a dozen operations on long integers look at
all cells, rows, columns and boxes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from hrm_puzzles.bits import bits_of
from hrm_puzzles.puzzle import Grid
from hrm_puzzles.sudoku_board import Board
from hrm_puzzles.sudoku_masks import families_of, rivals_of

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
        families = families_of(board)
        # The first offset of every family is 0: those bits need no shift.
        self._sets = [(family.base, family.offsets[1:], family.spread) for family in families]
        self.keep = [~rivals for rivals in rivals_of(board, families)]

    def candidates(self, cells: Sequence[int]) -> int:
        """What the givens leave open (0 for a blank), before any reasoning."""
        candidates = (1 << self.board.side * self.num_cells) - 1
        for cell, digit in enumerate(cells):
            if digit:
                candidates &= self.keep[(digit - 1) * self.num_cells + cell]
        return candidates

    def without(self, candidates: int, cell: int, digit: int) -> int:
        return candidates & ~(1 << (digit - 1) * self.num_cells + cell)

    def propagate(self, candidates: int, fixed: int = 0) -> tuple[int, int] | None:
        """Fix cells with one candidate and digits with one place until nothing changes; None is a contradiction.

        `fixed` are the bits whose consequences are already drawn. The result does not depend on the order of drawing.
        """
        while True:
            singles = self._singles(candidates)
            if singles is None:
                return None
            fresh = singles & ~fixed
            if not fresh:
                return candidates, fixed
            fixed |= fresh
            for bit in bits_of(fresh):
                candidates &= self.keep[bit]

    def _singles(self, candidates: int) -> int | None:
        singles = 0
        for base, offsets, spread in self._sets:
            once, twice = candidates, 0
            for offset in offsets:
                shifted = candidates >> offset
                twice |= once & shifted
                once |= shifted
            if once & base != base:
                return None
            singles |= candidates & ((base & ~twice) * spread)
        return singles

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
        cells = [0] * self.num_cells
        for bit in bits_of(candidates):
            cells[bit % self.num_cells] = bit // self.num_cells + 1
        return np.array(cells, dtype=np.int8).reshape(self.board.side, self.board.side)

    def search(
        self, candidates: int, *, max_solutions: int, max_tries: int | None = None, order: CandidateOrder | None = None
    ) -> Outcome:
        """Depth first from the given candidates, until enough solutions are found or the tries are used up."""
        walk = _Walk(self, max_solutions, max_tries, order)
        walk.explore(candidates, 0)
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

    def explore(self, candidates: int, fixed: int) -> None:
        state = self.solver.propagate(candidates, fixed)
        if state is None:
            return
        if self.solver.is_solved(state[0]):
            self.solutions.append(state[0])
            return
        branches = self.solver.branches(state[0])
        for bit in branches if self.order is None else self.order(branches):
            if self._is_over():
                return
            self._try(*state, bit)

    def _try(self, candidates: int, fixed: int, bit: int) -> None:
        self.tries_left -= 1
        self.explore(candidates & self.solver.keep[bit], fixed | 1 << bit)
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
    return solver.search(solver.candidates(grid.reshape(-1).tolist()), max_solutions=max_solutions, max_tries=max_tries)


def rating(board: Board, grid: Grid) -> int:
    """Difficulty of a solvable question: the backtracks of this solver up to its first solution.

    Propagation, then the first open cell in reading order with the fewest candidates, digits rising. The number changes
    when the same puzzle is turned or relabelled.
    """
    return solve(board, grid, max_solutions=1).backtracks
