"""What the freeze records over HTTP: the interface, metrics, answers and refusals."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

import freeze_cases as cases
from checkout import Checkout

PUBLISH_S = 0.5  # the engine publishes the state of its lanes ten times a second
ANSWER = (
    "solution",
    "status",
    "solved",
    "verified",
    "segments",
    "halted_by",
    "model",
    "attempts",
    "total_segments",
    "votes",
)
ERROR = ("reason", "field", "rule", "cell")
SENTENCES = ("description", "summary", "title", "example", "examples")  # of an OpenAPI page


def served(checkout: Checkout) -> dict[str, Any]:
    """What clients and dashboards rely on: the interface, the names of metrics and of fields."""
    with checkout.served(["sudoku-6x6"]) as http:
        answer = http.post("/solve", json={"puzzle": cases.SUDOKU})
        time.sleep(PUBLISH_S)
        models = http.get("/models").json()["models"]
        return {
            "openapi": without_sentences(http.get("/openapi.json").json()),
            "metrics": metrics_of(http.get("/metrics").text),
            "answer headers": sorted(answer.headers),
            "answer keys": list(answer.json()),
            "models keys": [sorted(model) for model in models],
            "slots keys": keys_of(http.get("/slots").json()),
        }


def without_sentences(page: Any) -> Any:
    """An OpenAPI page without its texts; a field of a schema may bear any name."""
    if isinstance(page, list):
        return [without_sentences(inner) for inner in page]
    if not isinstance(page, dict):
        return page
    kept: dict[str, Any] = {}
    for key, value in page.items():
        if key == "properties":
            kept[key] = {name: without_sentences(field) for name, field in value.items()}
        elif key not in SENTENCES:
            kept[key] = without_sentences(value)
    return with_sorted_names(kept)


def with_sorted_names(schema: dict[str, Any]) -> dict[str, Any]:
    """`required` and `enum` are sets."""
    for key in ("required", "enum"):
        if isinstance(schema.get(key), list):
            schema[key] = sorted(schema[key], key=str)
    return schema


def metrics_of(page: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for family in text_string_to_metric_families(page):
        labels = {label for sample in family.samples for label in sample.labels}
        found[family.name] = {"type": family.type, "labels": sorted(labels)}
    return found


def keys_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [keys_of(inner) for inner in value[:1]]
    return None


def answers(checkout: Checkout) -> dict[str, Any]:
    """Answers to fixed puzzles of every kind, a batch, a stream, several attempts, refusals."""
    with checkout.served(cases.SERVED) as http:
        return {
            "single": {kind: answers_of_kind(http, kind) for kind in cases.SERVED},
            "batch": batch_answers(http),
            "stream": stream_events(http),
            "rows": solve(http, rows_of(cases.SUDOKU, 6), "sudoku-6x6"),
            "attempts": [
                best_of_four(http, cases.PUZZLES["sudoku"][3], "sudoku"),
                best_of_four(http, cases.PUZZLES["arc-7x7"][0], "arc-7x7"),
            ],
            "refusals": refusals(http),
        }


def answers_of_kind(http: httpx.Client, kind: str) -> list[Any]:
    return [solve(http, puzzle, kind) for puzzle in cases.PUZZLES[kind]]


def solve(http: httpx.Client, puzzle: Any, kind: str) -> dict[str, Any]:
    return answer_of(http.post("/solve", json={"puzzle": puzzle, "kind": kind}).json())


def answer_of(body: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: body[key] for key in ANSWER if key in body}
    if "error" in body:
        kept["error"] = error_of(body["error"])
    return kept


def error_of(error: Mapping[str, Any]) -> dict[str, Any]:
    return {key: error.get(key) for key in ERROR}


def batch_answers(http: httpx.Client) -> list[dict[str, Any]]:
    lines: list[str] = []
    for puzzle in cases.PUZZLES["sudoku-6x6"]:
        lines.append(json.dumps({"puzzle": puzzle, "kind": "sudoku-6x6"}))
    content = "\n".join([*lines, '{"puzzle": 5}', "no JSON"])
    batch = http.post("/solve/batch?order=kept", content=content, headers=cases.LINES_TYPE)
    return [batch_line(json.loads(line)) for line in batch.text.splitlines()]


def batch_line(line: Mapping[str, Any]) -> dict[str, Any]:
    kept = dict(line)
    if "answer" in kept:
        kept["answer"] = answer_of(kept["answer"])
    if "error" in kept:
        kept["error"] = error_of(kept["error"])
    return kept


def stream_events(http: httpx.Client) -> dict[str, int]:
    stream = http.post("/solve/stream", json={"puzzle": cases.SUDOKU})
    return dict(Counter(re.findall(r"^event: (\w+)$", stream.text, re.M)))


def rows_of(line: str, width: int) -> list[list[int]]:
    digits = [0 if character == "." else int(character) for character in line]
    starts = range(0, len(digits), width)
    return [digits[start : start + width] for start in starts]


def best_of_four(http: httpx.Client, puzzle: Any, kind: str) -> dict[str, Any]:
    """Which attempts are made depends on timing, so only the answer is kept."""
    body = http.post("/solve", json={"puzzle": puzzle, "kind": kind, "attempts": 4}).json()
    return {key: body.get(key) for key in ("solution", "verified")}


def refusals(http: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, content in cases.REFUSED_SOLVES.items():
        found[name] = refusal(http.post("/solve", **content))
    for name, (method, path, content) in cases.REFUSED_REQUESTS.items():
        found[name] = refusal(http.request(method, path, **content))
    return found


def refusal(response: httpx.Response) -> dict[str, Any]:
    return {"status": response.status_code, **error_of(response.json()["error"])}
