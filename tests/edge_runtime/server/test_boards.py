"""Fresh boards over HTTP, labels that are checked, and the model that fits a board best."""

from typing import Any

import numpy as np
import pytest
from asgi_tools import QUICK, app_over, serving
from bundle_tools import shipped
from puzzle_tools import open_maze
from scripted_server import NAME
from starlette.testclient import TestClient

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_runtime.api.request import candidate_models, parse_request
from hrm_edge_runtime.api.schema import SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.manifest import CARD_NAME
from hrm_edge_runtime.contract.shipped import shipped_bundles
from hrm_puzzles import registry
from hrm_puzzles.data.sources import is_held_out_N
from hrm_puzzles.puzzle import RIGHT, Puzzle

LINE = "S.G.\n####\n####\n####"
FIELD = "S..G\n....\n####\n####"


def served(name: str) -> ServedModel:
    return ServedModel.of(shipped(name), precision="fp32", num_slots=1, max_attempts=1)


def tokens_of(puzzle: Puzzle, made: Any) -> list[np.ndarray]:
    """Question and answer of a fresh board, as tokens of one row."""
    grids = [puzzle.parse(made[part]).grid for part in ("puzzle", "solution")]
    return [puzzle.encode(grid)[None].astype(np.uint8) for grid in grids]


def test_every_kind_is_made_in_every_difficulty_with_its_proven_answer(keyless: TestClient):
    kinds = keyless.get("/kinds").json()["kinds"]
    assert {"sudoku", "maze", "logistics"} <= {kind["kind"] for kind in kinds}
    for kind in kinds:
        puzzle = registry.get(kind["kind"])
        assert kind["rows"] * kind["cols"] == puzzle.seq_len
        for difficulty in kind["difficulties"]:
            asked = {"kind": kind["kind"], "difficulty": difficulty, "seed": 5}
            made = keyless.get("/puzzle", params=asked).json()
            assert puzzle.check_BT(*tokens_of(puzzle, made)).tolist() == [RIGHT], made


def test_a_seed_makes_the_same_puzzle_again_and_none_another(keyless: TestClient):
    asked = {"kind": "maze-8x8", "difficulty": "hard"}
    first = keyless.get("/puzzle", params=asked).json()
    assert keyless.get("/puzzle", params={**asked, "seed": first["seed"]}).json() == first
    assert keyless.get("/puzzle", params=asked).json()["puzzle"] != first["puzzle"]


@pytest.mark.parametrize("held_out", [True, False])
def test_held_out_puzzles_are_in_no_training_set(keyless: TestClient, held_out: bool):
    puzzle = registry.get("sudoku-4x4")
    for _ in range(6):
        made = keyless.get("/puzzle", params={"kind": puzzle.name, "held_out": held_out}).json()
        assert is_held_out_N(puzzle, *tokens_of(puzzle, made)).tolist() == [held_out]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"kind": "chess"}, "use one of sudoku"),
        ({"kind": "maze-8x8", "difficulty": "silly"}, "use one of easy, medium, hard"),
        ({"kind": "sudoku", "difficulty": "extreme"}, "make them with hrm-data build"),
        ({"kind": "arc-7x7"}, "ARC tasks are made by people"),
    ],
)
def test_what_cannot_be_made_has_a_remedy(keyless: TestClient, params: dict[str, str], words: str):
    refused = keyless.get("/puzzle", params=params)
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert words in f"{error['message']}; {error['remedy']}"


@pytest.mark.parametrize(
    ("kind", "puzzle", "solution", "message"),
    [
        ("maze-4x4", LINE, LINE.replace("S.G", "SoG"), '{"verified":true}'),
        ("arc-7x7", {"task": "6ea4a07e", "input": [[1]]}, [[2, 2]], '{"verified":null}'),
        ("maze-4x4", FIELD, FIELD.replace("....", "oooo"), "marked o are not a shortest path"),
        ("maze-4x4", LINE, LINE, "the solution does not solve the puzzle"),
        ("sudoku-4x4", "123434122143432.", "1234341221434322", "2 is given twice"),
        ("chess", "e4", "e5", "the puzzle 'chess' does not exist"),
    ],
)
def test_labels_are_checked(
    keyless: TestClient, kind: str, puzzle: object, solution: object, message: str
):
    judged = keyless.post("/puzzle", json={"kind": kind, "puzzle": puzzle, "solution": solution})
    assert judged.status_code == (200 if "verified" in message else 422)
    assert message in judged.text


def test_tasks_of_a_model_are_listed_with_their_demonstrations_and_counted_once():
    bundle = shipped("arc-7x7")
    arc = served("arc-7x7")
    with serving(app_over(QUICK, arc)) as http:
        view = http.get("/models").json()["models"][1]
        tasks = http.get("/models/arc-7x7/tasks").json()
        assert (len(tasks), view["tasks"], view["identifiers"]) == (76, 76, len(bundle.identifiers))
        right = view["held_out_tasks"]["right"]
        assert [task["task"] for task in tasks[: len(right)]] == right
        for task in tasks:
            assert task["train"]
            arc.puzzle.parse({"task": task["task"], "input": task["test"][0]["input"]})
        assert http.get("/models/arc-7x7").json() == view
        card = http.get(view["card"])
        assert card.headers["content-type"] == "text/markdown; charset=utf-8"
        assert card.text == (bundle.path / CARD_NAME).read_text(encoding="utf-8")
        missing = {
            "/models/nowhere": "unknown-model",
            "/models/nowhere/card": "unknown-model",
            "/models/nowhere/tasks": "no-tasks",
            f"/models/{NAME}/tasks": "no-tasks",
        }
        for path, reason in missing.items():
            assert http.get(path).json()["error"]["reason"] == reason


SUDOKU = "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79"
MAZE = "#...#.#.\n#.###.#S\n#.....G.\n#.###.##\n#.#...#.\n#.#####.\n#.......\n########"
FIVE = "S.#..\n..#..\n.....\n#.#.#\n....G"
CITY = "D...C\n.###.\n.....\n.#4#.\nC...."


@pytest.fixture(scope="module")
def models() -> list[ServedModel]:
    return [served(name) for name in shipped_bundles()]


def model_for(models: list[ServedModel], puzzle: object) -> str:
    request = SolveRequest(puzzle=puzzle)
    candidates = candidate_models(models, request)
    return parse_request(candidates, request, task_id=1, arrival_s=0.0).model.name


@pytest.mark.parametrize(
    ("puzzle", "message"),
    [
        (SUDOKU[:-1], "the text has 80 cells instead of 81"),
        ([[0, 7, 9, 3, 0, 0, 0, 0, 12], *[[0] * 9] * 8], "the cell at row 1, column 9 is 12"),
        (MAZE[:-1], "row 8 has 7 characters instead of 8"),
        (MAZE.replace("G", "S"), "the maze has 2 cells S, the second at row 3, column 7"),
        (FIVE[:-2], "row 5 has 3 characters instead of 5"),
        (f"{'.' * 35}S\n{'.' * 35}G", "a maze of 2x36 is larger than the boards served"),
        (
            "D...C....\n.###.###.\n.........\nC...C....",
            "a city of 4x9 is smaller than every board",
        ),
        ({"task": "0520fde7", "input": [[0, 11]]}, "the cell at row 1, column 2 is 11"),
        ([[0, 1], [1, 0]], "the list has 2 rows instead of 9"),
        ("1." * 17, "the text has 34 cells instead of 81"),
    ],
)
def test_rejection_of_the_kind_that_read_farthest(
    models: list[ServedModel], puzzle: object, message: str
):
    with pytest.raises(ServiceError) as refused:
        model_for(models, puzzle)
    assert refused.value.detail.message == message
    assert refused.value.status == 422


def test_what_fits_no_kind_is_rejected_with_the_kinds(models: list[ServedModel]):
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
        (open_maze(9, 5), "maze-14x14"),
        (open_maze(5, 15), "maze"),
        (CITY, "logistics-6x6"),
        (f"{CITY}\n.....\n.....", "logistics"),
    ],
)
def test_boards_go_to_smallest_model(models: list[ServedModel], puzzle: object, name: str):
    assert model_for(models, puzzle) == name
    assert model_for(models[::-1], puzzle) == name


@pytest.mark.parametrize(
    ("puzzle", "name"),
    [
        (SUDOKU, "sudoku"),
        # even if the grid of the question fits a smaller one
        ({"task": "0520fde7", "input": [[0, 3], [3, 0]]}, "arc-7x7"),
        ({"task": "017c7c7b", "input": [[0, 3], [3, 0]]}, "arc-15x15"),
    ],
)
def test_others_go_to_the_first_that_knows_them(
    models: list[ServedModel], puzzle: object, name: str
):
    assert model_for(models, puzzle) == name


def test_an_unknown_task_is_rejected_with_known_ones(models: list[ServedModel]):
    problem = "has not learned the task 'nowhere': it learns tasks by name from many examples"
    with pytest.raises(ServiceError, match=problem) as refused:
        model_for(models, {"task": "nowhere", "input": [[0]]})
    first, second, third, *_ = shipped("arc-7x7").tasks()
    learned = f"use one of its 76 tasks, such as {first}, {second}, {third}, or train on it: "
    assert refused.value.detail.remedy.startswith(f"{learned}hrm-data build arc-7x7 --dataset")
