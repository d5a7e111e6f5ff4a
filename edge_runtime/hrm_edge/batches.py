"""Several batches at once, so that the boards behind one address share them."""

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator

from hrm_edge.requests import RequestOrRefusal
from hrm_edge_runtime.api.schema import ErrorDetail, SolveAnswer

NUM_PUZZLES = 32  # of one batch: httpx sends its whole body before it reads answers
MAX_AHEAD = 4  # batches per connection that may overtake the oldest one: bounds what waits for it

Reply = SolveAnswer | ErrorDetail
Numbered = tuple[int, Reply]
"""The position of a puzzle, and its reply."""
Piece = dict[int, RequestOrRefusal]
"""Requests by their positions."""


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
