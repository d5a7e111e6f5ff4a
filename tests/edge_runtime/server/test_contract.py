"""The description at /openapi.json against the running server: every status and shape is declared.

Requests are drawn by schemathesis from the description itself, good ones and bad ones, and sent
over a real socket.
"""

import json
import re
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi import checks
from service_tools import Server

pytestmark = pytest.mark.process

UNAVAILABLE = (503, 504)
CONFORMANCE = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
NEGATIVE = schemathesis.GenerationMode.NEGATIVE


@schemathesis.serializer("application/x-ndjson")
def one_line(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A batch of one line."""
    return json.dumps(value).encode() + b"\n"


@schemathesis.serializer("application/x-tar")
def no_archive(_: schemathesis.SerializationContext, value: object) -> bytes:
    """A body that is not a bundle."""
    return repr(value).encode()


def check(case: Any) -> None:
    response = case.call(timeout=30)
    is_ours = response.status_code < 500 or response.status_code in UNAVAILABLE
    assert is_ours, case.as_curl_command()
    case.validate_response(response, checks=CONFORMANCE)


@pytest.mark.parametrize("num_examples", [8, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_declared(server: Server, mode: Any, num_examples: int):
    description = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [result.ok() for result in description.get_all_operations()]
    assert len(operations) >= 9
    chosen = settings(
        max_examples=num_examples,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    for operation in operations:
        if operation.body or mode != NEGATIVE:  # the others take nothing to get wrong
            chosen(given(operation.as_strategy(generation_mode=mode))(check))()
    assert server.status("/readyz") == 200


def test_generators_find_short_names_and_components(server: Server):
    described = server.http.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    for name in ("SolveRequest", "SolveAnswer", "SegmentView", "BatchLine", "ErrorAnswer"):
        assert name in schemas
    names = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)
    assert {"solve", "solve_stream", "solve_batch", "models", "put_model"} <= set(names)
    text = json.dumps(described)
    for reference in re.findall(r'"#/components/schemas/([^"]+)"', text):
        assert reference in schemas
    streamed = described["paths"]["/solve/stream"]["post"]["responses"]["200"]["content"]
    assert streamed["text/event-stream"]["itemSchema"]["properties"]["data"]["contentSchema"]
    assert described["servers"]
