"""Several models in one server: who answers what, none is shut out, and all get equal time."""

import asyncio
import contextlib
import multiprocessing
import threading
from typing import Any

import pytest
from asgi_tools import PLACES, QUICK, app_over, engine_of, serving, until
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import ScriptedEngine, ThreadEngine
from scripted_server import LANE, NAME, QUESTION, lanes_over, scripted_model
from service_tools import wait_for
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hrm_edge_runtime.worker import messages, process
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError
from hrm_edge_runtime.worker.lanes import LaneKey, Lanes
from hrm_edge_runtime.worker.loop import FairTurns
from hrm_puzzles import registry

MAZE = registry.get("maze-8x8")
MAZES = "mazes"
MAZE_QUESTION = MAZE.sample([])


def app_of_two() -> Starlette:
    """Return an application of the scripted Sudokus and of mazes answered with their questions."""
    mazes = scripted_model(MAZE, name=MAZES, num_slots=2, max_segments=3, max_attempts=1)
    return app_over(two_lanes, mazes)


def two_lanes() -> Lanes:
    echo = ScriptedEngine(num_slots=2, seq_len=MAZE.seq_len)
    return {**QUICK(), **lanes_over(echo, MAZE, MAZES)}


def answer_to(http: TestClient, puzzle: object, **fields: object) -> Any:
    return http.post("/solve", json={"puzzle": puzzle, **fields}).json()


def test_a_request_goes_to_the_model_it_names_or_whose_puzzle_it_is():
    with serving(app_of_two()) as http:
        assert answer_to(http, QUESTION)["model"] == NAME
        assert answer_to(http, MAZE_QUESTION)["model"] == MAZES
        assert answer_to(http, MAZE_QUESTION, kind="maze-8x8")["model"] == MAZES
        assert answer_to(http, MAZE_QUESTION, model=MAZES)["solution"] == MAZE_QUESTION
        assert answer_to(http, QUESTION, model=MAZES)["error"]["field"] == "puzzle"
        other_kind = answer_to(http, QUESTION, model=MAZES, kind="sudoku-4x4")
        assert other_kind["error"]["field"] == "kind"
        unknown = answer_to(http, QUESTION, model="other")["error"]
        assert unknown["reason"] == "unknown-model"
        assert unknown["field"] == "model"
        assert "use 'scripted', 'mazes'" in unknown["remedy"]


def test_models_and_slots_list_every_lane():
    with serving(app_of_two()) as http:
        for puzzle in (QUESTION, MAZE_QUESTION):
            answer_to(http, puzzle)
        sudokus, mazes = http.get("/models").json()["models"]
        assert (sudokus["name"], sudokus["rows"], sudokus["max_attempts"]) == (NAME, 4, 8)
        assert (mazes["name"], mazes["rows"], mazes["max_attempts"]) == (MAZES, 8, 1)
        assert mazes["sample"] == MAZE_QUESTION
        assert sudokus["identifiers"] == 1
        ended = {NAME: {"proven": 1}, MAZES: {"max_segments": 1}}
        wait_for(lambda: completed(http) == ended)


def completed(http: TestClient) -> dict[str, dict[str, int]]:
    lanes = http.get("/slots").json()["lanes"]
    return {lane["name"]: lane["lane"]["completed"] for lane in lanes}


def test_a_full_lane_refuses_and_the_other_answers():
    app = app_of_two()
    places = engine_of(app).places[LANE]
    with serving(app) as http:
        for _ in range(PLACES):
            places.take()
        refused = answer_to(http, QUESTION)
        assert refused["error"]["reason"] == "queue-full"
        assert answer_to(http, MAZE_QUESTION, kind="maze-8x8")["model"] == MAZES
        for _ in range(PLACES):
            places.leave()


class Deaf(ThreadEngine):
    """An engine that is ready and then takes no notice, as one that hangs in a driver."""

    def __init__(self) -> None:
        self.connection, self._theirs = multiprocessing.Pipe()
        self._thread = threading.Thread(target=self._ignore, daemon=True)
        self._thread.start()

    def _ignore(self) -> None:
        self._theirs.send(messages.Ready(load_s=0.0, reports={}))
        with contextlib.suppress(EOFError, OSError), self._theirs:
            while True:
                self._theirs.recv()


async def test_a_change_of_lanes_does_not_wait_for_an_engine_that_hangs_though_nothing_is_asked():
    async with EngineClient(Deaf, {}, stall_s=0.2) as client:
        await until(lambda: client.state == "ready")
        with pytest.raises(NoAnswerError, match="engine-lost"):
            await asyncio.wait_for(client.lane_manager.load(LaneKey("a"), QUICK, beside=True), 60)


async def test_a_start_at_a_limit_is_one_line_and_leaves_no_engine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    engine = Deaf()

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(process, "EngineLink", fail)
    async with EngineClient(lambda: engine, {}, stall_s=9.0):
        await until(lambda: "can't start new thread; raise its limit of processes" in caplog.text)
        await until(lambda: engine.join(0.0) == 0)
    assert "Traceback" not in caplog.text


def test_a_long_start_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(process, "START_S", 1.0)
    said = "the engine has been opening its models for"

    def lanes() -> Lanes:
        wait_for(lambda: said in caplog.text)
        return QUICK()

    with serving(app_over(lanes)) as http:
        assert http.get("/readyz").status_code == 200
    assert caplog.text.count(said) == 1


def test_without_a_model_that_can_answer_the_server_is_not_ready():
    app = app_over(QUICK)
    with serving(app) as http:
        app.state.service.models.clear()
        unready = http.get("/readyz")
        assert (unready.status_code, unready.json()["state"]) == (503, "no-model")
        assert unready.json()["error"]["reason"] == "no-model"


def test_a_lane_that_was_idle_has_saved_nothing():
    turns = FairTurns(["a", "b"])
    for name in ("a", "b"):
        turns.charge(name, 1.0)
    for _ in range(50):
        assert turns.next(["a"]) == "a"
        turns.charge("a", 1.0)
    order = ""
    for _ in range(8):
        name = turns.next(["a", "b"])
        turns.charge(name, 1.0)
        order += name
    assert "bbb" not in order


@given(st.dictionaries(st.sampled_from("abcde"), st.floats(0.02, 1.0), min_size=2))
@settings(max_examples=60)
def test_busy_lanes_get_the_same_time_within_one_dear_step(costs: dict[str, float]):
    total_s = 10 * max(costs.values())
    turns = FairTurns(costs)
    spent = dict.fromkeys(costs, 0.0)
    while sum(spent.values()) < total_s * len(costs):
        name = turns.next(list(costs))
        turns.charge(name, costs[name])
        spent[name] += costs[name]
    difference_s = max(spent.values()) - min(spent.values())
    assert difference_s <= 2 * max(costs.values()) + min(costs.values())
