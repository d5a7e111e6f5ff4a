"""`import hrm_edge`: the shipped models from Python, in this process and through a server."""

import json
import subprocess
import sys

import pytest
from service_tools import Server, command

import hrm_edge
from hrm_edge_runtime.api.schema import SolveRequest

SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MAZE = "S.......\n" + "........\n" * 6 + ".......G"


def test_a_puzzle_is_solved_here_by_the_model_that_reads_it() -> None:
    answer = hrm_edge.solve(SUDOKU)
    assert answer.status == "proven"
    assert answer.model == "sudoku"
    assert str(answer.solution).startswith("534678912")


def test_many_puzzles_of_several_kinds_keep_their_order_and_a_refusal_costs_only_its_own() -> None:
    first, refused, last = hrm_edge.solve_many([MAZE, SUDOKU[:-1], SUDOKU], max_segments=8)
    assert isinstance(first, hrm_edge.Answer)
    assert isinstance(last, hrm_edge.Answer)
    assert isinstance(refused, hrm_edge.Refusal)
    assert first.model == "maze-8x8"
    assert last.model == "sudoku"
    assert refused.message == "the text has 80 cells instead of 81"


def test_what_no_model_reads_is_an_error_with_the_remedy() -> None:
    with pytest.raises(hrm_edge.RefusedError, match="80 cells instead of 81; send 81 characters"):
        hrm_edge.solve(SUDOKU[:-1])


@pytest.mark.process
def test_the_import_brings_no_torch() -> None:
    code = "import hrm_edge, sys, json; print(json.dumps(list(sys.modules)))"
    program = [sys.executable, "-c", code]
    loaded = subprocess.run(program, capture_output=True, text=True, check=True)
    assert not {"torch", "onnx", "matplotlib"} & set(json.loads(loaded.stdout))


@pytest.mark.process
async def test_both_clients_say_the_same_as_the_server() -> None:
    with Server(command("serve", "sudoku", "--threads=1")) as server:
        server.wait_until_ready()
        async with hrm_edge.AsyncClient(server.url) as client:
            answer = await client.solve(SUDOKU, attempts=2)
            requests = [SolveRequest(puzzle=SUDOKU), SolveRequest(puzzle=SUDOKU[:-1])]
            solved, refused = await client.solve_many(requests)
            assert [model.name for model in await client.models()] == ["sudoku"]
        with hrm_edge.Client(server.url) as client:
            assert client.solve(SUDOKU).solution == answer.solution
    assert isinstance(solved, hrm_edge.Answer)
    assert isinstance(refused, hrm_edge.Refusal)
