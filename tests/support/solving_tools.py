"""What the tests of `hrm-solve` share."""

from collections.abc import Callable, Iterable

from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.solvers import Reply, Solver
from hrm_puzzles import registry

SOLVED = "1234341221434321"
OPEN = "123434122143432."
PUZZLE = registry.get("sudoku-4x4")


def answer(puzzle: object, *, solved: bool = True) -> SolveAnswer:
    return SolveAnswer(
        solution=puzzle,
        status="proven" if solved else "unfinished",
        how="plain",
        solved=solved,
        verified=solved,
        segments=2,
        halted_by="proven" if solved else "max_segments",
        margin=1.0,
        queue_ms=0.0,
        compute_ms=1.0,
        model="m",
        attempts=1,
        total_segments=2,
        votes=None,
        vote_share=None,
    )


def solver_of(solve_all: Callable[[Iterable[SolveRequest]], Iterable[tuple[int, Reply]]]) -> Solver:
    return Solver(puzzles={"m": PUZZLE}, solve_all=solve_all)
