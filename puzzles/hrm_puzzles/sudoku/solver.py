"""An exact Sudoku solver, bounded in work: it generates, rates and checks questions, and never answers for the model.

All candidates of a board are bits of one integer, so that a dozen operations on long integers look at all cells, rows,
columns and boxes at once: bit d * T + cell says that digit d + 1 may go into that cell (T cells). Every rule has one
form, "each of these sets of bits holds exactly one": a digit for each cell; a place for each digit in each row, column
and box. The sets of one kind are the same few offsets from many base bits.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import cycle

import numpy as np

from hrm_puzzles.grid.board import bits_of
from hrm_puzzles.puzzle import Example, Grid, PuzzleError
from hrm_puzzles.sudoku.board import SudokuBoard

# Some 30 us each on a 9x9 board. Of 4,949 questions of all kinds, many chosen for being hard, 15 would need more.
MAX_TRIES = 500

# The candidates that are left, and those of them that are fixed: what follows from them is left out already.
State = tuple[int, int]
# Puts the candidates of a branching cell in the order in which they are tried.
CandidateOrder = Callable[[list[int]], list[int]]


@dataclass(frozen=True, kw_only=True)
class Solutions:
    """`backtracks`: tries without a solution before the first one. Incomplete where tries ran out: others may exist."""

    grids: tuple[Grid, ...]
    backtracks: int
    is_complete: bool


def solve(board: SudokuBoard, grid: Grid, *, max_solutions: int = 2, max_tries: int | None = None) -> Solutions:
    """Up to `max_solutions` solutions of a question, with at most `max_tries` guesses."""
    solver = solver_of(board)
    return solver.search(solver.given(grid.reshape(-1).tolist()), max_solutions=max_solutions, max_tries=max_tries)


def rating(board: SudokuBoard, grid: Grid) -> int:
    """Difficulty of a solvable question: backtracks to its first solution. Turned or relabelled it may have another."""
    return solve(board, grid, max_solutions=1).backtracks


@cache
def solver_of(board: SudokuBoard) -> "SudokuSolver":
    return SudokuSolver(board)


class SudokuSolver:
    """The rules of one board as bit masks; stateless after construction. Get one from `solver_of`."""

    def __init__(self, board: SudokuBoard) -> None:
        self.board = board
        self.num_cells = board.num_cells
        self._families = _families_of(board)
        self.keep = [-1] * (board.side * self.num_cells)  # for each bit, all but the others of its sets
        for family in self._families:
            for base in bits_of(family.base):
                members = family.spread << base
                for bit in bits_of(members):
                    self.keep[bit] &= ~members | 1 << bit

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

    def search(
        self, state: State, *, max_solutions: int, max_tries: int | None = None, order: CandidateOrder | None = None
    ) -> Solutions:
        """Depth first from a state, until enough solutions are found or the tries are used up."""
        grids: list[Grid] = []
        waiting = [(state, 0)]  # states and their numbers of guesses, the next to explore last
        num_tries, backtracks = -1, 0  # the given state is no try
        while waiting and len(grids) < max_solutions and num_tries != max_tries:
            before, num_guesses = waiting.pop()
            num_tries += 1
            after = self.propagate(before)
            if after is None:
                continue
            candidates, fixed = after
            if candidates.bit_count() == self.num_cells:
                backtracks = backtracks if grids else num_tries - num_guesses
                grids.append(self._grid(candidates))
                continue
            branches = self.branches(candidates)
            for bit in reversed(branches if order is None else order(branches)):
                waiting.append(((candidates & self.keep[bit], fixed | 1 << bit), num_guesses + 1))
        is_complete = not waiting or len(grids) >= max_solutions
        return Solutions(grids=tuple(grids), backtracks=backtracks if grids else num_tries, is_complete=is_complete)

    def propagate(self, state: State) -> State | None:
        """Fix cells with one candidate and digits with one place until nothing changes; None is a contradiction."""
        candidates, fixed = state
        num_idle = 0
        for family in cycle(self._families):
            once, twice = candidates, 0  # sets are counted as far as two: over inner offsets, then these over outer
            for offsets in (family.inner, family.outer):
                part_once, part_twice = once, twice
                for offset in offsets:
                    more = part_once >> offset
                    twice |= once & more | part_twice >> offset
                    once |= more
            if once & family.base != family.base:
                return None
            fresh = candidates & (family.base & ~twice) * family.spread & ~fixed  # the only ones of a set
            fixed |= fresh
            num_idle = 0 if fresh else num_idle + 1
            if num_idle == len(self._families):
                break
            while fresh:  # as `bits_of`, without a call for each bit
                lowest = fresh & -fresh
                candidates &= self.keep[lowest.bit_length() - 1]
                fresh ^= lowest
        return candidates, fixed

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

    def _grid(self, candidates: int) -> Grid:
        side = self.board.side
        data = np.frombuffer(candidates.to_bytes(side * self.num_cells // 8 + 1, "little"), np.uint8)
        has_digit_ST = np.unpackbits(data, count=side * self.num_cells, bitorder="little").reshape(side, self.num_cells)
        return (has_digit_ST.argmax(axis=0) + 1).astype(np.int8).reshape(side, side)


@dataclass(frozen=True, kw_only=True)
class _Family:
    """Sets {b + i + j}, b in `base`, i in 0 and `inner`, j in 0 and `outer`; each has exactly one bit of a solution."""

    base: int
    inner: tuple[int, ...]
    outer: tuple[int, ...]

    @cached_property
    def spread(self) -> int:
        """`bases * spread` are all bits of the sets that begin at these base bits."""
        return sum(1 << i + j for i in (0, *self.inner) for j in (0, *self.outer))


def _families_of(board: SudokuBoard) -> list[_Family]:
    """Digits of a cell; places of a digit in a row, in a column, in a box."""
    side, num_cells, rows, cols = board.side, board.num_cells, board.box_rows, board.box_cols
    starts = range(0, side * num_cells, num_cells)

    def family(bases: Iterable[int], step: int, outer_step: int) -> _Family:
        """Sets of `side` bits, counted off as the cells of a box are: `cols` steps, and `rows` outer ones."""
        inner, outer = range(step, cols * step, step), range(outer_step, rows * outer_step, outer_step)
        return _Family(base=sum(1 << bit for bit in bases), inner=tuple(inner), outer=tuple(outer))

    def in_planes(cells: Iterable[int]) -> Iterable[int]:
        return (start + cell for cell in cells for start in starts)

    corners = (row * side + col for row in range(0, side, rows) for col in range(0, side, cols))
    return [
        family(range(num_cells), num_cells, cols * num_cells),
        family(in_planes(range(0, num_cells, side)), 1, cols),
        family(in_planes(range(side)), side, cols * side),
        family(in_planes(corners), 1, side),
    ]


def check_question(board: SudokuBoard, grid: Grid) -> None:
    """Refuse clashing givens, and no or several solutions; what MAX_TRIES guesses do not decide is let through."""
    found = solve(board, grid, max_solutions=2, max_tries=MAX_TRIES)
    if len(found.grids) > 1:
        one, other = (solution.reshape(-1) for solution in found.grids)
        cell = int(np.argmax(one != other))
        problem = f"the puzzle has more than one solution: {_at(board, cell)} can be {one[cell]} or {other[cell]}"
        remedy = "give more digits, for example this one"
        raise PuzzleError(problem, "many-solutions", remedy, board.cell_name(cell))
    if not found.grids and found.is_complete:
        _check_clashes(board, grid)
        remedy = "compare the givens with the source of the puzzle"
        for cell in np.flatnonzero(grid == 0).tolist():
            is_peer_T = (board.groups_GT == board.groups_GT[:, cell, None]).any(axis=0)
            if len(set(grid.reshape(-1)[is_peer_T].tolist()) - {0}) == board.side:  # it sees every digit
                problem = f"the puzzle has no solution: no digit can go {_at(board, cell)}"
                raise PuzzleError(problem, "no-solution", remedy, board.cell_name(cell))
        raise PuzzleError("the puzzle has no solution", "no-solution", remedy)


def _check_clashes(board: SudokuBoard, grid: Grid) -> None:
    cells = grid.reshape(-1).tolist()
    for unit, members in enumerate(board.units_US.tolist()):
        first_cell: dict[int, int] = {}
        for cell in members:
            digit = cells[cell]
            if digit and digit in first_cell:
                name = f"{('row', 'column', 'box')[unit // board.side]} {unit % board.side + 1}"
                places = f"{_at(board, first_cell[digit])} and {_at(board, cell)}"
                problem, remedy = f"{digit} is given twice in {name}, {places}", "change or clear one of the two"
                raise PuzzleError(problem, "clashing-givens", remedy, board.cell_name(cell))
            first_cell[digit] = cell


def _at(board: SudokuBoard, cell: int) -> str:
    row, col = board.cell_name(cell)
    return f"at row {row}, column {col}"


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


def generate(board: SudokuBoard, rng: np.random.Generator, difficulty: str) -> Example:
    """A question with one solution, of one of the DIFFICULTIES, with its answer and its rating.

    Clues are taken out of a random full grid in random order, each only while the solution stays unique, until the
    share of givens that the difficulty asks for is reached or every given is needed.
    """
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
