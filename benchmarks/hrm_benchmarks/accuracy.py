"""What trying harder brings: puzzles solved, and what that costs, for each number of attempts at the same puzzles.

Everything counted comes from the answers a client would get; only CPU time is measured beside them. Segments are exact
and repeat from run to run, CPU seconds belong to the machine.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hrm_benchmarks.report import Row
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.client import ServerError
from hrm_edge_runtime.solve.reading import Entry, opened
from hrm_edge_runtime.solve.solvers import Reply, SolveAll
from hrm_puzzles.data.held_out import questions_made
from hrm_puzzles.puzzle import Grid, Puzzle, PuzzleError
from hrm_puzzles.sudoku import solver as sudoku_solver
from hrm_puzzles.sudoku.sudoku import Sudoku

COLUMNS = [
    ("attempts", "{attempts}"),
    ("solved", "{solved} of {puzzles}"),
    ("wrong", "{wrong} of {compared}"),
    ("segments", "{segments_per_puzzle:.1f}"),
    ("a solve", "{segments_per_solve:,.0f}"),
    ("CPU s", "{cpu_s_per_puzzle:.2f}"),
    ("a solve", "{cpu_s_per_solve:,.2f}"),
    ("x first", "{solved_ratio:,.2f} / {segments_ratio:.2f} / {cpu_ratio:.2f}"),
]
LEGEND = """\
solved:  proven answers; wrong: those that differ from the known solution, of those compared
segments, CPU s:  all attempts together, for each puzzle and for each solve
x first: beside the first row of this run: solves, segments, CPU seconds"""


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownPuzzle:
    """A question, as it is asked, and its solution; None where that is not known."""

    puzzle: object
    solution: Grid | None


@dataclass(frozen=True, kw_only=True)
class Level:
    """One number of attempts over all puzzles; lists hold a value for each puzzle.

    `num_wrong` counts answers that were called proven and differ from the known solution; `cpu_s` is of the whole
    process, with opening the engine.
    """

    attempts: int
    is_solved: list[bool]
    segments: list[int]
    num_wrong: int
    num_compared: int
    cpu_s: float

    @property
    def num_solved(self) -> int:
        return sum(self.is_solved)

    def text(self) -> str:
        num_puzzles = len(self.segments)
        return (
            f"{self.attempts} attempts: {self.num_solved} of {num_puzzles} solved, {self.num_wrong} wrong, "
            f"{sum(self.segments) / num_puzzles:.1f} segments and {self.cpu_s / num_puzzles:.2f} CPU s a puzzle"
        )


def puzzles_from_file(path: Path, puzzle: Puzzle, num_puzzles: int) -> list[KnownPuzzle]:
    """The first puzzles of a file in any form that hrm-solve reads; a Sudoku's missing solution is worked out.

    Refuses what is no question.
    """
    with opened(str(path), puzzle.seq_len) as entries:
        found = [_known(puzzle, entry) for entry, _ in zip(entries, range(num_puzzles), strict=False)]
    if not found:
        raise ValueError(f"{path} holds no puzzle: write one in each line.")
    return found


def _known(puzzle: Puzzle, entry: Entry) -> KnownPuzzle:
    try:
        grid = puzzle.parse(entry.puzzle).grid
        solution = None if entry.known is None else puzzle.parse(entry.known).grid
    except PuzzleError as error:
        raise ValueError(f"puzzle {entry.number}: {error}") from error
    if solution is None and isinstance(puzzle, Sudoku):
        solution = sudoku_solver.solve(puzzle.board, grid, max_solutions=1).grids[0]
    return KnownPuzzle(puzzle=entry.puzzle, solution=solution)


def generated(puzzle: Puzzle, difficulty: str, num_puzzles: int, seed: int) -> list[KnownPuzzle]:
    """Fresh puzzles of one difficulty, with their solutions."""
    return [
        KnownPuzzle(puzzle=puzzle.decode(asked.tokens_T).tolist(), solution=puzzle.decode(asked.labels_T))
        for asked in questions_made(puzzle, num_puzzles, difficulty=difficulty, seed=seed)
    ]


def require_proofs(bundle: Bundle) -> None:
    """Refuse a bundle whose answers cannot be proven."""
    if not bundle.puzzle.proof_exists:
        raise ValueError(
            f"answers to {bundle.puzzle.name!r} cannot be proven, so attempts vote: score them with hrm-train's "
            "evaluation of its data set."
        )


def measure(
    solve_all: SolveAll,
    puzzle: Puzzle,
    puzzles: Sequence[KnownPuzzle],
    attempts: Sequence[int],
    max_segments: int | None,
) -> Iterator[Level]:
    """Solve every puzzle with each number of attempts, one after the other."""
    for num_attempts in attempts:
        requests = [SolveRequest(puzzle=p.puzzle, attempts=num_attempts, max_segments=max_segments) for p in puzzles]
        began_s = time.process_time()
        replies = dict(solve_all(requests))
        cpu_s = time.process_time() - began_s
        answers = [_answer(replies[position]) for position in range(len(puzzles))]
        is_right = [
            np.array_equal(puzzle.parse(answer.solution).grid, known.solution)
            for known, answer in zip(puzzles, answers, strict=True)
            if answer.verified is True and known.solution is not None
        ]
        yield Level(
            attempts=num_attempts,
            is_solved=[answer.verified is True for answer in answers],
            segments=[answer.total_segments for answer in answers],
            num_wrong=is_right.count(False),
            num_compared=len(is_right),
            cpu_s=cpu_s,
        )


def _answer(reply: Reply) -> SolveAnswer:
    if isinstance(reply, SolveAnswer):
        return reply
    refusal = reply.detail if isinstance(reply, ServerError) else reply
    raise ValueError(f"a puzzle is refused: {refusal.message}; {refusal.remedy}.")


def figures(levels: Sequence[Level]) -> list[Row]:
    """Every level beside the first."""
    return [_figures(level, levels[0]) for level in levels]


def _figures(level: Level, first: Level) -> Row:
    num_puzzles, solved, segments = len(level.segments), level.num_solved, sum(level.segments)
    return {
        "attempts": level.attempts,
        "solved": solved,
        "puzzles": num_puzzles,
        "wrong": level.num_wrong,
        "compared": level.num_compared,
        "segments_per_puzzle": segments / num_puzzles,
        "segments_per_solve": segments / solved if solved else None,
        "cpu_s_per_puzzle": level.cpu_s / num_puzzles,
        "cpu_s_per_solve": level.cpu_s / solved if solved else None,
        "solved_ratio": solved / first.num_solved if first.num_solved else None,
        "segments_ratio": segments / sum(first.segments),
        "cpu_ratio": level.cpu_s / first.cpu_s,
        "is_solved": level.is_solved,
        "segments": level.segments,
    }


def save_picture(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Share solved over attempts, and over the compute spent on a puzzle."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ValueError("--png needs matplotlib: run pip install matplotlib.") from error
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    shares = [100 * row["solved"] / row["puzzles"] for row in rows]
    attempts = [row["attempts"] for row in rows]
    over = {"attempts": attempts, "segments spent on a puzzle": [row["segments_per_puzzle"] for row in rows]}
    for axis, (name, values) in zip(axes, over.items(), strict=True):
        axis.plot(values, shares, marker="o", color="#2a66a3")
        axis.set_xscale("log")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3)
        axis.margins(x=0.12)
        for value, share, number in zip(values, shares, attempts, strict=True):
            axis.annotate(f"{number}×", (value, share), textcoords="offset points", xytext=(5, -11))
    axes[0].set_xticks(attempts, [str(number) for number in attempts])
    axes[0].set_ylabel("solved, all proven (%)")
    axes[0].set_ylim(0, 105)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)
