"""Several models in one server: who answers what, and that none is shut out by another."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from asgi_tools import MAZE, app_of_two, client_of, until
from scripted_server import NAME, examples

MAZE_QUESTION = MAZE.sample([])


def with_two(check: Any) -> None:
    async def run() -> None:
        app, supervisor = app_of_two()
        async with client_of(app, supervisor) as http:
            await check(http, supervisor)

    asyncio.run(run())


async def answer_to(http: httpx.AsyncClient, puzzle: object, **fields: object) -> Any:
    return (await http.post("/solve", json={"puzzle": puzzle, **fields})).json()


def test_a_request_goes_to_the_model_it_names_or_whose_puzzle_it_is() -> None:
    async def check(http: httpx.AsyncClient, _: object) -> None:
        question = next(iter(examples()))
        assert (await answer_to(http, question))["model"] == NAME
        assert (await answer_to(http, MAZE_QUESTION))["model"] == "mazes"
        assert (await answer_to(http, MAZE_QUESTION, kind="maze-8x8"))["model"] == "mazes"
        assert (await answer_to(http, MAZE_QUESTION, model="mazes"))["solution"] == MAZE_QUESTION
        assert (await answer_to(http, question, model="mazes"))["error"]["field"] == "puzzle"
        assert (await answer_to(http, question, model="mazes", kind="sudoku-4x4"))["error"]["field"] == "kind"
        unknown = (await answer_to(http, question, model="other"))["error"]
        assert "use 'scripted', 'mazes'" in unknown["remedy"]

    with_two(check)


def test_an_error_is_that_of_the_model_which_got_as_far_as_a_cell() -> None:
    async def check(http: httpx.AsyncClient, _: object) -> None:
        clash = (await answer_to(http, "11.............."))["error"]
        assert (clash["rule"], clash["cell"]) == ("clashing-givens", [1, 2])

    with_two(check)


def test_models_slots_and_metrics_list_every_lane() -> None:
    async def check(http: httpx.AsyncClient, supervisor: Any) -> None:
        for puzzle in (next(iter(examples())), MAZE_QUESTION):
            await answer_to(http, puzzle)
        models = (await http.get("/models")).json()["models"]
        assert [(one["name"], one["rows"], one["cols"], one["max_attempts"]) for one in models] == [
            (NAME, 4, 4, 8),
            ("mazes", 8, 8, 1),
        ]
        assert models[1]["sample"] == MAZE_QUESTION
        assert models[0]["identifiers"] == 1
        await until(lambda: sum(lane.steps for lane in supervisor.snapshot.lanes.values()) == 3 + 2)
        lanes = (await http.get("/slots")).json()["lanes"]
        assert [(one["name"], one["lane"]["completed"]) for one in lanes] == [
            (NAME, {"proven": 1}),
            ("mazes", {"max_segments": 1}),
        ]
        page = (await http.get("/metrics")).text
        assert page.count("# TYPE hrm_steps_total counter") == 1
        for sample in ('hrm_steps_total{model="scripted"} 2.0', 'hrm_steps_total{model="mazes"} 3.0'):
            assert sample in page

    with_two(check)


def test_a_full_lane_refuses_and_the_other_answers() -> None:
    async def check(http: httpx.AsyncClient, supervisor: Any) -> None:
        places = [supervisor.place(NAME) for _ in range(10)]
        for place in places:
            place.__enter__()
        refused = await answer_to(http, next(iter(examples())))
        assert refused["error"]["reason"] == "queue-full"
        assert (await answer_to(http, MAZE_QUESTION, kind="maze-8x8"))["model"] == "mazes"
        for place in places:
            place.__exit__(None, None, None)

    with_two(check)
