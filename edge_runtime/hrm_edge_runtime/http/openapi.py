"""How the routes describe themselves in OpenAPI: every status they may answer, and the bodies they take."""

from __future__ import annotations

import copy
from typing import Any

from fastapi import FastAPI

from hrm_edge_runtime.http.schema import ErrorAnswer, SolveRequest
from hrm_edge_runtime.http.served_model import ServedModel

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


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorAnswer, "description": ERRORS[status]} for status in (*statuses, 401, 405, 500)}


def body(media_type: str, what: str) -> dict[str, Any]:
    schema = {**SolveRequest.model_json_schema(), "description": what}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def streamed(media_type: str, what: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": what, "content": {media_type: {"schema": {"type": "string"}}}}}


def description(app: FastAPI, model: ServedModel) -> dict[str, Any]:
    """OpenAPI, with an example that the first of these very models takes."""
    described = copy.deepcopy(app.openapi())
    for path in ("/solve", "/solve/stream", "/solve/batch"):
        for body in described["paths"][path]["post"]["requestBody"]["content"].values():
            body["schema"]["properties"]["puzzle"]["examples"] = [model.sample]
    return described
