"""If no model reads a puzzle, the refusal is about the kinds that fit it best."""

import pytest

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import candidate_models, parse_request
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle, shipped_bundles

SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MAZE = "#...#.#.\n#.###.#S\n#.....G.\n#.###.##\n#.#...#.\n#.#####.\n#.......\n########"
FIVE = "S.#..\n..#..\n.....\n#.#.#\n....G"
CITY = "D...C\n.###.\n.....\n.#4#.\nC...."


@pytest.fixture(scope="module")
def models() -> list[ServedModel]:
    bundles = [Bundle.open(path) for path in shipped_bundles().values()]
    return [
        ServedModel.of(bundle, precision="fp32", num_slots=1, max_attempts=1) for bundle in bundles
    ]


def maze_of(rows: int, cols: int) -> str:
    lines = ["." * cols] * rows
    lines[0] = "S" + lines[0][1:]
    lines[-1] = lines[-1][:-1] + "G"
    return "\n".join(lines)


def model_for(models: list[ServedModel], puzzle: object) -> str:
    request = SolveRequest(puzzle=puzzle)
    candidates = candidate_models(models, request)
    return parse_request(candidates, request, task_id=1, arrival_s=0.0).model.name


@pytest.mark.parametrize(
    ("puzzle", "messages"),
    [
        (SUDOKU[:-1], ["the text has 80 cells instead of 81"]),
        ("x" + SUDOKU[1:], ["the cell at row 1, column 1 is 'x'"]),
        ([[0] * 8 + [12], *[[0] * 9] * 8], ["the cell at row 1, column 9 is 12"]),
        (MAZE[:-1], ["row 8 has 7 characters instead of 8"]),
        (MAZE.replace("G", "S"), ["the maze has 2 cells S, the second at row 3, column 7"]),
        (FIVE.replace("G", "."), ["the maze has no goal"]),
        (FIVE.replace("..#", "..x", 1), ["the cell at row 2, column 3 is 'x'"]),
        (FIVE[:-2], ["row 5 has 3 characters instead of 5"]),
        (f"{'.' * 35}S\n{'.' * 35}G", ["a maze of 2x36 is larger than the boards served"]),
        ({"task": "0520fde7", "input": [[0, 11]]}, ["the cell at row 1, column 2 is 11"]),
        ([[0, 1], [1, 0]], ["the rows do not name their task"]),
        (
            "1" * 35,
            [
                "as logistics-6x6: the text has 35 characters instead of 36",
                "as sudoku-6x6: the text has 35 cells instead of 36",
            ],
        ),
    ],
)
def test_a_refusal_is_about_the_kinds_that_fit_best(
    models: list[ServedModel], puzzle: object, messages: list[str]
) -> None:
    with pytest.raises(ServiceError) as refused:
        model_for(models, puzzle)
    assert sorted(refused.value.detail.message.split("; ")) == messages
    assert refused.value.status == 422


def test_what_fits_no_kind_is_refused_with_the_kinds_that_are_served(
    models: list[ServedModel],
) -> None:
    kinds = ", ".join(dict.fromkeys(model.puzzle.name for model in models))
    message = f"no kind of puzzle served here reads this one ({kinds})"
    for puzzle in ("hello", 5):
        with pytest.raises(ServiceError) as refused:
            model_for(models, puzzle)
        assert refused.value.detail.message == message


@pytest.mark.parametrize(
    ("puzzle", "name"),
    [
        (FIVE, "maze-8x8"),
        (MAZE, "maze-8x8"),
        (MAZE.split("\n")[:-1], "maze-8x8"),
        (maze_of(9, 5), "maze-14x14"),
        (maze_of(5, 15), "maze"),
        (CITY, "logistics-6x6"),
        (f"{CITY}\n.....\n.....", "logistics"),
    ],
)
def test_a_board_of_any_size_goes_to_the_smallest_model_that_holds_it(
    models: list[ServedModel], puzzle: object, name: str
) -> None:
    assert model_for(models, puzzle) == name
    assert model_for(models[::-1], puzzle) == name


@pytest.mark.parametrize(("task", "name"), [("0520fde7", "arc-7x7"), ("017c7c7b", "arc-15x15")])
def test_a_task_is_answered_by_the_smallest_board_of_those_that_learned_it(
    models: list[ServedModel], task: str, name: str
) -> None:
    """Even if the grid of the question fits a smaller one."""
    assert model_for(models, {"task": task, "input": [[0, 3], [3, 0]]}) == name


def test_an_unknown_task_is_refused_with_tasks_that_the_model_has(
    models: list[ServedModel],
) -> None:
    problem = "has not learned the task 'nowhere': it learns tasks by name from many examples"
    with pytest.raises(ServiceError, match=problem) as refused:
        model_for(models, {"task": "nowhere", "input": [[0]]})
    first, second, third, *_ = Bundle.open(find_bundle("arc-7x7")).tasks()
    learned = f"use one of its 76 tasks, such as {first}, {second}, {third}"
    assert refused.value.detail.remedy == learned
