"""Climbs: hard Sudokus with one solution, none known already, in a file that `accuracy` reads."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np

from hrm_benchmarks.accuracy import puzzles_from_file
from hrm_benchmarks.climbs import climbs, csv_of, hash_of, hashes_of
from hrm_puzzles import registry
from hrm_puzzles.puzzle import Example
from hrm_puzzles.sudoku import solver
from hrm_puzzles.sudoku.climb import climb
from hrm_puzzles.sudoku.sudoku import Sudoku

MIN_RATING = 12  # one random minimal question of forty has 10


def nine() -> Sudoku:
    puzzle = registry.get("sudoku")
    assert isinstance(puzzle, Sudoku)
    return puzzle


def first(num_climbs: int, taken: set[int]) -> list[Example]:
    endless = climbs(nine(), seed=2, min_rating=MIN_RATING, taken=taken)
    return [next(endless) for _ in range(num_climbs)]


def test_a_climb_is_as_hard_as_asked_has_one_solution_and_needs_every_given() -> None:
    example = climb(nine(), np.random.default_rng(1), MIN_RATING)
    assert example.rating == solver.rating(nine(), example.question) >= MIN_RATING
    (answer,) = solver.solve(nine(), example.question).grids
    assert np.array_equal(answer, example.answer)
    for row, col in np.argwhere(example.question):
        fewer = example.question.copy()
        fewer[row, col] = 0
        assert len(solver.solve(nine(), fewer).grids) == 2


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
        assert int(row["rating"]) == solver.rating(nine(), question) >= MIN_RATING
