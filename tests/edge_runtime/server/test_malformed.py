"""Requests of every wrong kind get a 4xx in the one error shape and in our words."""

import json
import re
import shlex
from typing import Any

import httpx
import pytest
from cli_tools import ran
from files import lines_in
from scripted_server import QUESTION
from service_tools import JSON, NDJSON, Server

pytestmark = pytest.mark.process

KEYS = ["reason", "field", "rule", "cell", "message", "remedy"]
ROW = [0] * 4
STOCK = re.compile(  # sentences of pydantic
    r"Value error|Input should|Field required|should have at|valid (integer|string|number|boolean)|"
    r"Extra inputs|unable to (parse|interpret)|pydantic|string_type|Assertion failed",
    re.IGNORECASE,
)

NOT_JSON = [
    b"", b"{", b"{}{}", b"nope", b'{"puzzle": "1", }', b'{puzzle: "1"}', b"\x00", b"\xff\xfe",
    b"puzzle=1",
    b'{"puzzle": "\xff"}', b'\xef\xbb\xbf{"puzzle": "1"}', '{"puzzle": "1"}'.encode("utf-16"),
    b'{"puzzle": "\x01"}', b'{"puzzle": "\\ud800"}', b'{"\\udfff": 1, "puzzle": "1"}',
    b'{"puzzle": 01}', b'{"puzzle": .5}', b'{"puzzle": NaN}', b'{"puzzle": [Infinity]}',
    b'{"puzzle": 1e999}', b'{"puzzle": ' + b"9" * 5000 + b"}", b'{"puzzle": "1", "puzzle": "2"}',
    b'{"puzzle": "1", "deadline_ms": ' + b"9" * 300 + b"}", b"[" * 60_000,
    b'{"puzzle": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    b"null", b"-0.0", b'"1.3."', b'[{"puzzle": "1"}]', b"{}", b'{"puzzel": "1"}', b'{"": ""}',
]  # fmt: skip

BAD_PUZZLES = [
    None, True, -1, 1.5, 10**17, "", "\n", "1" * 60_000, "x" * 16, "." * 16, "11..............",
    "\u0661" * 16, "\x00" * 16, QUESTION * 2,
    [], [[], [], [], []], [0] * 15, [5] * 16, [1.0] * 16, [True] * 16, [ROW] * 3, [ROW] * 4,
    [[0, 0, 0], ROW, ROW, ROW], [[1, 1, 0, 0], *[ROW] * 3], [[[0]] * 4] * 4,
    [["1", None, 0, "."], ROW, ROW, ROW], {}, {"nothing": QUESTION}, {"rows": [ROW] * 4},
]  # fmt: skip

BAD_FIELDS = {
    "extra": [1],
    "Puzzle": [QUESTION],
    "__class__": ["x"],
    "kind": [1, "", ["x"], "maze"],
    "model": ["", {}],
    "policy": ["Verified", "guess"],
    "max_segments": [0, 10**17, "3", 3.0, True],
    "deadline_ms": [0, 0.5, False],
    "best_so_far": [1, True],
    "attempts": [0, "x" * 2000],
    "priority": [4, -4, [1]],
    "how": ["nothing", 1],
}

BAD_QUERIES = [
    "/puzzle", "/puzzle?kind=", "/puzzle?kind=sudoku&difficulty=", "/puzzle?kind=sudoku&seed=x",
    f"/puzzle?kind=sudoku&seed={10**30}", "/puzzle?kind=sudoku&held_out=nothing",
    "/models/nothing/tasks", f"/models/{'x' * 300}/tasks",
    "/models/nothing", "/models/nothing/card", f"/models/{'x' * 300}/card",
]  # fmt: skip


def checked_error(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert list(body) == ["error"]
    error = body["error"]
    assert list(error) == KEYS
    assert error["message"]
    assert error["remedy"]
    assert len(response.content) < 4000
    assert STOCK.search(response.text) is None, response.text
    assert response.text.endswith("}\n")
    return error


def test_every_malformed_body_is_a_4xx_with_rule_or_field(server: Server):
    bodies = [*NOT_JSON]
    bodies += [json.dumps({"puzzle": puzzle}).encode() for puzzle in BAD_PUZZLES]
    for body in bodies:
        response = server.http.post("/solve", content=body, headers=JSON)
        error = checked_error(response)
        assert response.status_code == 422, (body[:80], error)
        assert error["rule"] or error["field"], (body[:80], error)
    for field, values in BAD_FIELDS.items():
        for value in values:
            response = server.solve(QUESTION, **{field: value})
            error = checked_error(response)
            assert response.status_code in (404, 422), (field, value, error)
            assert error["field"] == field, (field, value)
    assert server.solve(QUESTION).status_code == 200


def test_wrong_bodies_and_queries_of_other_routes_get_the_same_shape(server: Server):
    for body in (b"{}", b"[]", b'{"kind": 1, "puzzle": {}, "solution": []}'):
        checked_error(server.http.post("/puzzle", content=body, headers=JSON))
        checked_error(server.http.post("/solve/stream", content=body, headers=JSON))
    for path in BAD_QUERIES:
        checked_error(server.http.get(path))
    wrong = server.http.post("/solve/batch?order=nothing", content=b"", headers=NDJSON)
    assert checked_error(wrong)["field"] == "order"
    lines = server.http.post("/solve/batch", content=b"[]\n{}\n", headers=NDJSON)
    assert STOCK.search(lines.text) is None


@pytest.mark.parametrize("path", ["/solve", "/solve/stream", "/solve/batch"])
def test_a_bare_get_is_told_a_command_that_works(server: Server, path: str):
    remedy = checked_error(server.http.get(path))["remedy"]
    command = shlex.split(remedy.partition(": ")[2])
    assert "solution" in ran(*command, "-s").stdout


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_bodies_of_windows_tools_are_read(server: Server, encoding: str):
    mark = "\ufeff" if encoding == "utf-16-le" else ""
    body = (mark + json.dumps({"puzzle": QUESTION}) + "\r\n").encode(encoding)
    solved = server.http.post("/solve", content=body, headers=JSON)
    assert solved.status_code == 200
    assert "event: answer" in server.http.post("/solve/stream", content=body, headers=JSON).text
    if encoding == "utf-8-sig":
        lines = server.http.post("/solve/batch", content=body + body[3:], headers=NDJSON)
        answers = [line["answer"] for line in lines_in(lines.text)]
        assert [answer["verified"] for answer in answers] == [True, True]


@pytest.mark.parametrize(
    "body",
    [
        "{puzzle:%s}", "'{puzzle:%s}'", "{ puzzle : 53..7 }", "{\\\"puzzle\\\":\\\"%s\\\"}",
        "{'puzzle': '%s'}", "'{\"puzzle\": \"%s\"}'", "{puzzle:[[1,2],[3,4]]}",
    ],
)  # fmt: skip
def test_a_body_whose_quotes_the_shell_took_is_told_so(server: Server, body: str):
    content = body.replace("%s", QUESTION).encode()
    told = checked_error(server.http.post("/solve", content=content, headers=JSON))
    assert "shell" in told["message"]
    line = server.http.post("/solve/batch", content=content, headers=NDJSON).json()
    assert "shell" in line["error"]["message"]


def test_refusals_say_what_is_wrong(server: Server):
    wrong = server.solve(QUESTION, how="nothing").json()["error"]
    assert wrong["message"].endswith("it is not 'plain' or 'hypotheses'")
    wrong = server.solve(QUESTION, max_segments=0).json()["error"]
    assert wrong["message"] == "the field 'max_segments' is not valid: it is below 1"
    wrong = server.http.get("/puzzle?kind=sudoku&seed=x").json()["error"]
    assert wrong["message"] == "the parameter 'seed' is not valid: it is not a whole number"


@pytest.mark.parametrize("path", ["/models", "/kinds", "/slots", "/livez", "/readyz"])
def test_json_is_one_line_that_ends(server: Server, path: str):
    for answer in (server.http.get(path), server.solve(QUESTION)):
        assert answer.text.count("\n") == 1
        assert answer.text.endswith("}\n")
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", 200),
        ("APPLICATION/JSON; charset=utf-8", 200),
        ("application/x-www-form-urlencoded", 200),  # of curl without a header
        ("", 200),
        ("text/plain", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/jsonx", 415),
        ("x" * 5000, 415),
    ],
)
def test_only_plain_json_is_read(server: Server, content_type: str, status: int):
    body = json.dumps({"puzzle": QUESTION})
    headers = {"content-type": content_type}
    response = server.http.post("/solve", content=body, headers=headers)
    assert response.status_code == status
    if status != 200:
        checked_error(response)
    if "json" not in content_type:
        lines = server.http.post("/solve/batch", content=body, headers=headers)
        assert lines.status_code == status
    for encoding in ("gzip", "utf-8"):
        headers["content-encoding"] = encoding
        packed = server.http.post("/solve", content=b"\x1f\x8b", headers=headers)
        assert packed.status_code == 415
        if status == 200:
            assert f"the content encoding is '{encoding}'" in checked_error(packed)["message"]
    headers["content-encoding"] = ""
    assert server.http.post("/solve", content=body, headers=headers).status_code == status


@pytest.mark.parametrize(
    ("path", "status"), [("/livez", 200), ("/docs", 200), ("/solve", 405), ("/no", 404)]
)
def test_head_is_answered_as_get_without_a_body(server: Server, path: str, status: int):
    answer = server.http.head(path)
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers["content-type"].startswith(server.http.get(path).headers["content-type"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/solve?a=1&b=2", 405),
        ("OPTIONS", "/solve", 405),
        ("FROB", "/solve", 405),
        ("F" * 21, "/solve", 400),
        ("POST", "/solve/", 404),
        ("GET", "/%00", 404),
        ("GET", "/..%2f..%2fetc/passwd", 404),
        ("GET", "/" + "x" * 4000, 404),
    ],
)
def test_wrong_paths_get_the_shape(server: Server, method: str, path: str, status: int):
    response = server.http.request(method, server.url + path)
    assert response.status_code == status
    assert "?" not in checked_error(response)["remedy"]
