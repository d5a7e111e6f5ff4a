"""Answers and solvers for the tests of `hrm-solve`."""

from typing import Any

from hrm_edge_runtime.api.schema import SolveAnswer
from hrm_edge_runtime.solve.solvers import SolveAll, Solver
from hrm_puzzles import registry

SOLVED = "1234341221434321"
OPEN = "123434122143432."
PUZZLE = registry.get("sudoku-4x4")
USUAL: dict[str, Any] = {
    "how": "plain",
    "segments": 2,
    "margin": 1.0,
    "queue_ms": 0.0,
    "compute_ms": 1.0,
    "model": "m",
    "attempts": 1,
    "total_segments": 2,
    "votes": None,
    "vote_share": None,
}


def answer(puzzle: object, *, solved: bool = True) -> SolveAnswer:
    """Return a proven answer, or one that ran out of segments."""
    status = "proven" if solved else "unfinished"
    halted_by = "proven" if solved else "max_segments"
    verdict = {"status": status, "halted_by": halted_by, "solved": solved, "verified": solved}
    return SolveAnswer(solution=puzzle, **verdict, **USUAL)


def solver_of(solve_all: SolveAll) -> Solver:
    return Solver(puzzles={"m": PUZZLE}, solve_all=solve_all)
