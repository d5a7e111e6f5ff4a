"""Turns a program's puzzles into requests: text, rows, arrays, tasks, or finished requests."""

import json
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.errors import ServiceError, invalid
from hrm_edge_runtime.api.schema import ErrorDetail, SolveRequest
from hrm_edge_runtime.solve.errors import RefusedError

NumberedRequest = tuple[int, SolveRequest | ErrorDetail]
"""The position of a puzzle with its request, or with the refusal of a puzzle that is not JSON."""


def request_from(puzzle: object, fields: Mapping[str, object]) -> SolveRequest:
    """The request for a puzzle; a request stays as it is. Raises RefusedError."""
    if isinstance(puzzle, SolveRequest):
        return puzzle
    try:
        content = _json_of({**fields, "puzzle": puzzle})
        return decoding.validated(SolveRequest, content)
    except ServiceError as refusal:
        raise RefusedError(refusal.detail) from None


def numbered_requests(
    puzzles: Iterable[object], fields: Mapping[str, object]
) -> Iterator[NumberedRequest]:
    """Yield the request of each puzzle; raises RefusedError if the fields themselves are wrong."""
    request_from("", fields)
    if isinstance(puzzles, str | bytes | Mapping):
        refusal = invalid("not-a-list", "one puzzle was passed", "pass a list, or call solve")
        raise RefusedError(refusal.detail)
    for position, puzzle in enumerate(puzzles):
        yield position, _request_or_refusal(puzzle, fields)


def _request_or_refusal(puzzle: object, fields: Mapping[str, object]) -> SolveRequest | ErrorDetail:
    try:
        return request_from(puzzle, fields)
    except RefusedError as refusal:
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
