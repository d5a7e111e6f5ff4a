"""What the freeze records over HTTP: the interface, metrics, answers and refusals."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

import freeze_cases as cases
from checkout import Checkout, Record

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
EVENT = re.compile(r"^event: (\w+)$", re.MULTILINE)
ERROR = ("reason", "field", "rule", "cell")
SENTENCES = ("description", "summary", "title", "example", "examples")  # of an OpenAPI page


def served(checkout: Checkout) -> Record:
    """What clients and dashboards rely on: the interface, the names of metrics and of fields."""
    with checkout.served(["sudoku-6x6"]) as http:
        answer = http.post("/solve", json={"puzzle": cases.SUDOKU})
        time.sleep(PUBLISH_S)
        openapi = http.get("/openapi.json")
        metrics = http.get("/metrics")
        models = http.get("/models")
        slots = http.get("/slots")
        return {
            "openapi": without_sentences(openapi.json()),
            "metrics": metrics_of(metrics.text),
            "answer headers": sorted(answer.headers),
            "answer keys": list(answer.json()),
            "models keys": [sorted(model) for model in models.json()["models"]],
            "slots keys": keys_of(slots.json()),
        }


def without_sentences(page: Any) -> Any:
    """An OpenAPI page without its texts. Fields of schemas stay, whatever their names."""
    if isinstance(page, list):
        return [without_sentences(inner) for inner in page]
    if not isinstance(page, dict):
        return page
    kept: Record = {}
    for key, value in page.items():
        if key == "properties":
            kept[key] = {name: without_sentences(field) for name, field in value.items()}
        elif key not in SENTENCES:
            kept[key] = without_sentences(value)
    return with_sorted_names(kept)


def with_sorted_names(schema: Record) -> Record:
    """The page with `required` and `enum` sorted, because they are sets."""
    for key in ("required", "enum"):
        if isinstance(schema.get(key), list):
            schema[key] = sorted(schema[key], key=str)
    return schema


def metrics_of(page: str) -> Record:
    found: Record = {}
    for family in text_string_to_metric_families(page):
        labels: set[str] = set()
        for sample in family.samples:
            labels.update(sample.labels)
        found[family.name] = {"type": family.type, "labels": sorted(labels)}
    return found


def keys_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: keys_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [keys_of(inner) for inner in value[:1]]
    return None


def answers(checkout: Checkout) -> Record:
    """Answers to fixed puzzles of every kind, a batch, a stream, several attempts, refusals."""
    with checkout.served(cases.SERVED) as http:
        rows = rows_of(cases.SUDOKU, 6)
        return {
            "single": single_answers(http),
            "batch": batch_answers(http),
            "stream": stream_events(http),
            "rows": solve(http, rows, cases.SIX),
            "attempts": [
                best_of_four(http, cases.PUZZLES["sudoku"][3], "sudoku"),
                best_of_four(http, cases.PUZZLES["arc-7x7"][0], "arc-7x7"),
            ],
            "refusals": refusals(http),
        }


def single_answers(http: httpx.Client) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for kind in cases.SERVED:
        puzzles = cases.PUZZLES[kind]
        found[kind] = [solve(http, puzzle, kind) for puzzle in puzzles]
    return found


def solve(http: httpx.Client, puzzle: Any, kind: str) -> Record:
    body = {"puzzle": puzzle, "kind": kind}
    response = http.post("/solve", json=body)
    return answer_of(response.json())


def picked(body: Mapping[str, Any], keys: Sequence[str]) -> Record:
    """The values of these keys; None for a key that is missing."""
    return {key: body.get(key) for key in keys}


def answer_of(body: Mapping[str, Any]) -> Record:
    present = [key for key in ANSWER if key in body]
    kept = picked(body, present)
    if "error" in body:
        kept["error"] = picked(body["error"], ERROR)
    return kept


def batch_answers(http: httpx.Client) -> list[Record]:
    lines: list[str] = []
    for puzzle in cases.PUZZLES[cases.SIX]:
        body = {"puzzle": puzzle, "kind": cases.SIX}
        lines.append(json.dumps(body))
    lines += ['{"puzzle": 5}', "no JSON"]
    content = "\n".join(lines)
    batch = http.post("/solve/batch?order=kept", content=content, headers=cases.LINES_TYPE)
    answers = map(json.loads, batch.text.splitlines())
    return [batch_line(answer) for answer in answers]


def batch_line(line: Mapping[str, Any]) -> Record:
    kept = dict(line)
    if "answer" in kept:
        kept["answer"] = answer_of(kept["answer"])
    if "error" in kept:
        kept["error"] = picked(kept["error"], ERROR)
    return kept


def stream_events(http: httpx.Client) -> dict[str, int]:
    stream = http.post("/solve/stream", json={"puzzle": cases.SUDOKU})
    events = EVENT.findall(stream.text)
    return dict(Counter(events))


def rows_of(line: str, width: int) -> list[list[int]]:
    digits = [int(character) for character in line.replace(".", "0")]
    starts = range(0, len(digits), width)
    return [digits[start : start + width] for start in starts]


def best_of_four(http: httpx.Client, puzzle: Any, kind: str) -> Record:
    """Which attempts are made depends on timing, so only the answer is kept."""
    body = {"puzzle": puzzle, "kind": kind, "attempts": 4}
    response = http.post("/solve", json=body)
    return picked(response.json(), ("solution", "verified"))


def refusals(http: httpx.Client) -> Record:
    found: Record = {}
    for name, content in cases.REFUSED_SOLVES.items():
        response = http.post("/solve", **content)
        found[name] = refusal(response)
    for name, (method, path, content) in cases.REFUSED_REQUESTS.items():
        response = http.request(method, path, **content)
        found[name] = refusal(response)
    return found


def refusal(response: httpx.Response) -> Record:
    error = response.json()["error"]
    return {"status": response.status_code, **picked(error, ERROR)}
