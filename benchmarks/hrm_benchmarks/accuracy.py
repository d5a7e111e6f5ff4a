"""Time to a proven answer: what models and numbers of attempts bring, and what that costs, at the same puzzles.

Everything counted comes from the answers a client would get; only CPU time is measured beside them. Segments are exact
and repeat from run to run, CPU seconds belong to the machine.
"""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hrm_benchmarks.report import Row
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_edge_runtime.solve.puzzles import opened
from hrm_edge_runtime.solve.solvers import Reply, SolveAll, from_bundle, options_of
from hrm_puzzles.data.sources import questions_made
from hrm_puzzles.puzzle import Grid, Puzzle, PuzzleError, Routed
from hrm_puzzles.sudoku import solver as sudoku_solver
from hrm_puzzles.sudoku.sudoku import Sudoku

TIMES_MS = (3, 10, 30, 100, 300, 1000)
COLUMNS = [
    ("model", "{model}"),
    ("parameters", "{parameters:,}"),
    ("file", "{file_kb:,.0f} KB"),
    ("attempts", "{attempts}"),
    ("proven", "{solved} of {puzzles}"),
    ("wrong", "{wrong} of {compared}"),
    ("segments", "{segments_per_puzzle:.1f}"),
    ("of ms", "{segment_ms:.2f}"),
    ("CPU s a proof", "{cpu_s_per_solve:,.3f}"),
    ("cost", "{cost_over_least:.4f}"),
    *((f"{time_ms} ms", f"{{within_{time_ms}_ms:.1f}}") for time_ms in TIMES_MS),
]
PROGRESS = (
    "{model}, {attempts} attempts: {solved} of {puzzles} proven, {wrong} wrong, {cpu_s_per_puzzle:.3f} CPU s a puzzle"
)
LEGEND = """\
wrong:  proven answers that differ from the known solution, or as a way cost more, of those compared
cost:   of the answers that are a way to every stop, proven or not, over the least; mean
segments: of all attempts at a puzzle, and what one costs; CPU s a proof: all CPU time over all proven answers
3 ms ...: proven within that CPU time, % of the puzzles; a puzzle's time is its segments times what one costs"""


class KnownPuzzle(NamedTuple):
    puzzle: object  # as it is asked
    solution: Grid | None  # where that is known


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
    return [
        KnownPuzzle(puzzle=puzzle.decode(asked.tokens_T).tolist(), solution=puzzle.decode(asked.labels_T))
        for asked in questions_made(puzzle, num_puzzles, difficulty=difficulty, seed=seed)
    ]


def provable(models: Sequence[Bundle]) -> Puzzle:
    """The one puzzle of all models; refuses several, and one whose answers cannot be proven."""
    kinds = {model.manifest.puzzle: model.puzzle for model in models}
    if len(kinds) > 1:
        raise ValueError(f"the bundles are for {' and '.join(kinds)}: name bundles of one puzzle.")
    puzzle = models[0].puzzle
    if not puzzle.proof_exists:
        raise ValueError(f"answers to {puzzle.name!r} cannot be proven, so attempts vote: score them with hrm-eval.")
    return puzzle


def measured(
    model: Bundle,
    engine: str,
    puzzles: Sequence[KnownPuzzle],
    attempts: int,
    num_slots: int,
    num_threads: int,
    limits: Row,
) -> Row:
    """What a model is and what so many attempts bring, see `measure`; `limits` as options of hrm-solve."""
    choice = choose(model, engine, num_slots=num_slots)
    solver = from_bundle(model, choice, num_slots=num_slots, num_threads=num_threads)
    return {
        "model": model.manifest.name,
        "parameters": model.manifest.provenance.get("num_parameters"),
        "file_kb": model.graph_path(choice.precision, device="cpu").stat().st_size / 1e3,
        **measure(solver.solve_all, model.puzzle, puzzles, attempts, **options_of(limits)),
    }


def measure(solve_all: SolveAll, puzzle: Puzzle, puzzles: Sequence[KnownPuzzle], attempts: int, **options: Any) -> Row:
    """What so many attempts bring; the CPU time of the process, but for opening the engine.

    `options` are further fields of a request. `wrong` counts answers that were called proven and differ from the known
    solution.
    """
    requests = [SolveRequest(puzzle=p.puzzle, attempts=attempts, **options) for p in puzzles]
    began_s = time.process_time()
    assert not dict(solve_all([]))
    opened_s = time.process_time()
    replies = dict(solve_all(requests))
    cpu_s = max(time.process_time() - opened_s - (opened_s - began_s), 0)
    answers = [_answer(replies[position]) for position in range(len(puzzles))]
    is_right = [
        _is_as_good(puzzle, known, answer)
        for known, answer in zip(puzzles, answers, strict=True)
        if answer.verified is True and known.solution is not None
    ]
    over_least = [way.cost / way.optimum for answer in answers if (way := answer.route) and way.cost]
    is_solved = np.array([answer.verified is True for answer in answers])
    segments = np.array([answer.total_segments for answer in answers])
    segment_ms = 1e3 * cpu_s / segments.sum()
    within = {f"within_{ms}_ms": 100 * (is_solved & (segments * segment_ms <= ms)).mean() for ms in TIMES_MS}
    return {
        "attempts": attempts,
        "solved": int(is_solved.sum()),
        "puzzles": len(answers),
        "wrong": is_right.count(False),
        "compared": len(is_right),
        "segments_per_puzzle": segments.mean(),
        "segment_ms": segment_ms,
        "ways": len(over_least),
        "cost_over_least": np.mean(over_least) if over_least else None,
        "cpu_s_per_puzzle": cpu_s / len(answers),
        "cpu_s_per_solve": cpu_s / is_solved.sum() if is_solved.any() else None,
        **within,
        "is_solved": is_solved.tolist(),
        "segments": segments.tolist(),
    }


def _is_as_good(puzzle: Puzzle, known: KnownPuzzle, answer: SolveAnswer) -> bool:
    """Of several ways with the least cost a known solution is only one."""
    assert known.solution is not None
    if not isinstance(puzzle, Routed) or answer.route is None:
        return np.array_equal(puzzle.parse(answer.solution).grid, known.solution)
    return answer.route.cost == puzzle.route(puzzle.parse(known.puzzle).grid, known.solution).cost


def _answer(reply: Reply) -> SolveAnswer:
    if isinstance(reply, SolveAnswer):
        return reply
    raise ValueError(f"a puzzle is refused: {reply.message}; {reply.remedy}.")
