"""`hrm-bench accuracy`: its counting, over a solver whose answers are known, and the command over a real bundle."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.accuracy import KnownPuzzle, generated, measure, puzzles_from_file
from hrm_benchmarks.cli import app
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.solvers import Reply
from hrm_puzzles import registry
from hrm_puzzles.maze import Maze

PUZZLE = registry.get("sudoku-4x4")
SOLUTION = "1234341221434321"
QUESTIONS = ["123434122143432.", "12343412214343..", "1234341221434..."]
ANOTHER = "1234341243212143"  # a right board, but no solution of these questions


def answered(**fields: Any) -> SolveAnswer:
    usual = {"how": "plain", "segments": 1, "halted_by": "proven", "margin": 0.0, "queue_ms": 0.0, "compute_ms": 0.0}
    return SolveAnswer(**{**usual, "model": "m", "votes": None, "vote_share": None, **fields})


def solve_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
    """One attempt solves the first, four the first two, and the last is answered wrongly and called proven."""
    for position, request in reversed(list(enumerate(requests))):
        solved = position == 2 or (request.attempts or 1) > 3 * position
        yield (
            position,
            answered(
                solution=ANOTHER if position == 2 else SOLUTION,
                status="proven" if solved else "unfinished",
                solved=solved,
                verified=solved,
                attempts=request.attempts or 1,
                total_segments=10 * (request.attempts or 1),
            ),
        )


def test_proofs_wrong_answers_and_compute_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "hard.txt"
    file.write_text("\n".join(QUESTIONS))
    questions = puzzles_from_file(file, PUZZLE, 100)
    assert ["".join(map(str, known.solution.flat)) for known in questions if known.solution is not None] == [
        SOLUTION
    ] * 3
    one, four = (measure(solve_all, PUZZLE, questions, attempts) for attempts in (1, 4))
    counts = ("solved", "wrong", "compared", "segments_per_puzzle")
    assert [one[name] for name in counts] == [2, 1, 2, 10]
    assert [four[name] for name in counts] == [3, 1, 3, 40]
    assert one["cpu_s_per_puzzle"] == pytest.approx(10 * one["segment_ms"] / 1e3)
    assert one["within_1000_ms"] == pytest.approx(200 / 3)  # the answers cost nothing


@pytest.mark.parametrize(
    ("answer", "wrong", "over_least"),
    [("Soo.\n..G.\n....", 0, 1), ("S...\nooG.\n....", 0, 1), ("S...\no.G.\nooo.", 1, 5 / 3)],
)
def test_another_way_of_the_same_cost_is_as_good(answer: str, wrong: int, over_least: float) -> None:
    maze, asked, known = Maze(name="maze-4x4", rows=4, cols=4), "S...\n..G.\n....\n####", "Soo.\n..G.\n....\n####"
    solution = f"{answer}\n####"
    route = maze.route(maze.board_of(asked), maze.board_of(solution))
    reply = answered(
        solution=solution,
        status="proven",
        solved=True,
        verified=True,
        attempts=1,
        total_segments=1,
        route=asdict(route),
    )
    puzzles = [KnownPuzzle(puzzle=asked, solution=maze.board_of(known))]
    found = measure(lambda requests: enumerate([reply for _ in requests]), maze, puzzles, 1)
    assert (found["wrong"], found["ways"], found["cost_over_least"]) == (wrong, 1, pytest.approx(over_least))


def test_models_of_different_puzzles_are_not_compared() -> None:
    done = CliRunner().invoke(app, ["accuracy", "--bundle", "sudoku-6x6", "--bundle", "maze-8x8"])
    assert done.exit_code == 2
    assert "the bundles are for sudoku-6x6 and maze-8x8" in done.stderr


def test_a_csv_tells_its_own_solutions(tmp_path: Path) -> None:
    file = tmp_path / "held_out.csv"
    file.write_text(f"source,question,answer,rating\na,{QUESTIONS[0]},{SOLUTION},1\n")
    (known,) = puzzles_from_file(file, PUZZLE, 100)
    assert known.solution is not None
    assert known.solution.reshape(-1).tolist() == [int(digit) for digit in SOLUTION]


def test_a_line_that_is_no_puzzle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hard.txt"
    file.write_text(f"{QUESTIONS[0]}\n11{'.' * 14}\n")
    with pytest.raises(ValueError, match="puzzle 2: "):
        puzzles_from_file(file, PUZZLE, 100)
    with pytest.raises(ValueError, match="does not have the difficulty 'odd'"):
        generated(PUZZLE, "odd", 1, 0)


@pytest.mark.process
def test_the_command_measures_bundles_beside_each_other() -> None:
    options = ["--bundle", "sudoku-6x6", "--bundle", str(SHIPPED_BUNDLES / "sudoku-6x6.bundle"), "--puzzles", "3"]
    options += ["--attempts", "1", "--attempts", "2", "--max-segments", "4", "--slots", "1"]
    done = CliRunner().invoke(app, ["accuracy", *options, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["levels"]
    assert [(level["model"], level["attempts"]) for level in found] == 2 * [("sudoku-6x6", 1), ("sudoku-6x6", 2)]
    assert found[0]["segments"] == found[2]["segments"]
    assert all(level["wrong"] == 0 and len(level["is_solved"]) == 3 for level in found)


def test_answers_nobody_can_prove_are_refused() -> None:
    done = CliRunner().invoke(app, ["accuracy", "--bundle", "arc-7x7"])
    assert done.exit_code == 2
    assert "cannot be proven" in done.stderr
