"""The description at /openapi.json against the running server: no status undeclared, no answer of another shape.

Requests are drawn by schemathesis from the description itself, good ones and bad ones, and sent over a real socket.
"""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from service_tools import Server

pytestmark = pytest.mark.process

UNAVAILABLE = (503, 504)
CONFORMANCE: Any = [status_code_conformance, content_type_conformance, response_schema_conformance]


@schemathesis.serializer("application/x-ndjson")
def one_line(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """A batch of one line."""
    return json.dumps(value).encode() + b"\n"


@pytest.fixture(scope="module")
def description(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def conforms(description: Any, num_examples: int, mode: Any) -> int:
    """Send what is drawn to every operation; how many there are."""
    operations = [result.ok() for result in description.get_all_operations()]
    if mode == schemathesis.GenerationMode.NEGATIVE:
        operations = [
            operation for operation in operations if operation.body
        ]  # the others take nothing to get wrong
    for operation in operations:

        @given(operation.as_strategy(generation_mode=mode))
        @settings(
            max_examples=num_examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        def run(case: Any) -> None:
            response = case.call(timeout=30)
            assert response.status_code < 500 or response.status_code in UNAVAILABLE, (
                case.as_curl_command()
            )
            case.validate_response(response, checks=CONFORMANCE)

        run()
    return len(operations)


def test_every_answer_is_one_that_the_description_declares(
    server: Server, description: Any
) -> None:
    assert (
        checks.not_a_server_error not in CONFORMANCE
    )  # 503 and 504 are declared, and nothing else above 499 is
    assert conforms(description, 8, schemathesis.GenerationMode.POSITIVE) >= 9
    assert server.status("/readyz") == 200


def test_requests_against_the_description_are_refused_as_it_declares(
    server: Server, description: Any
) -> None:
    conforms(description, 8, schemathesis.GenerationMode.NEGATIVE)
    assert server.status("/readyz") == 200


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_the_description_holds_however_long_one_tries(
    server: Server, description: Any, mode: Any
) -> None:
    conforms(description, 300, mode)
    assert server.status("/readyz") == 200
