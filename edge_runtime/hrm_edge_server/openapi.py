"""The description at /openapi.json: each route's refusals, and examples of the served models."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from hrm_edge_runtime.api.errors import JSON, as_json
from hrm_edge_runtime.api.request import answer_from, parse_request
from hrm_edge_runtime.api.schema import (
    BatchLine,
    BundleRequest,
    ErrorAnswer,
    LabelRequest,
    SegmentView,
    SolveRequest,
)
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Result
from hrm_edge_server.middleware import OPEN_PATHS
from hrm_puzzles.puzzle import Described

TITLE = "HRM Edge"
VERSION = "0.1.0"
ABOUT = "Puzzles solved by a Hierarchical Reasoning Model, a segment at a time."
SERVERS = [{"url": "./", "description": "The server of this description."}]
REFERENCE = "#/components/schemas/"
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
    401: "No key, or an unknown one (only if the server requires keys)",
    403: "A page of another origin sent it, or the key is not an admin's",
    404: "No such path or model",
    405: "Another method is needed here",
    409: "It is the only model here",
    408: "The body came too slowly",
    413: "The body is too large",
    415: "The body is not plain JSON",
    422: "The request or its puzzle is not valid: field, rule and cell locate the fault",
    429: "This key sends requests faster than it may; see Retry-After",
    500: "A fault of the server or its engine",
    503: "Not now: queue-full, cannot-make-deadline, loading, draining or engine-lost; "
    "see Retry-After",
    507: "The memory budget or the folder of uploads has no room for this change",
    504: "The deadline passed first",
}
OF_EVERY_ROUTE = (401, 405, 500)


def error_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the refusals of a route, and of those that any route may send."""
    answers: dict[int | str, dict[str, Any]] = {}
    for status in (*statuses, *OF_EVERY_ROUTE):
        answers[status] = {"model": ErrorAnswer, "description": ERRORS[status]}
    return answers


FILE: dict[str, Any] = {"type": "string", "format": "binary"}
MODEL_NAME: dict[str, Any] = {
    "parameters": [
        {
            "name": "name",
            "in": "path",
            "required": True,
            "description": "The model's name, which is its bundle's name.",
            "schema": {"type": "string", "maxLength": 200},
        }
    ]
}


def query_of(fields: type[BaseModel]) -> dict[str, Any]:
    """The parameters of a query, each with its schema."""
    described = fields.model_json_schema()
    required = described.get("required", ())
    parameters: list[dict[str, Any]] = []
    for name, schema in described["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in required, "schema": schema}
        parameters.append(parameter)
    return {"parameters": parameters}


COMPONENTS = (SolveRequest, LabelRequest, BundleRequest, SegmentView, BatchLine)
"""Schemas that no route names as its answer. The answers' own come from the routes."""


def schema_of(*fields: type[BaseModel]) -> dict[str, Any]:
    """A schema that refers to one component, or to any of several."""
    references = [{"$ref": f"{REFERENCE}{one.__name__}"} for one in fields]
    return references[0] if len(references) == 1 else {"anyOf": references}


def event_of(*fields: type[BaseModel]) -> dict[str, Any]:
    """The schema of a server-sent event whose data is JSON of one of these kinds."""
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema_of(*fields)}
    properties = {"event": {"type": "string"}, "data": data}
    return {"type": "object", "required": ["event", "data"], "properties": properties}


def request_bodies(schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A body in one of several types, each with its schema."""
    content = {media_type: {"schema": schema} for media_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def free_answer(
    media_type: str, schema: dict[str, Any], description: str, *refusals: int
) -> dict[int | str, dict[str, Any]]:
    """The responses of a route: the refusals, and 200 with a body of this schema."""
    answers = error_answers(*refusals)
    answers[200] = {"description": description, "content": {media_type: {"schema": schema}}}
    return answers


class Description:
    """The description of the models that are served now, kept as bytes until they change."""

    def __init__(self, *, with_keys: bool) -> None:
        self._with_keys = with_keys
        self._models: Sequence[ServedModel] = ()
        self._page = b""

    def page(self, routes: Sequence[BaseRoute], models: Sequence[ServedModel]) -> bytes:
        if not self._page or self._models != models:
            description = self._described(routes, models)
            self._page = f"{as_json(description)}\n".encode()
            self._models = models
        return self._page

    def _described(
        self, routes: Sequence[BaseRoute], models: Sequence[ServedModel]
    ) -> dict[str, Any]:
        """OpenAPI with examples of these models, and with the keys if the server requires them."""
        description = get_openapi(title=TITLE, version=VERSION, description=ABOUT, routes=routes)
        description["servers"] = SERVERS
        paths = description["paths"]
        schemas = description["components"]["schemas"]
        _, described = models_json_schema(
            [(one, "validation") for one in COMPONENTS], ref_template=REFERENCE + "{model}"
        )
        schemas.update(described["$defs"])
        kinds = {model.puzzle.name: model for model in models}
        examples = _describe_puzzles(schemas["SolveRequest"]["properties"]["puzzle"], kinds)
        for path in SOLVING:
            contents = paths[path]["post"]["requestBody"]["content"]
            for body in contents.values():
                body["examples"] = examples
        solved = paths["/solve"]["post"]["responses"]["200"]["content"][JSON]
        solved["examples"] = _answer_examples(kinds)
        description["components"]["securitySchemes"] = KEY_SCHEMES
        if self._with_keys:
            description["security"] = [{scheme: []} for scheme in KEY_SCHEMES]
            for path in OPEN_PATHS:
                paths[path]["get"]["security"] = []
        return description


def _describe_puzzles(puzzle: dict[str, Any], kinds: Mapping[str, ServedModel]) -> dict[str, Any]:
    """Add what the puzzles of these kinds are to their schema; returns examples of bodies."""
    paragraphs = [puzzle["description"]]
    samples: list[object] = []
    examples: dict[str, Any] = {}
    for kind, model in kinds.items():
        samples.append(model.sample)
        forms: Mapping[str, object] = {"sample": model.sample}
        if isinstance(model.puzzle, Described):
            paragraphs.append(f"{kind}: {model.puzzle.about}.")
            forms = model.puzzle.forms(model.sample)
        for form, question in forms.items():
            examples[f"{kind}, {form}"] = {"value": {"puzzle": question}}
    puzzle["description"] = "\n\n".join(paragraphs)
    puzzle["examples"] = samples
    return examples


def _answer_examples(kinds: Mapping[str, ServedModel]) -> dict[str, Any]:
    examples: dict[str, Any] = {}
    for kind, model in kinds.items():
        if model.held_out is not None:
            question, answer = model.held_out
            examples[kind] = {"value": _answer_example(model, question, answer)}
    return examples


def _answer_example(model: ServedModel, question: object, answer: object) -> dict[str, Any]:
    """The answer to a question as the server would write it, with typical figures."""
    puzzle = model.puzzle
    request = SolveRequest(puzzle=question)
    parsed = parse_request([model], request, task_id=0, arrival_s=0.0)
    verdict = PROVEN if puzzle.proof_exists else VOTED
    answer_T = puzzle.encode(puzzle.parse(answer).grid)
    result = Result(task_id=0, answer_T=answer_T, **verdict, **COST)
    return answer_from(parsed, result).model_dump(mode="json")
