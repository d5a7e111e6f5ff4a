"""Turns a program's puzzles into requests: text, rows, arrays, tasks, or finished requests."""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hrm_edge.errors import RefusedError
from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.errors import ServiceError, invalid
from hrm_edge_runtime.api.schema import ErrorDetail, SolveRequest

RequestOrRefusal = SolveRequest | ErrorDetail
"""The request of a puzzle, or the refusal of a puzzle that is not JSON."""


def request_from(puzzle: object, fields: Mapping[str, object]) -> SolveRequest:
    """The request for a puzzle; raises RefusedError."""
    request = request_or_refusal(puzzle, fields)
    if isinstance(request, ErrorDetail):
        raise RefusedError(request)
    return request


def requests_from(
    puzzles: Iterable[object], fields: Mapping[str, object]
) -> Iterator[RequestOrRefusal]:
    """Yield the request of each puzzle; raises RefusedError if the fields themselves are wrong."""
    request_from("", fields)
    if isinstance(puzzles, str | bytes | Mapping):
        refusal = invalid("not-a-list", "one puzzle was passed", "pass a list, or call solve")
        raise RefusedError(refusal.detail)
    for puzzle in puzzles:
        yield request_or_refusal(puzzle, fields)


def request_or_refusal(puzzle: object, fields: Mapping[str, object]) -> RequestOrRefusal:
    """The request for a puzzle, or why there is none. Requests and refusals stay as they are."""
    if isinstance(puzzle, RequestOrRefusal):
        return puzzle
    try:
        content = _json_of({**fields, "puzzle": puzzle})
        return decoding.validated(SolveRequest, content)
    except ServiceError as refusal:
        return refusal.detail


def _json_of(body: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(body, default=_as_list).encode()
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "pass text, rows, a flat list, or an array"
        raise invalid("not-json", f"the puzzle is not JSON ({error})", remedy) from None


def _as_list(value: object) -> object:
    """The JSON of a NumPy array or number; called for values that `json` cannot encode."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"it holds a {type(value).__name__}")
