"""CPU time to a proven answer, for models and numbers of attempts on the same puzzles.

All counts come from the answers that a client gets; only the CPU time is measured beside them.
Numbers of segments repeat exactly from run to run. CPU seconds depend on the machine.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hrm_benchmarks.command import AccuracyOptions, questions_of, texts_of
from hrm_benchmarks.report import Row
from hrm_edge.solvers import Reply, SolveAll, from_bundles, options_of
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import board_size
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.engines.factory import choose
from hrm_puzzles import registry
from hrm_puzzles.data.sources import HeldOutPuzzle, Questions
from hrm_puzzles.puzzle import Puzzle, Routed, sized

COLUMNS = {
    "model": "{model} on {board}",
    "parameters": "{parameters:,}",
    "file": "{file_kb:,.0f} KB",
    "attempts": "{attempts}",
    "proven": "{solved} of {puzzles}",
    "wrong": "{wrong} of {compared}",
    "segments": "{segments_per_puzzle:.1f}",
    "of ms": "{segment_ms:.2f}",
    "CPU s a proof": "{cpu_s_per_solve:,.3f}",
    "cost": "{cost_over_least:.4f}",
}
PROGRESS = "{model} on {board}, {attempts} attempts: {solved} of {puzzles} proven, {wrong} wrong"
LEGEND = """\
wrong:  answers of those compared that differ from the known solution; routes that cost more
cost:   mean cost of the answers that are a complete route, proven or not, over the minimum
segments, of ms: segments of all attempts at a puzzle, and the CPU time of one
CPU s a proof: all CPU time over all proven answers"""


def provable(models: Sequence[Bundle]) -> Puzzle:
    """Return the one puzzle of all models.

    Raises ValueError for models of several puzzles, and if answers cannot be proven.
    """
    kinds = dict.fromkeys(model.manifest.puzzle for model in models)
    if len(kinds) > 1:
        raise ValueError(f"the bundles are for {' and '.join(kinds)}: name bundles of one puzzle.")
    puzzle = models[0].puzzle
    if not puzzle.proof_exists:
        raise ValueError(
            f"answers to {puzzle.name!r} cannot be proven, so attempts vote: score them with "
            "hrm-eval."
        )
    return puzzle


def on_board(puzzle: Puzzle, board: str | None) -> Puzzle:
    """The puzzle on `board`, such as 12x20; on its own board if that is None.

    Raises ValueError if the board does not fit the puzzle's own.
    """
    if board is None:
        return puzzle
    family, _, _ = puzzle.name.partition("-")
    smaller = registry.get(f"{family}-{board}")
    if sized(puzzle, smaller.sample([])) != smaller:
        raise ValueError(f"a board of {board} does not fit {puzzle.name}: name a smaller one.")
    return smaller


def rows_of(models: Sequence[Bundle], puzzle: Puzzle, options: AccuracyOptions) -> Iterator[Row]:
    """Yield a row for each board, model and number of attempts."""
    for board in options.board or [None]:
        sized = on_board(puzzle, board)
        hardest = next(reversed(sized.difficulties), "")
        difficulty = options.difficulty or hardest
        questions = questions_of(
            sized, options.questions, difficulty, count=options.puzzles, seed=options.seed
        )
        for model in models:
            for attempts in options.attempts or (1, 4, 16, 64):
                yield measured(model, sized, questions, attempts, options)


def measured(
    model: Bundle,
    puzzle: Puzzle,
    questions: Questions,
    attempts: int,
    options: AccuracyOptions,
) -> Row:
    """Return the size of a model and the figures of `measure`; `puzzle` has the puzzles' size."""
    choice = choose(model, options.engine, num_slots=options.slots)
    solver = from_bundles(
        [model], str(choice), num_slots=options.slots, num_threads=options.threads
    )
    graph = model.graph_path(choice.precision, device="cpu")
    limits = options_of({"max_segments": options.max_segments, "how": options.how})
    manifest = model.manifest
    size = {
        "model": manifest.name,
        "board": "x".join(map(str, board_size(puzzle) or ())),
        "parameters": manifest.provenance.get("num_parameters"),
        "file_kb": graph.stat().st_size / 1e3,
    }
    figures = measure(solver.solve_all, puzzle, questions, attempts, **limits)
    return {**size, **figures}


def measure(
    solve_all: SolveAll,
    puzzle: Puzzle,
    questions: Questions,
    attempts: int,
    **options: Any,
) -> Row:
    """Solve all puzzles and return counts and CPU time; `options` are further request fields.

    CPU time is that of this process, without opening the engine.
    """
    requests: list[SolveRequest] = []
    for text in texts_of(puzzle, questions):
        requests.append(SolveRequest(puzzle=text, attempts=attempts, **options))
    replies, cpu_s = _timed(solve_all, requests)
    answers: list[SolveAnswer] = []
    is_right: list[bool] = []
    for question in questions:
        answer = replies[question.index]
        if not isinstance(answer, SolveAnswer):
            raise ValueError(f"a puzzle is rejected: {answer.message}; {answer.remedy}.")
        answers.append(answer)
        if answer.verified is True:
            is_right.append(_is_as_good(puzzle, question, answer))
    is_proven = [answer.verified is True for answer in answers]
    segments = [answer.total_segments for answer in answers]
    num_proven = len(is_right)  # only proven answers are compared
    routes = _routes(answers)
    return {
        "attempts": attempts,
        "solved": num_proven,
        "puzzles": len(answers),
        "wrong": is_right.count(False),
        "compared": num_proven,
        "segments_per_puzzle": sum(segments) / len(answers),
        "segment_ms": 1e3 * cpu_s / sum(segments),
        "cost_over_least": np.mean(routes) if routes else None,
        "cpu_s_per_solve": cpu_s / num_proven if num_proven else None,
        "is_solved": is_proven,
        "segments": segments,
    }


def _timed(solve_all: SolveAll, requests: Sequence[SolveRequest]) -> tuple[dict[int, Reply], float]:
    """Return the replies and their CPU seconds; an empty call measures what opening costs."""
    began_s = time.process_time()
    assert not dict(solve_all([]))
    opening_s = time.process_time() - began_s
    began_s = time.process_time()
    replies = dict(solve_all(requests))
    spent_s = time.process_time() - began_s
    return replies, max(spent_s - opening_s, 0)


def _is_as_good(puzzle: Puzzle, question: HeldOutPuzzle, answer: SolveAnswer) -> bool:
    """A route is right if it costs no more, since several can have the minimum cost."""
    solution = puzzle.decode(question.labels_T)
    if not isinstance(puzzle, Routed) or answer.route is None:
        return np.array_equal(puzzle.parse(answer.solution).grid, solution)
    known = puzzle.route(puzzle.decode(question.tokens_T), solution)
    return answer.route.cost == known.cost


def _routes(answers: Sequence[SolveAnswer]) -> list[float]:
    """Return the cost of each complete route, divided by the minimum."""
    ratios: list[float] = []
    for answer in answers:
        route = answer.route
        if route is not None and route.cost:
            ratios.append(route.cost / route.optimum)
    return ratios
