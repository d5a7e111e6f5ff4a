"""What "proven" means: the answer obeys every rule and keeps every given; never that it is alone.

The laws run on boards that no server takes as a question, because the exact search of the question
rejects them, and on one that is too hard for that search.
"""

import contextlib
from collections.abc import Sequence

import numpy as np
from attempt_tools import run_out
from bundle_tools import shipped

from hrm_edge.output import summary
from hrm_edge.puzzles import Entry
from hrm_edge.solvers import from_bundles
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.batching.task import Result, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.onnx import engine_from_bundle
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Grid, PuzzleError
from hrm_puzzles.sudoku import solver
from hrm_puzzles.sudoku.sudoku import Sudoku

NUM_BOARDS = 12
NUM_ATTEMPTS = 4
UNTIL_PROVEN = HaltingPolicy(kind="verified", max_segments=40)  # 24 of them with hypotheses

UNDECIDED = "6....9..3.821....9...............5..3.9.6.......4...6.2..5.....937..........7..14"
"""After the tries that the check of a question allows, so it passes."""


def small() -> Sudoku:
    return shipped("sudoku-6x6").puzzle


def num_solutions(puzzle: Sudoku, grid: Grid) -> int:
    """0, 1, or 2 for more than one."""
    found = solver.solve(puzzle, grid, max_solutions=2)
    assert found.is_complete or len(found.grids) == 2
    return len(found.grids)


def with_a_wrong_digit(rng: np.random.Generator) -> Grid:
    """A 6x6 question with a digit more, which clashes with nothing and is not the solution's."""
    question = small().generate(rng, "medium").question
    while True:
        grid = question.copy()
        grid[tuple(rng.choice(np.argwhere(grid == 0)))] = rng.integers(1, 7)
        try:
            small().parse(grid.tolist())
        except PuzzleError as error:
            if error.rule == "no-solution":
                return grid


def with_a_given_less(rng: np.random.Generator) -> Grid:
    """A 6x6 question, all of whose givens are needed, without one of them."""
    grid = small().generate(rng, "minimal").question.copy()
    grid[tuple(rng.choice(np.argwhere(grid)))] = 0
    return grid


def boards(number: int) -> list[Grid]:
    """6x6 boards with no solution (0) or more than one (2)."""
    rng = np.random.default_rng(number)
    made = [(with_a_given_less if number else with_a_wrong_digit)(rng) for _ in range(NUM_BOARDS)]
    assert {num_solutions(small(), grid) for grid in made} == {number}
    return made


def solved(grids: Sequence[Grid]) -> dict[int, Result]:
    """The results of the lane that serves; it never asks how many solutions a board has."""
    opened = engine_from_bundle(shipped("sudoku-6x6"), num_slots=8, num_threads=1, want_logits=True)
    with contextlib.closing(opened) as engine:
        lane = TaskLane(
            engine,
            small(),
            shipped("sudoku-6x6").puzzle_table,
            queue_limit=NUM_BOARDS,
            max_attempts=NUM_ATTEMPTS,
        )
        for number, grid in enumerate(grids):
            task = Task(
                task_id=number,
                tokens_T=small().encode(grid),
                policy=UNTIL_PROVEN,
                arrival_s=0.0,
                num_attempts=NUM_ATTEMPTS,
                guesses=True,
            )
            lane.submit(task)
        return run_out(lane)[0]


def obeys(puzzle: Sudoku, question: Grid, answer: Grid) -> bool:
    """Whether an answer keeps the givens and fills every unit, without the puzzle's own check."""
    is_given = question > 0
    if not np.array_equal(answer[is_given], question[is_given]):
        return False
    digits = list(range(1, puzzle.side + 1))
    units_US = answer.reshape(-1)[puzzle.units_US]
    return all(sorted(unit) == digits for unit in units_US.tolist())


def test_a_board_without_a_solution_is_never_answered_as_proven():
    results = solved(boards(0))
    assert len(results) == NUM_BOARDS
    for result in results.values():
        assert (result.status, result.verified) == ("unfinished", False)
        assert result.num_attempts == NUM_ATTEMPTS


def test_a_proven_answer_to_a_board_with_many_solutions_obeys_every_rule():
    grids = boards(2)
    num_proven = 0
    for number, result in solved(grids).items():
        if result.status != "proven":
            continue
        num_proven += 1
        assert obeys(small(), grids[number], small().decode(result.answer_T))
        assert num_solutions(small(), grids[number]) == 2  # proven, and still not the only one
    assert num_proven


def test_an_undecided_question_gets_no_false_proof():
    nine = registry.get("sudoku")
    question = nine.parse(UNDECIDED).grid  # passes
    assert num_solutions(nine, question) == 0
    ours = from_bundles([shipped("sudoku")], "cpu:fp32", num_threads=1)
    request = SolveRequest(puzzle=UNDECIDED, attempts=4, max_segments=40)
    ((_, answer),) = ours.solve_all([request])
    assert isinstance(answer, SolveAnswer)
    assert (answer.status, answer.verified) == ("unfinished", False)


def test_the_words_for_proven_promise_the_rules_and_no_more():
    field = SolveAnswer.model_fields["status"].description
    assert "every rule" in field
    assert "every given" in field
    assert "another answer" in field
    puzzle = small().generate(np.random.default_rng(0), "easy")
    solve_one = from_bundles([shipped("sudoku-6x6")], "cpu:fp32", num_threads=1)
    question = small().asked(puzzle.question)
    ((_, answer),) = solve_one.solve_all([SolveRequest(puzzle=question)])
    assert isinstance(answer, SolveAnswer)
    entry = Entry(number=1, fields={"puzzle": question})
    assert "proven to keep every rule" in summary(solve_one, entry, answer)
