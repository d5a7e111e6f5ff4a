"""What trying harder brings: puzzles solved, and what that costs, for each number of attempts at the same puzzles.

Everything counted comes from the answers a client would get; only CPU time is measured beside them. Segments are exact
and repeat from run to run, CPU seconds belong to the machine.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hrm_benchmarks.report import Row, new_figure
from hrm_edge_runtime.bundle import Bundle
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.solvers import Reply, SolveAll, opened
from hrm_puzzles.data.sources import questions_made
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
PROGRESS = (
    "{attempts} attempts: {solved} of {puzzles} solved, {wrong} wrong, {segments_per_puzzle:.1f} segments and "
    "{cpu_s_per_puzzle:.2f} CPU s a puzzle"
)
LEGEND = """\
solved:  proven answers; wrong: those that differ from the known solution, of those compared
segments, CPU s:  all attempts together, for each puzzle and for each solve
x first: beside the first row of this run: solves, segments, CPU seconds"""


class KnownPuzzle(NamedTuple):
    """A question, as it is asked, and its solution; None where that is not known."""

    puzzle: object
    solution: Grid | None


def puzzles_from_file(path: Path, puzzle: Puzzle, num_puzzles: int) -> list[KnownPuzzle]:
    """The first puzzles of a file in any form that hrm-solve reads; a Sudoku's missing solution is worked out.

    Refuses what is no question.
    """
    found: list[KnownPuzzle] = []
    with opened(str(path), puzzle.seq_len) as entries:
        for entry in itertools.islice(entries, num_puzzles):
            try:
                grid = puzzle.parse(entry.puzzle).grid
                solution = None if entry.known is None else puzzle.parse(entry.known).grid
            except PuzzleError as error:
                raise ValueError(f"puzzle {entry.number}: {error}") from error
            if solution is None and isinstance(puzzle, Sudoku):
                solution = sudoku_solver.solve(puzzle, grid, max_solutions=1).grids[0]
            found.append(KnownPuzzle(puzzle=entry.puzzle, solution=solution))
    if not found:
        raise ValueError(f"{path} holds no puzzle: write one in each line.")
    return found


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
    solve_all: SolveAll, puzzle: Puzzle, puzzles: Sequence[KnownPuzzle], attempts: Sequence[int], limit: int | None
) -> Iterator[Row]:
    """A row for each number of attempts of at most `limit` segments, one after the other; ratios are to the first row.

    `wrong` counts answers that were called proven and differ from the known solution. CPU seconds are of the whole
    process, with opening the engine.
    """
    first: Row = {}
    for num_attempts in attempts:
        requests = [SolveRequest(puzzle=p.puzzle, attempts=num_attempts, max_segments=limit) for p in puzzles]
        began_s = time.process_time()
        replies = dict(solve_all(requests))
        cpu_s = time.process_time() - began_s
        answers = [_answer(replies[position]) for position in range(len(puzzles))]
        is_right = [
            np.array_equal(puzzle.parse(answer.solution).grid, known.solution)
            for known, answer in zip(puzzles, answers, strict=True)
            if answer.verified is True and known.solution is not None
        ]
        row = {"attempts": num_attempts, "wrong": is_right.count(False), "compared": len(is_right)}
        row |= _totals(answers, cpu_s)
        first = first or row
        yield {
            **row,
            "solved_ratio": row["solved"] / first["solved"] if first["solved"] else None,
            "segments_ratio": row["segments_per_puzzle"] / first["segments_per_puzzle"],
            "cpu_ratio": row["cpu_s_per_puzzle"] / first["cpu_s_per_puzzle"],
        }


def _totals(answers: Sequence[SolveAnswer], cpu_s: float) -> dict[str, Any]:
    is_solved = [answer.verified is True for answer in answers]
    segments = [answer.total_segments for answer in answers]
    solved = sum(is_solved)
    return {
        "solved": solved,
        "puzzles": len(answers),
        "segments_per_puzzle": sum(segments) / len(answers),
        "segments_per_solve": sum(segments) / solved if solved else None,
        "cpu_s_per_puzzle": cpu_s / len(answers),
        "cpu_s_per_solve": cpu_s / solved if solved else None,
        "is_solved": is_solved,
        "segments": segments,
    }


def _answer(reply: Reply) -> SolveAnswer:
    if isinstance(reply, SolveAnswer):
        return reply
    raise ValueError(f"a puzzle is refused: {reply.message}; {reply.remedy}.")


def save_picture(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Share solved over attempts, and over the compute spent on a puzzle."""
    figure = new_figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
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
