"""The description at /openapi.json: each route's refusals, and examples of the served models."""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from hrm_edge_runtime.api.errors import JSON
from hrm_edge_runtime.api.schema import (
    BatchLine,
    ErrorAnswer,
    LabelRequest,
    SegmentView,
    SolveRequest,
)
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_server.middleware import OPEN_PATHS
from hrm_puzzles.puzzle import Described

REFERENCE = "#/components/schemas/"
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


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's description of the refusals of a route, besides those of every route."""
    return {one: {"model": ErrorAnswer, "description": ERRORS[one]} for one in statuses}


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


COMPONENTS = (SolveRequest, LabelRequest, SegmentView, BatchLine)
"""Schemas that no route names as its answer. The answers' own come from the routes."""


def schema_of(*fields: type[BaseModel]) -> dict[str, Any]:
    """A schema that refers to one component, or to any of several."""
    references = [{"$ref": f"{REFERENCE}{one.__name__}"} for one in fields]
    return references[0] if len(references) == 1 else {"anyOf": references}


def request_bodies(schemas: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """A body in one of several types, each with its schema."""
    content = {media_type: {"schema": schema} for media_type, schema in schemas.items()}
    return {"requestBody": {"required": True, "content": content}}


def free_answer(
    media_type: str, schema: dict[str, Any], description: str
) -> dict[int | str, dict[str, Any]]:
    """The response 200 of a route, with a body of this schema."""
    return {200: {"description": description, "content": {media_type: {"schema": schema}}}}


def event_answer(
    media_type: str, description: str, *fields: type[BaseModel]
) -> dict[int | str, dict[str, Any]]:
    """The response 200 of a route that sends events whose data is JSON of one of these kinds.

    No `schema`, since generated clients would parse the whole body as one event.
    """
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": schema_of(*fields)}
    properties = {"event": {"type": "string"}, "data": data}
    event = {"type": "object", "required": ["event", "data"], "properties": properties}
    content = {media_type: {"itemSchema": event}}
    return {200: {"description": description, "content": content}}


def described(
    models: Sequence[ServedModel], routes: Sequence[BaseRoute], *, with_keys: bool
) -> dict[str, Any]:
    """OpenAPI with examples of these models, and with the keys if the server requires them."""
    description = get_openapi(
        title="HRM Edge",
        version="0.1.0",
        description="Puzzles solved by a Hierarchical Reasoning Model, a segment at a time.",
        routes=routes,
        servers=[{"url": "./", "description": "The server of this description."}],
    )
    paths = description["paths"]
    schemas = description["components"]["schemas"]
    _, described = models_json_schema(
        [(one, "validation") for one in COMPONENTS], ref_template=REFERENCE + "{model}"
    )
    schemas.update(described["$defs"])
    examples = _describe_puzzles(schemas["SolveRequest"]["properties"]["puzzle"], models)
    for path in SOLVING:
        contents = paths[path]["post"]["requestBody"]["content"]
        for body in contents.values():
            body["examples"] = examples
    description["components"]["securitySchemes"] = KEY_SCHEMES
    if with_keys:
        description["security"] = [{scheme: []} for scheme in KEY_SCHEMES]
        for path in OPEN_PATHS:
            paths[path]["get"]["security"] = []
    return description


def _describe_puzzles(puzzle: dict[str, Any], models: Sequence[ServedModel]) -> dict[str, Any]:
    """Add what the puzzles of these models are to their schema; returns examples of bodies."""
    kinds = {model.puzzle.name: model for model in models}
    paragraphs = [puzzle["description"]]
    samples: list[object] = []
    examples: dict[str, Any] = {}
    for kind, model in kinds.items():
        samples.append(model.sample)
        examples[kind] = {"value": {"puzzle": model.sample}}
        if isinstance(model.puzzle, Described):
            paragraphs.append(f"{kind}: {model.puzzle.about}.")
    puzzle["description"] = "\n\n".join(paragraphs)
    puzzle["examples"] = samples
    return examples
