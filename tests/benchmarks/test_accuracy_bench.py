"""`hrm-bench accuracy`: its counts over known answers, the command, and climbs to measure with."""

import csv
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_tools import figures_of, refusal_of
from solving_tools import answer

from hrm_benchmarks.accuracy import KnownPuzzle, generated, measure, puzzles_from_file
from hrm_benchmarks.climbs import climbs, csv_of, hash_of, hashes_of
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_edge_runtime.solve.solvers import Reply
from hrm_puzzles import registry
from hrm_puzzles.maze import Maze
from hrm_puzzles.puzzle import Example
from hrm_puzzles.sudoku import solver
from hrm_puzzles.sudoku.sudoku import Sudoku

PUZZLE = registry.get("sudoku-4x4")
SOLUTION = "1234341221434321"
SOLUTION_44 = np.array([int(digit) for digit in SOLUTION]).reshape(4, 4)
QUESTIONS = ["123434122143432.", "12343412214343..", "1234341221434..."]
ANOTHER = "1234341243212143"  # a valid board, but not a solution of these questions


def answered(solution: object, *, solved: bool = True, **fields: Any) -> SolveAnswer:
    return answer(solution, solved=solved).model_copy(update={"compute_ms": 0.0, **fields})


def solve_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
    """One attempt solves the first puzzle and four the first two."""
    for position, request in reversed(list(enumerate(requests))):
        attempts = request.attempts or 1
        fields: dict[str, Any] = {"attempts": attempts, "total_segments": 10 * attempts}
        if position == 2:
            yield position, answered(ANOTHER, **fields)
        elif attempts > 3 * position:
            yield position, answered(SOLUTION, **fields)
        else:
            yield position, answered(SOLUTION, solved=False, **fields)


def test_proofs_wrong_answers_and_compute_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "hard.txt"
    file.write_text("\n".join(QUESTIONS))
    questions = puzzles_from_file(file, PUZZLE, 100)
    for known in questions:
        assert known.solution is not None
        assert np.array_equal(known.solution, SOLUTION_44)
    one = measure(solve_all, PUZZLE, questions, 1)
    assert one["solved"] == 2
    assert one["wrong"] == 1
    assert one["compared"] == 2
    assert one["segments_per_puzzle"] == 10
    four = measure(solve_all, PUZZLE, questions, 4)
    assert four["solved"] == 3
    assert four["wrong"] == 1
    assert four["compared"] == 3
    assert four["segments_per_puzzle"] == 40
    assert one["cpu_s_per_puzzle"] == pytest.approx(10 * one["segment_ms"] / 1e3)
    assert one["within_1000_ms"] == pytest.approx(200 / 3)  # the answers cost nothing


@pytest.mark.parametrize(
    ("way", "wrong", "over_least"),
    [("Soo.\n..G.\n....", 0, 1), ("S...\nooG.\n....", 0, 1), ("S...\no.G.\nooo.", 1, 5 / 3)],
)
def test_another_route_of_the_same_cost_is_right(way: str, wrong: int, over_least: float) -> None:
    maze = Maze(name="maze-4x4", rows=4, cols=4)
    question = "S...\n..G.\n....\n####"
    solution = maze.board_of("Soo.\n..G.\n....\n####")
    found = f"{way}\n####"
    route = maze.route(maze.board_of(question), maze.board_of(found))
    reply = answered(found, route=route)

    def reply_to_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
        for position, _ in enumerate(requests):
            yield position, reply

    known = KnownPuzzle(puzzle=question, solution=solution)
    figures = measure(reply_to_all, maze, [known], 1)
    assert figures["wrong"] == wrong
    assert figures["ways"] == 1
    assert figures["cost_over_least"] == pytest.approx(over_least)


def test_what_cannot_be_compared_or_proven_is_not_measured() -> None:
    sentence = refusal_of("accuracy --bundle sudoku-6x6 --bundle maze-8x8")
    assert "the bundles are for sudoku-6x6 and maze-8x8" in sentence
    assert "cannot be proven" in refusal_of("accuracy --bundle arc-7x7")


def test_a_line_that_is_not_a_puzzle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hard.txt"
    file.write_text(f"{QUESTIONS[0]}\n11{'.' * 14}\n")
    with pytest.raises(ValueError, match="puzzle 2: "):
        puzzles_from_file(file, PUZZLE, 100)
    with pytest.raises(ValueError, match="does not have the difficulty 'odd'"):
        generated(PUZZLE, "odd", 1, 0)


@pytest.mark.process
def test_the_command_measures_bundles_beside_each_other() -> None:
    same = SHIPPED_BUNDLES / "sudoku-6x6.bundle"
    models = f"--bundle sudoku-6x6 --bundle {same}"
    sizes = "--puzzles 3 --attempts 1 --attempts 2 --max-segments 4 --slots 1"
    levels = figures_of(f"accuracy {models} {sizes}")["levels"]
    first_one, first_two, second_one, second_two = levels
    assert first_one["segments"] == second_one["segments"]
    assert first_two["segments"] == second_two["segments"]
    for level in levels:
        assert level["model"] == "sudoku-6x6"
        assert level["wrong"] == 0
        assert len(level["is_solved"]) == 3
    assert first_one["attempts"] == 1
    assert first_two["attempts"] == 2


def test_smaller_boards_are_measured_in_the_frame_of_a_model() -> None:
    levels = figures_of(
        "accuracy --bundle maze-8x8 --board 5x7 --board 8x8 --puzzles 3 --attempts 1"
    )
    found = [(level["board"], level["solved"], level["wrong"]) for level in levels["levels"]]
    assert found == [("5x7", 3, 0), ("8x8", 3, 0)]
    assert "a board of 9x8 does not fit maze-8x8" in refusal_of(
        "accuracy --bundle maze-8x8 --board 9x8"
    )


MIN_RATING = 12  # one random minimal question of forty has 10


def nine() -> Sudoku:
    puzzle = registry.get("sudoku")
    assert isinstance(puzzle, Sudoku)
    return puzzle


def first(num_climbs: int, taken: set[int]) -> list[Example]:
    endless = climbs(nine(), seed=2, min_rating=MIN_RATING, taken=taken)
    return [next(endless) for _ in range(num_climbs)]


def test_a_turned_or_relabelled_copy_of_an_excluded_puzzle_stays_out(tmp_path: Path) -> None:
    known, other = first(2, set())
    turn = nine().symmetry(np.random.default_rng(3))
    copied = [
        nine().decode(turn.apply(nine().encode(grid)[None])[0])
        for grid in (known.question, known.answer)
    ]
    assert not np.array_equal(copied[0], known.question)
    copy = Example(question=copied[0], answer=copied[1], rating=0)
    file = tmp_path / "known.csv"
    file.write_text(csv_of(nine(), [copy]))
    taken = hashes_of(nine(), [file])
    assert taken == {hash_of(nine(), known.question, known.answer)}
    (next_one,) = first(1, taken)
    assert np.array_equal(next_one.question, other.question)


def test_the_command_repeats_and_writes_what_accuracy_reads(tmp_path: Path) -> None:
    out = tmp_path / "climbs.csv"
    command = [sys.executable, "-m", "hrm_benchmarks.climbs", str(out)]
    options = ["--count=2", "--seed=2", f"--min-rating={MIN_RATING}"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert out.read_text() == csv_of(nine(), first(2, set()))
    again = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (again.returncode, "already exists" in again.stderr) == (2, True)
    rows = list(csv.DictReader(out.read_text().splitlines()))
    known = puzzles_from_file(out, nine(), 100)
    assert [one.puzzle for one in known] == [row["question"] for row in rows]
    for one, row in zip(known, rows, strict=True):
        assert one.solution is not None
        assert nine().asked(one.solution) == row["answer"]
        question = nine().board_of(row["question"])
        (answer,) = solver.solve(nine(), question).grids
        assert np.array_equal(answer, one.solution)
        for cell in np.argwhere(question):
            fewer = question.copy()
            fewer[tuple(cell)] = 0
            assert len(solver.solve(nine(), fewer).grids) == 2
        assert int(row["rating"]) == solver.rating(nine(), question) >= MIN_RATING
