"""Boards of any size, over HTTP and with the command: the answer has the size asked."""

from collections.abc import Iterator

import numpy as np
import pytest
from cli_tools import succeeded
from puzzle_tools import question_of
from service_tools import Server, hrm_serve

from hrm_edge.cli import main
from hrm_edge.client import Client
from hrm_puzzles import registry
from hrm_puzzles.puzzle import RIGHT, Puzzle

KINDS = {"maze-12x12": "maze-14x14", "maze-7x11": "maze-14x14", "logistics-5x6": "logistics-6x6"}


def is_proven(puzzle: Puzzle, question: object, solution: object) -> bool:
    """Check an answer on the board as asked."""
    question_T = puzzle.encode(puzzle.parse(question).grid)
    answer_T = puzzle.encode(puzzle.parse(solution).grid)
    return bool(puzzle.check_BT(question_T[None], answer_T[None])[0] == RIGHT)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with hrm_serve("logistics-6x6", "maze-8x8", "maze-14x14") as server:
        yield server


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_answers_in_the_size_asked(server: Server, kind: str):
    question = question_of(kind, "medium")
    answer = server.solve(question).json()
    assert (answer["status"], answer["model"]) == ("proven", KINDS[kind])
    assert is_proven(registry.get(kind), question, answer["solution"])
    assert answer["route"]["cost"] == answer["route"]["optimum"]
    rows = registry.get(kind).parse(question).grid.tolist()
    by_rows = server.solve(rows, attempts=4, model=KINDS[kind]).json()
    assert np.shape(by_rows["solution"]) == np.shape(rows)
    with Client(server.url) as client:
        first = next(client.stream(question))
    assert len(first.solution) == len(question)


@pytest.mark.process
def test_the_command_checks_the_answer_of_a_server_in_the_size_asked(server: Server):
    question = question_of("maze-12x12", "medium")
    done = succeeded(main, question, "--url", server.url)
    assert is_proven(registry.get("maze-12x12"), question, done.stdout.rstrip("\n"))
