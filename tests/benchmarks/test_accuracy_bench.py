"""`hrm-bench accuracy`: its counting, over a solver whose answers are known, and the command over a real bundle."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hrm_benchmarks.accuracy import generated, measure, puzzles_from_file
from hrm_benchmarks.cli import app
from hrm_edge_runtime.bundle import SHIPPED_BUNDLES
from hrm_edge_runtime.http.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.solvers import Reply
from hrm_puzzles import registry

PUZZLE = registry.get("sudoku-4x4")
SOLUTION = "1234341221434321"
QUESTIONS = ["123434122143432.", "12343412214343..", "1234341221434..."]
ANOTHER = "1234341243212143"  # a right board, but no solution of these questions


def solve_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
    """One attempt solves the first, four the first two, and the last is answered wrongly and called proven."""
    for position, request in reversed(list(enumerate(requests))):
        solved = position == 2 or (request.attempts or 1) > 3 * position
        yield (
            position,
            SolveAnswer(
                solution=ANOTHER if position == 2 else SOLUTION,
                status="proven" if solved else "unfinished",
                how="plain",
                solved=solved,
                verified=solved,
                segments=1,
                halted_by="proven",
                margin=0.0,
                queue_ms=0.0,
                compute_ms=0.0,
                model="m",
                attempts=request.attempts or 1,
                total_segments=10 * (request.attempts or 1),
                votes=None,
                vote_share=None,
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
    with pytest.raises(ValueError, match="has no difficulty 'odd'"):
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
