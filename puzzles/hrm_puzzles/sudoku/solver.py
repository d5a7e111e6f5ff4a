"""An exact Sudoku solver with bounded work.

It rates and checks questions, generation builds on it, and it never answers for the model.

All candidates of a board are bits of one integer: bit d * T + cell means that digit d + 1 may go
into that cell (T cells). So a dozen operations on long integers look at all cells, rows, columns
and boxes at once. Every rule has the form "each of these sets of bits holds exactly one": a digit
for each cell, and a place for each digit in each row, column and box. The sets of one kind are the
same few offsets from many base bits, see `_Family`.

Example with T = 3 cells and 2 digits. The candidates 0b110_001 are bits 0, 4 and 5: digit 1 may go
into cell 0, and digit 2 into cells 1 and 2. The three sets "a digit for a cell" are the bits
{0, 3}, {1, 4} and {2, 5}: base bits 0, 1 and 2, and one offset of 3. Counting shifts the integer by
the offset, which brings the second bit of every set onto its base bit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import cycle

import numpy as np

from hrm_puzzles.grid.board import bits_of
from hrm_puzzles.puzzle import Grid, PuzzleError
from hrm_puzzles.sudoku.board import SudokuBoard

# Guesses in the check of a question, some 30 us each on a 9x9 board. Of 4,949 questions of all
# kinds, many of them chosen because they are hard, 15 need more.
MAX_TRIES = 500

# The remaining candidates, and those of them that are fixed. The consequences of fixed candidates
# are already applied.
State = tuple[int, int]
# Sorts the candidates of a branching cell. They are tried in this order.
CandidateOrder = Callable[[list[int]], list[int]]

UNIT_NAMES = ("row", "column", "box")


@dataclass(frozen=True, kw_only=True)
class Solutions:
    """The outcome of a search: `found` holds the candidates of each solution, one for each cell.

    `backtracks` counts the failed tries before the first solution. If the search used up its
    tries, `is_complete` is false and more solutions may exist.
    """

    board: SudokuBoard
    found: Sequence[int]
    backtracks: int
    is_complete: bool

    @cached_property
    def grids(self) -> list[Grid]:
        return [_grid(self.board, candidates) for candidates in self.found]


def solve(
    board: SudokuBoard,
    grid: Grid,
    *,
    max_solutions: int = 2,
    max_tries: int | None = None,
) -> Solutions:
    """Find up to `max_solutions` solutions of a question with at most `max_tries` guesses."""
    solver = solver_of(board)
    state = solver.given(grid.reshape(-1).tolist())
    return solver.search(state, max_solutions=max_solutions, max_tries=max_tries)


def rating(board: SudokuBoard, grid: Grid) -> int:
    """The difficulty of a solvable question: the backtracks before its first solution.

    A turned or relabeled copy may have another rating.
    """
    return solve(board, grid, max_solutions=1).backtracks


@cache
def solver_of(board: SudokuBoard) -> "SudokuSolver":
    return SudokuSolver(board)


class SudokuSolver:
    """The rules of one board as bit masks. Get one from `solver_of`; it has no mutable state."""

    def __init__(self, board: SudokuBoard) -> None:
        self.board = board
        self.num_cells = board.num_cells
        self._num_bits = board.side * board.num_cells
        self._families = _families_of(board)
        # For each bit, a mask without the other bits of its sets.
        self.keep = [-1] * self._num_bits
        for family in self._families:
            for base in bits_of(family.base):
                members = family.spread << base
                for bit in bits_of(members):
                    self.keep[bit] &= ~members | 1 << bit

    def given(self, cells: Sequence[int]) -> State:
        """The state after the givens (0 for a blank), before any further reasoning."""
        candidates = (1 << self._num_bits) - 1
        fixed = 0
        for cell, digit in enumerate(cells):
            if digit:
                bit = (digit - 1) * self.num_cells + cell
                candidates &= self.keep[bit]
                fixed |= 1 << bit
        return candidates, fixed

    def without(self, state: State, cell: int, digit: int) -> State:
        """The state without one candidate."""
        candidates, fixed = state
        bit = (digit - 1) * self.num_cells + cell
        candidates &= ~(1 << bit)
        return candidates, fixed

    def search(
        self,
        state: State,
        *,
        max_solutions: int,
        max_tries: int | None = None,
        order: CandidateOrder | None = None,
    ) -> Solutions:
        """Search depth first until enough solutions are found or the tries are used up."""
        found: list[int] = []
        waiting = [(state, 0)]  # states and their numbers of guesses, next one last
        num_tries = -1  # the first state is not a try
        backtracks = 0
        while waiting and len(found) < max_solutions and num_tries != max_tries:
            before, num_guesses = waiting.pop()
            num_tries += 1
            after = self.propagate(before)
            if after is None:
                continue
            candidates, fixed = after
            if candidates.bit_count() == self.num_cells:
                if not found:
                    backtracks = num_tries - num_guesses
                found.append(candidates)
                continue
            branches = self.branches(candidates)
            if order is not None:
                branches = order(branches)
            for bit in reversed(branches):
                branch = (candidates & self.keep[bit], fixed | 1 << bit)
                waiting.append((branch, num_guesses + 1))
        if not found:
            backtracks = num_tries
        return Solutions(
            board=self.board,
            found=found,
            backtracks=backtracks,
            is_complete=not waiting or len(found) >= max_solutions,
        )

    def propagate(self, state: State) -> State | None:
        """Fix all cells with one candidate and all digits with one place.

        Repeats until nothing changes. Returns None for a contradiction.
        """
        candidates, fixed = state
        num_idle = 0
        for family in cycle(self._families):
            # Count the candidates of each set up to two: over the inner offsets first, then the
            # partial counts over the outer ones. The result is at the base bit of the set.
            once = candidates
            twice = 0
            for offsets in (family.inner, family.outer):
                part_once = once
                part_twice = twice
                for offset in offsets:
                    more = part_once >> offset
                    twice |= once & more | part_twice >> offset
                    once |= more
            if once & family.base != family.base:
                return None
            single = family.base & ~twice
            fresh = candidates & single * family.spread & ~fixed  # alone in their sets
            fixed |= fresh
            if fresh:
                num_idle = 0
            else:
                num_idle += 1
            if num_idle == len(self._families):
                break
            while fresh:  # `bits_of` without a call per bit
                lowest = fresh & -fresh
                candidates &= self.keep[lowest.bit_length() - 1]
                fresh ^= lowest
        return candidates, fixed

    def branches(self, candidates: int) -> list[int]:
        """The candidate bits, digits rising, of the open cell with the fewest candidates.

        Ties go to the first cell in reading order.
        """
        cell = self._tightest_cell(candidates)
        bits = range(cell, candidates.bit_length(), self.num_cells)
        return [bit for bit in bits if candidates >> bit & 1]

    def _tightest_cell(self, candidates: int) -> int:
        side = self.board.side
        plane_mask = (1 << self.num_cells) - 1
        # at_least[n] holds the cells with n candidates or more.
        at_least = [plane_mask] + [0] * (side + 1)
        for digit in range(side):
            plane = candidates >> digit * self.num_cells & plane_mask
            for count in range(digit, -1, -1):
                at_least[count + 1] |= at_least[count] & plane
        count = 2
        while at_least[count] == at_least[count + 1]:
            count += 1
        exactly = at_least[count] & ~at_least[count + 1]
        return (exactly & -exactly).bit_length() - 1


def _grid(board: SudokuBoard, candidates: int) -> Grid:
    """The grid of a state with one candidate per cell."""
    num_bits = board.side * board.num_cells
    packed = candidates.to_bytes(num_bits // 8 + 1, "little")
    data = np.frombuffer(packed, np.uint8)
    has_digit = np.unpackbits(data, count=num_bits, bitorder="little")
    has_digit_ST = has_digit.reshape(board.side, board.num_cells)
    digits_T = has_digit_ST.argmax(axis=0) + 1
    return digits_T.astype(np.int8).reshape(board.side, board.side)


@dataclass(frozen=True, kw_only=True)
class _Family:
    """A set {b + i + j} for each bit b of `base`, with i in (0, *inner) and j in (0, *outer).

    A solution has exactly one bit of each set.
    """

    base: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @cached_property
    def spread(self) -> int:
        """`bases * spread` are all bits of the sets with these base bits."""
        spread = 0
        for i in (0, *self.inner):
            for j in (0, *self.outer):
                spread |= 1 << i + j
        return spread


def _families_of(board: SudokuBoard) -> list[_Family]:
    """The sets of bits of the rules.

    They are the digits of a cell, and the places of a digit in a row, in a column and in a box.
    """
    side = board.side
    num_cells = board.num_cells
    cols = board.box_cols

    first_cols = range(0, num_cells, side)
    first_rows = range(side)
    corners: list[int] = []
    for row in range(0, side, board.box_rows):
        for col in range(0, side, cols):
            corners.append(row * side + col)

    cell_digits = _family(board, range(num_cells), num_cells, cols * num_cells)
    rows = _family(board, _in_planes(board, first_cols), 1, cols)
    columns = _family(board, _in_planes(board, first_rows), side, cols * side)
    boxes = _family(board, _in_planes(board, corners), 1, side)
    return [cell_digits, rows, columns, boxes]


def _family(board: SudokuBoard, bases: Iterable[int], step: int, outer_step: int) -> _Family:
    """Sets of `side` bits, spaced like the cells of a box: columns inside, rows outside."""
    base = 0
    for bit in bases:
        base |= 1 << bit
    inner = range(step, board.box_cols * step, step)
    outer = range(outer_step, board.box_rows * outer_step, outer_step)
    return _Family(base=base, inner=tuple(inner), outer=tuple(outer))


def _in_planes(board: SudokuBoard, cells: Iterable[int]) -> list[int]:
    """The bits of some cells for every digit."""
    bits: list[int] = []
    for cell in cells:
        bits.extend(range(cell, board.side * board.num_cells, board.num_cells))
    return bits


def check_question(board: SudokuBoard, grid: Grid) -> None:
    """Require givens without clashes and exactly one solution.

    A question passes if MAX_TRIES guesses do not decide it.
    """
    solutions = solve(board, grid, max_solutions=2, max_tries=MAX_TRIES)
    if len(solutions.found) > 1:
        raise _many_solutions(board, *solutions.grids)
    if not solutions.found and solutions.is_complete:
        _check_clashes(board, grid)
        raise _no_solution(board, grid)


def _many_solutions(board: SudokuBoard, one: Grid, other: Grid) -> PuzzleError:
    one_T = one.reshape(-1)
    other_T = other.reshape(-1)
    cell = int(np.argmax(one_T != other_T))
    digits = f"{one_T[cell]} or {other_T[cell]}"
    problem = f"the puzzle has more than one solution: {_at(board, cell)} can be {digits}"
    remedy = "give more digits, for example this one"
    return PuzzleError(problem, "many-solutions", remedy, board.cell_name(cell))


def _no_solution(board: SudokuBoard, grid: Grid) -> PuzzleError:
    """The error names the first open cell that already sees every digit, if there is one."""
    problem = "the puzzle has no solution"
    remedy = "compare the givens with the source of the puzzle"
    cells = grid.reshape(-1)
    for cell in np.flatnonzero(cells == 0).tolist():
        is_peer_T = (board.groups_GT == board.groups_GT[:, cell, None]).any(axis=0)
        seen = set(cells[is_peer_T].tolist()) - {0}
        if len(seen) == board.side:
            detail = f"no digit can go {_at(board, cell)}"
            name = board.cell_name(cell)
            return PuzzleError(f"{problem}: {detail}", "no-solution", remedy, name)
    return PuzzleError(problem, "no-solution", remedy)


def _check_clashes(board: SudokuBoard, grid: Grid) -> None:
    cells = grid.reshape(-1).tolist()
    for unit, members in enumerate(board.units_US.tolist()):
        first_cell: dict[int, int] = {}
        for cell in members:
            digit = cells[cell]
            if digit and digit in first_cell:
                kind, number = divmod(unit, board.side)
                name = f"{UNIT_NAMES[kind]} {number + 1}"
                places = f"{_at(board, first_cell[digit])} and {_at(board, cell)}"
                problem = f"{digit} is given twice in {name}, {places}"
                remedy = "change or clear one of the two"
                raise PuzzleError(problem, "clashing-givens", remedy, board.cell_name(cell))
            first_cell[digit] = cell


def _at(board: SudokuBoard, cell: int) -> str:
    row, col = board.cell_name(cell)
    return f"at row {row}, column {col}"
