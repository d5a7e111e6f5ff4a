"""The description at /openapi.json: each route's refusals, and examples in every notation of the served models."""

import copy
from collections.abc import Iterable
from typing import Any

from hrm_edge_runtime.api.errors import JSON
from hrm_edge_runtime.api.request import answer_from, parse_request
from hrm_edge_runtime.api.schema import ErrorAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result
from hrm_puzzles.puzzle import Described

PROVEN: Any = {"status": "proven", "verified": True, "halted_by": "proven"}
VOTED: Any = {
    "status": "halted",
    "verified": None,
    "halted_by": "learned",
    "votes": 1,
    "vote_share": 1.0,
}
COST: Any = {
    "segments": 4,
    "total_segments": 4,
    "num_attempts": 1,
    "margin": 1.5,
    "queue_s": 4e-4,
    "compute_s": 0.02,
}
SOLVING = ("/solve", "/solve/stream", "/solve/batch")
KEY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A key that hrm-key has made."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "password": {
        "type": "http",
        "scheme": "basic",
        "description": "Any user name, and the key as the password.",
    },
}

ERRORS: dict[int, str] = {
    401: "No key, or not a known one (only where the server asks for keys)",
    403: "A page of another origin asks, or this key is no admin's",
    404: "No such path or model",
    405: "Another method is needed here",
    409: "It is the only model here",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is no plain JSON",
    422: "The request or its puzzle cannot be accepted: field, rule and cell say where",
    429: "This key asks more often than it may; see Retry-After",
    500: "A fault of the server or its engine",
    503: "Not now: queue-full, cannot-make-deadline, loading, draining or engine-lost; see Retry-After",
    507: "There is no memory for it: the budget, and what nobody uses, are not enough",
    504: "The deadline passed first",
}


def error_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the refusals of a route; any may answer 401, 405 and 500."""
    return {
        status: {"model": ErrorAnswer, "description": ERRORS[status]}
        for status in (*statuses, 401, 405, 500)
    }


def request_body(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def puzzle_body(media_type: str, what: str) -> dict[str, Any]:
    return request_body(media_type, {**SolveRequest.model_json_schema(), "description": what})


def free_answer(media_type: str, what: str, *refusals: int) -> dict[int | str, dict[str, Any]]:
    return {
        200: {"description": what, "content": {media_type: {"schema": {}}}},
        **error_answers(*refusals),
    }


def described(
    base: dict[str, Any], models: Iterable[ServedModel], *, with_keys: bool
) -> dict[str, Any]:
    """OpenAPI with examples of these very models, and with the keys where the server asks for them."""
    description = copy.deepcopy(base)
    paths, kinds = description["paths"], {model.puzzle.name: model for model in models}
    about = [
        f"{kind}: {model.puzzle.about}."
        for kind, model in kinds.items()
        if isinstance(model.puzzle, Described)
    ]
    questions: dict[str, Any] = {}
    for kind, model in kinds.items():
        forms = (
            model.puzzle.forms(model.sample)
            if isinstance(model.puzzle, Described)
            else {"sample": model.sample}
        )
        questions |= {
            f"{kind}, {form}": {"value": {"puzzle": question}} for form, question in forms.items()
        }
    for path in SOLVING:
        for body in paths[path]["post"]["requestBody"]["content"].values():
            puzzle = body["schema"]["properties"]["puzzle"]
            puzzle["description"] = "\n\n".join([puzzle["description"], *about])
            puzzle["examples"] = [model.sample for model in kinds.values()]
            body["examples"] = questions
    answers = {
        kind: {"value": example}
        for kind, model in kinds.items()
        if (example := _answer_example(model))
    }
    paths["/solve"]["post"]["responses"]["200"]["content"][JSON]["examples"] = answers
    description["components"]["securitySchemes"] = KEY_SCHEMES
    if with_keys:
        description["security"] = [{scheme: []} for scheme in KEY_SCHEMES]
        paths["/livez"]["get"]["security"] = []
    return description


def _answer_example(model: ServedModel) -> dict[str, Any] | None:
    if model.held_out is None:
        return None
    puzzle, (question, answer) = model.puzzle, model.held_out
    parsed = parse_request([model], SolveRequest(puzzle=question), task_id=0, arrival_s=0.0)
    verdict = PROVEN if puzzle.proof_exists else VOTED
    result = Result(task_id=0, answer_T=puzzle.encode(puzzle.parse(answer).grid), **verdict, **COST)
    return answer_from(parsed, result).model_dump(mode="json")
