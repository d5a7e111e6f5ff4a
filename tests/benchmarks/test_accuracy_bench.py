"""`hrm-bench accuracy`: its counts over known answers, and the command."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_tools import json_of, rejected
from odd_server import answer

from hrm_benchmarks.accuracy import measure
from hrm_benchmarks.cli import app
from hrm_edge.solvers import Reply
from hrm_edge_runtime.api.schema import SolveAnswer, SolveRequest
from hrm_edge_runtime.contract.shipped import SHIPPED_BUNDLES
from hrm_puzzles import registry
from hrm_puzzles.data.sources import Questions, questions_from_file
from hrm_puzzles.maze import Maze

PUZZLE = registry.get("sudoku-4x4")
SOLUTION = "1234341221434321"
QUESTIONS = ["123434122143432.", "12343412214343..", "1234341221434..."]
ANOTHER = "1234341243212143"  # a valid board, but not a solution of these questions


def answered(solution: object, *, is_proven: bool = True, **fields: Any) -> SolveAnswer:
    return answer(solution, is_proven=is_proven).model_copy(update={"compute_ms": 0.0, **fields})


def solve_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
    """One attempt solves the first puzzle and four the first two."""
    for position, request in reversed(list(enumerate(requests))):
        attempts = request.attempts or 1
        fields = {"attempts": attempts, "total_segments": 10 * attempts}
        if position == 2:
            yield position, answered(ANOTHER, **fields)
        elif attempts > 3 * position:
            yield position, answered(SOLUTION, **fields)
        else:
            yield position, answered(SOLUTION, is_proven=False, **fields)


def test_proofs_wrong_answers_and_compute_are_counted(tmp_path: Path):
    file = tmp_path / "hard.txt"
    file.write_text("\n".join(QUESTIONS))
    questions = questions_from_file(file, PUZZLE)
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
    assert one["cpu_s_per_solve"] == pytest.approx(3 * 10 * one["segment_ms"] / 1e3 / 2)


@pytest.mark.parametrize(
    ("way", "wrong", "over_least"),
    [("Soo.\n..G.\n....", 0, 1), ("S...\nooG.\n....", 0, 1), ("S...\no.G.\nooo.", 1, 5 / 3)],
)
def test_another_route_of_the_same_cost_is_right(way: str, wrong: int, over_least: float):
    maze = Maze(name="maze-4x4", rows=4, cols=4)
    question = maze.board_of("S...\n..G.\n....\n####")
    solution = maze.board_of("Soo.\n..G.\n....\n####")
    found = f"{way}\n####"
    route = maze.route(question, maze.board_of(found))
    reply = answered(found, route=route)

    def reply_to_all(requests: Iterable[SolveRequest]) -> Iterator[tuple[int, Reply]]:
        for position, _ in enumerate(requests):
            yield position, reply

    questions = Questions(
        tokens_NT=maze.encode(question)[None],
        labels_NT=maze.encode(solution)[None],
        puzzle_ids_N=np.zeros(1, np.int32),
        source="here",
    )
    figures = measure(reply_to_all, maze, questions, 1)
    assert figures["wrong"] == wrong
    assert figures["cost_over_least"] == pytest.approx(over_least)


@pytest.mark.parametrize(
    ("options", "saying"),
    [
        ("sudoku-6x6 --bundle maze-8x8", "the bundles are for sudoku-6x6 and maze-8x8"),
        ("arc-7x7", "cannot be proven"),
        ("maze-8x8 --board 9x8", "a board of 9x8 does not fit maze-8x8"),
        ("sudoku-6x6 --board 6x6 --difficulty odd", "the difficulty 'odd' does not exist"),
        ("sudoku-6x6 --board 6x6 --questions hard.txt", "line 1: "),
    ],
)
def test_what_cannot_be_measured_is_rejected(
    options: str, saying: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("hard.txt").write_text(f"11{'.' * 34}\n")
    assert saying in rejected(app, "accuracy", "--bundle", *options.split())


@pytest.mark.process
def test_the_command_measures_bundles_beside_each_other():
    same = SHIPPED_BUNDLES / "sudoku-6x6.bundle"
    sizes = ("--puzzles=3", "--attempts=1", "--attempts=2", "--max-segments=4", "--slots=1")
    models = ("--bundle=sudoku-6x6", f"--bundle={same}")
    levels = json_of(app, "accuracy", *models, *sizes)["rows"]
    first_one, first_two, second_one, second_two = levels
    assert first_one["segments"] == second_one["segments"]
    assert first_two["segments"] == second_two["segments"]
    for level in levels:
        assert level["model"] == "sudoku-6x6"
        assert level["wrong"] == 0
        assert len(level["is_solved"]) == 3
    assert first_one["attempts"] == 1
    assert first_two["attempts"] == 2


def test_smaller_boards_are_measured_in_the_frame_of_a_model():
    sizes = ("--board=5x7", "--board=8x8", "--puzzles=3", "--attempts=1")
    levels = json_of(app, "accuracy", "--bundle=maze-8x8", *sizes)
    found = [(level["board"], level["solved"], level["wrong"]) for level in levels["rows"]]
    assert found == [("5x7", 3, 0), ("8x8", 3, 0)]
