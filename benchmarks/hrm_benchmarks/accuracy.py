"""What trying harder brings: puzzles solved, and what that costs, for each number of attempts at the same puzzles.

Everything counted comes from the answers a client would get; only CPU time is measured beside them. Segments are exact
and repeat from run to run, CPU seconds belong to the machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.reading import Entry, opened
from hrm_edge_runtime.solve.solvers import Reply, SolveAll
from hrm_puzzles.data.held_out import questions_made
from hrm_puzzles.puzzle import Grid, Puzzle, PuzzleError
from hrm_puzzles.sudoku import solver as sudoku_solver
from hrm_puzzles.sudoku.sudoku import Sudoku


@dataclass(frozen=True, kw_only=True, eq=False)
class Known:
    """A question, as it is asked, and its solution; None where nobody tells it."""

    puzzle: object
    solution: Grid | None


@dataclass(frozen=True, kw_only=True)
class Level:
    """One number of attempts over all puzzles; lists hold a value for each puzzle.

    `num_wrong` counts answers that were called proven and differ from the known solution; `cpu_s` is of the whole
    process, with opening the engine.
    """

    attempts: int
    max_segments: int | None
    is_solved: list[bool]
    segments: list[int]
    num_wrong: int
    num_compared: int
    cpu_s: float

    @property
    def num_solved(self) -> int:
        return sum(self.is_solved)

    @property
    def total_segments(self) -> int:
        return sum(self.segments)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A level as the table shows it; the ratios compare it with the first level of the same run."""

    attempts: int
    solved: int
    puzzles: int
    wrong: int
    compared: int
    segments_per_puzzle: float
    segments_per_solve: float | None
    cpu_s_per_puzzle: float
    cpu_s_per_solve: float | None
    solved_ratio: float | None
    segments_ratio: float
    cpu_ratio: float


def questions_from_file(path: Path, puzzle: Puzzle, num_puzzles: int) -> list[Known]:
    """The first puzzles of a file in any form that hrm-solve reads; a Sudoku's solution is worked out where it lacks.

    Refuses what is no question.
    """
    with opened(str(path), puzzle.seq_len) as entries:
        found = [_known(puzzle, entry) for entry, _ in zip(entries, range(num_puzzles), strict=False)]
    if not found:
        raise ValueError(f"{path} holds no puzzle: write one in each line.")
    return found


def generated(puzzle: Puzzle, difficulty: str, num_puzzles: int, seed: int) -> list[Known]:
    """Fresh puzzles of one difficulty, with their answers."""
    return [
        Known(puzzle=puzzle.decode(asked.tokens_T).tolist(), solution=puzzle.decode(asked.labels_T))
        for asked in questions_made(puzzle, num_puzzles, difficulty=difficulty, seed=seed)
    ]


def measure(
    solve_all: SolveAll,
    puzzle: Puzzle,
    questions: Sequence[Known],
    attempts: Sequence[int],
    max_segments: int | None,
) -> Iterator[Level]:
    """Solve every question with each number of attempts, one after the other."""
    for num_attempts in attempts:
        requests = [SolveRequest(puzzle=q.puzzle, attempts=num_attempts, max_segments=max_segments) for q in questions]
        began_s = time.process_time()
        outcomes = dict(solve_all(requests))
        cpu_s = time.process_time() - began_s
        answers = [_answer(outcomes[position]) for position in range(len(questions))]
        compared = [pair for pair in zip(questions, answers, strict=True) if _can_be_compared(*pair)]
        yield Level(
            attempts=num_attempts,
            max_segments=max_segments,
            is_solved=[answer.verified is True for answer in answers],
            segments=[answer.total_segments for answer in answers],
            num_wrong=sum(not _agrees(puzzle, question, answer) for question, answer in compared),
            num_compared=len(compared),
            cpu_s=cpu_s,
        )


def figures(levels: Sequence[Level]) -> list[Figures]:
    """Every level beside the first."""
    return [_figures(level, levels[0]) for level in levels]


def require_proofs(bundle: Bundle) -> None:
    """Refuse a bundle whose answers nobody can prove."""
    if not bundle.puzzle.proof_exists:
        raise ValueError(
            f"answers to {bundle.puzzle.name!r} cannot be proven, so attempts vote: score them with hrm-train's "
            "evaluation of its data set."
        )


def _known(puzzle: Puzzle, entry: Entry) -> Known:
    try:
        grid = puzzle.parse(entry.puzzle).grid
        solution = None if entry.known is None else puzzle.parse(entry.known).grid
    except PuzzleError as error:
        raise ValueError(f"puzzle {entry.number}: {error}") from error
    if solution is None and isinstance(puzzle, Sudoku):
        solution = sudoku_solver.solve(puzzle.board, grid, max_solutions=1).grids[0]
    return Known(puzzle=entry.puzzle, solution=solution)


def _answer(outcome: Reply) -> SolveAnswer:
    if isinstance(outcome, SolveAnswer):
        return outcome
    assert isinstance(outcome, ServiceError), "a bundle opened here is no server"
    raise ValueError(f"a puzzle is refused: {outcome.message}; {outcome.remedy}.")


def _can_be_compared(question: Known, answer: SolveAnswer) -> bool:
    return answer.verified is True and question.solution is not None


def _agrees(puzzle: Puzzle, question: Known, answer: SolveAnswer) -> bool:
    assert question.solution is not None
    return np.array_equal(puzzle.parse(answer.solution).grid, question.solution)


def _figures(level: Level, first: Level) -> Figures:
    num_puzzles, solved = len(level.segments), level.num_solved
    return Figures(
        attempts=level.attempts,
        solved=solved,
        puzzles=num_puzzles,
        wrong=level.num_wrong,
        compared=level.num_compared,
        segments_per_puzzle=level.total_segments / num_puzzles,
        segments_per_solve=level.total_segments / solved if solved else None,
        cpu_s_per_puzzle=level.cpu_s / num_puzzles,
        cpu_s_per_solve=level.cpu_s / solved if solved else None,
        solved_ratio=solved / first.num_solved if first.num_solved else None,
        segments_ratio=level.total_segments / first.total_segments,
        cpu_ratio=level.cpu_s / first.cpu_s,
    )
