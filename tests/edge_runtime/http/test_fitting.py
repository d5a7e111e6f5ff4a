"""If no model reads a puzzle, the refusal is about the kinds that fit it best."""

import pytest

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import candidate_models, parse_request
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import shipped_bundles

SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MAZE = "#...#.#.\n#.###.#S\n#.....G.\n#.###.##\n#.#...#.\n#.#####.\n#.......\n########"


@pytest.fixture(scope="module")
def models() -> list[ServedModel]:
    bundles = [Bundle.open(path) for path in shipped_bundles().values()]
    return [
        ServedModel.of(bundle, precision="fp32", num_slots=1, max_attempts=1) for bundle in bundles
    ]


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
        (MAZE.split("\n")[:-1], ["the list has 7 rows instead of 8"]),
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
    kinds = ", ".join(model.puzzle.name for model in models)
    message = f"no kind of puzzle served here reads this one ({kinds})"
    for puzzle in ("hello", 5):
        with pytest.raises(ServiceError) as refused:
            model_for(models, puzzle)
        assert refused.value.detail.message == message


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
    learned = "use one of its 76 tasks, such as 25ff71a9, 3618c87e, 67385a82"
    assert refused.value.detail.remedy == learned


def test_models_show_the_tasks_that_they_answer_right_and_begin_with_one(
    models: list[ServedModel],
) -> None:
    views = {model.name: model.view() for model in models}
    results = views["arc-7x7"].held_out_tasks
    assert results is not None
    assert (results.attempts, results.num_tasks, len(results.right)) == (16, 76, 23)
    assert views["arc-7x7"].sample["task"] == results.right[0]
    others = [view for view in views.values() if not view.tasks]
    assert {view.held_out_tasks for view in others} == {None}
