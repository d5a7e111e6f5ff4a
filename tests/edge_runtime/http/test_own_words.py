"""Refusals are in our words, whatever a request holds, and JSON ends its line."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asgi_tools import QUICK, Http, app_over, serving
from scripted_server import examples

GOOD = next(iter(examples()))
WRONG: list[Any] = [None, True, -1, 2**40, 1.5, "", "nothing", "x" * 2000, [], [1], {}, {"a": 1}]
FIELDS = [
    "kind",
    "model",
    "policy",
    "how",
    "max_segments",
    "attempts",
    "deadline_ms",
    "best_so_far",
    "priority",
    "wrong",
    "bundle",
    "solution",
    "puzzle",
]
QUERIES = ("kind", "difficulty", "seed", "held_out", "order")
BODIES = (("POST", "/solve"), ("POST", "/solve/stream"), ("POST", "/puzzle"))
PATHS = ("/puzzle", "/solve/batch", "/models/nothing/tasks", f"/models/{'x' * 300}/tasks")
STOCK = re.compile(
    r"Value error|Input should|Field required|should have at|valid (integer|string|number|boolean)|"
    r"Extra inputs|unable to (parse|interpret)|pydantic|string_type|Assertion failed",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def http() -> Iterator[Http]:
    with serving(*app_over(QUICK)) as http:
        yield http


def bad_answers(http: Http) -> Iterator[httpx.Response]:
    headers = {"content-type": "application/json"}
    for _, path in BODIES:
        yield http.post(path, content=b"{}", headers=headers)
        for field in FIELDS:
            for value in WRONG:
                yield http.post(path, json={"puzzle": GOOD, field: value})
    for path in PATHS:
        for query in QUERIES:
            for value in ("", "nothing", "-1", "9" * 30, "x" * 300):
                yield http.get(path, params={"kind": "sudoku", query: value})
    for query in ("", "nothing"):
        lines = {"content-type": "application/x-ndjson"}
        yield http.post("/solve/batch", params={"order": query}, headers=lines, content=b"[]\n{}\n")


def test_no_refusal_has_a_sentence_of_pydantic(http: Http) -> None:
    num_refused = 0
    for answer in bad_answers(http):
        num_refused += answer.status_code >= 400
        found = STOCK.search(answer.text)
        assert found is None, (answer.request.url, answer.request.content[:100], answer.text)
    assert num_refused > 200


def test_what_is_wrong_is_said(http: Http) -> None:
    wrong = http.post("/solve", json={"puzzle": GOOD, "how": "nothing"}).json()["error"]
    assert wrong["message"].endswith("it is not 'plain' or 'hypotheses'")
    wrong = http.post("/solve", json={"puzzle": GOOD, "max_segments": 0}).json()["error"]
    assert wrong["message"] == "the field 'max_segments' is not valid: it is below 1"
    wrong = http.get("/puzzle", params={"kind": "sudoku", "seed": "x"}).json()["error"]
    assert wrong["message"] == "the parameter 'seed' is not valid: it is not a whole number"


@pytest.mark.parametrize("path", ["/models", "/kinds", "/slots", "/livez", "/readyz", "/nothing"])
def test_json_ends_its_line(http: Http, path: str) -> None:
    answers = [http.get(path), http.post("/solve", json={"puzzle": GOOD})]
    answers.append(http.post("/solve", json={}))
    for answer in answers:
        assert answer.text.endswith("}\n")
        assert answer.text.count("\n") == 1
        assert int(answer.headers["content-length"]) == len(answer.content)
        json.loads(answer.text)
