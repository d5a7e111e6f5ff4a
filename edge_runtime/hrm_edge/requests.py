"""Turns a program's puzzles into requests, and sends them as several batches at once.

A puzzle is text, rows, an array, a task, or a finished request. The boards behind one address share
the batches.
"""

import json
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

import numpy as np

from hrm_edge.errors import RefusedError
from hrm_edge_runtime.api import decoding
from hrm_edge_runtime.api.errors import ServiceError, invalid
from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer, SolveRequest
from hrm_puzzles.reading.records import values_of

NUM_PUZZLES = 32  # of one batch: httpx sends its whole body before it reads answers
MAX_AHEAD = 4  # batches per connection that may overtake the oldest one: bounds what waits for it

RequestOrRefusal = SolveRequest | ErrorDetail
"""The request of a puzzle, or the refusal of a puzzle that is not JSON."""
Reply = SolveAnswer | ErrorDetail
Numbered = tuple[int, Reply]
"""The position of a puzzle, and its reply."""
Piece = dict[int, RequestOrRefusal]
"""Requests by their positions."""


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
    """The JSON of an array, tensor, frame or number; called for what `json` cannot encode."""
    if hasattr(value, "__array__"):
        return values_of(np.asanyarray(value))
    raise TypeError(f"it holds a {type(value).__name__}")


def pieces_of(requests: Iterable[RequestOrRefusal]) -> Iterator[Piece]:
    piece: Piece = {}
    for position, request in enumerate(requests):
        piece[position] = request
        if len(piece) == NUM_PUZZLES:
            yield piece
            piece = {}
    if piece:
        yield piece


def merged(
    send: Callable[[Piece], Iterator[Numbered]], pieces: Iterable[Piece], num_connections: int
) -> Generator[Numbered, None, None]:
    """The replies to all pieces; at most `num_connections` pieces are sent at once.

    The caller's thread reads the pieces, other threads send them. The first error ends the run.
    """
    finished: queue.SimpleQueue[Numbered | Exception | int] = queue.SimpleQueue()
    stop = threading.Event()

    def run(number: int, piece: Piece) -> None:
        try:
            for reply in send(piece):
                finished.put(reply)
                if stop.is_set():
                    return
        except Exception as error:
            finished.put(error)
        finished.put(number)

    running: set[int] = set()
    unsent = enumerate(pieces)
    upcoming = next(unsent, None)
    try:
        while running or upcoming is not None:
            if upcoming is not None and _may_begin(upcoming[0], running, num_connections):
                running.add(upcoming[0])
                threading.Thread(target=run, args=upcoming, name="hrm-batch", daemon=True).start()
                upcoming = next(unsent, None)
                continue
            item = finished.get()
            if isinstance(item, int):
                running.remove(item)
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        stop.set()


def _may_begin(number: int, running: set[int], num_connections: int) -> bool:
    oldest = min(running, default=number)
    return len(running) < num_connections and number - oldest < MAX_AHEAD * num_connections
