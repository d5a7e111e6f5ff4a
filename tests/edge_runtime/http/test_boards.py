"""Fresh boards over HTTP: every kind that a generator makes, with its proven answer."""

import functools
from collections.abc import Iterator

import numpy as np
import pytest
from asgi_tools import QUICK, Http, app_over, serving
from scripted_server import NAME, scripted_model

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.http.app import create_app
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.process import ThreadEngine
from hrm_puzzles import registry
from hrm_puzzles.data.sources import is_held_out_N
from hrm_puzzles.puzzle import RIGHT, Puzzle

LINE = "S.G.\n####\n####\n####"
FIELD = "S..G\n....\n####\n####"


@pytest.fixture(scope="module")
def http() -> Iterator[Http]:
    with serving(*app_over(QUICK), until_ready=False) as http:
        yield http


def tokens_1T(puzzle: Puzzle, notation: object) -> np.ndarray:
    return puzzle.encode(puzzle.parse(notation).grid)[None].astype(np.uint8)


def test_every_kind_is_made_in_every_difficulty_with_its_proven_answer(http: Http) -> None:
    kinds = http.get("/kinds").json()["kinds"]
    assert {"sudoku", "maze", "logistics"} <= {kind["kind"] for kind in kinds}
    for kind in kinds:
        puzzle = registry.get(kind["kind"])
        assert kind["rows"] * kind["cols"] == puzzle.seq_len
        for difficulty in kind["difficulties"]:
            asked = {"kind": kind["kind"], "difficulty": difficulty, "seed": 5}
            made = http.get("/puzzle", params=asked).json()
            question_1T = tokens_1T(puzzle, made["puzzle"])
            answer_1T = tokens_1T(puzzle, made["solution"])
            assert puzzle.check_BT(question_1T, answer_1T).tolist() == [RIGHT], made


def test_a_seed_makes_the_same_puzzle_again_and_none_another(http: Http) -> None:
    asked = {"kind": "maze-8x8", "difficulty": "hard"}
    first = http.get("/puzzle", params=asked).json()
    assert http.get("/puzzle", params={**asked, "seed": first["seed"]}).json() == first
    assert http.get("/puzzle", params=asked).json()["puzzle"] != first["puzzle"]


@pytest.mark.parametrize("held_out", [True, False])
def test_held_out_puzzles_are_of_the_classes_that_no_training_set_holds(
    http: Http, held_out: bool
) -> None:
    puzzle = registry.get("sudoku-4x4")
    for _ in range(6):
        made = http.get("/puzzle", params={"kind": puzzle.name, "held_out": held_out}).json()
        question_1T = tokens_1T(puzzle, made["puzzle"])
        answer_1T = tokens_1T(puzzle, made["solution"])
        assert is_held_out_N(puzzle, question_1T, answer_1T).tolist() == [held_out]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"kind": "chess"}, "use one of sudoku"),
        ({"kind": "maze-8x8", "difficulty": "silly"}, "use one of easy, medium, hard"),
        ({"kind": "sudoku", "difficulty": "extreme"}, "make them with hrm-data build"),
        ({"kind": "arc-7x7"}, "ARC tasks are made by people"),
        ({"kind": "maze-8x8", "seed": -1}, "'seed'"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_way_out(
    http: Http, params: dict[str, str], words: str
) -> None:
    refused = http.get("/puzzle", params=params)
    assert refused.status_code == 422
    error = refused.json()["error"]
    assert words in f"{error['message']}; {error['remedy']}"


@pytest.mark.parametrize(
    ("kind", "puzzle", "solution", "verified"),
    [
        ("maze-4x4", LINE, LINE.replace("S.G", "SoG"), True),
        ("arc-7x7", {"task": "6ea4a07e", "input": [[1]]}, [[2, 2]], None),
    ],
)
def test_a_label_is_judged_by_the_puzzles_own_proof(
    http: Http, kind: str, puzzle: object, solution: object, verified: bool | None
) -> None:
    judged = http.post("/puzzle", json={"kind": kind, "puzzle": puzzle, "solution": solution})
    assert (judged.status_code, judged.json()) == (200, {"verified": verified})


@pytest.mark.parametrize(
    ("kind", "puzzle", "solution", "message"),
    [
        ("maze-4x4", FIELD, FIELD.replace("....", "oooo"), "marked o are not a shortest path"),
        ("maze-4x4", LINE, LINE, "the solution does not solve the puzzle"),
        ("sudoku-4x4", "123434122143432.", "1234341221434322", "2 is given twice"),
        ("chess", "e4", "e5", "the puzzle 'chess' does not exist"),
    ],
)
def test_a_wrong_label_is_refused_with_its_fault(
    http: Http, kind: str, puzzle: object, solution: object, message: str
) -> None:
    judged = http.post("/puzzle", json={"kind": kind, "puzzle": puzzle, "solution": solution})
    assert judged.status_code == 422
    assert message in judged.json()["error"]["message"]


def test_tasks_of_a_model_are_listed_with_their_demonstrations_and_counted_once() -> None:
    bundle = Bundle.open(find_bundle("arc-7x7"))
    arc = ServedModel.of(bundle, precision="fp32", num_slots=1, max_attempts=1)
    client = EngineClient(functools.partial(ThreadEngine, QUICK), {NAME: 10, arc.lane: 1})
    app = create_app(client, [arc, scripted_model(num_slots=2)])
    with serving(app, client, until_ready=False) as http:
        view = http.get("/models").json()["models"][0]
        tasks = http.get("/models/arc-7x7/tasks").json()
        assert (len(tasks), view["tasks"], view["identifiers"]) == (76, 76, len(bundle.identifiers))
        for name, task in tasks.items():
            assert task["train"]
            arc.puzzle.parse({"task": name, "input": task["test"][0]["input"]})
        for name in (NAME, "nowhere"):
            assert http.get(f"/models/{name}/tasks").json()["error"]["reason"] == "no-tasks"
