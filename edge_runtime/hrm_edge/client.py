"""A client of one server, or of a fleet behind one address: it retries temporary refusals."""

import contextlib
import itertools
import os
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import httpx

from hrm_edge.connection import KEY_VARIABLE, Connection, parsed
from hrm_edge.errors import ServerError, UnavailableError, UnreachableError, foreign
from hrm_edge.requests import (
    Numbered,
    Piece,
    Reply,
    merged,
    pieces_of,
    request_from,
    requests_from,
)
from hrm_edge_runtime.api.decoding import Fields
from hrm_edge_runtime.api.errors import status_of
from hrm_edge_runtime.api.schema import (
    BatchLine,
    ChangeAnswer,
    ErrorAnswer,
    ErrorDetail,
    ModelsAnswer,
    ModelView,
    SegmentView,
    SolveAnswer,
    SolveRequest,
)
from hrm_edge_runtime.contract.archive import Archive

DEFAULT_URL = "http://127.0.0.1:8000"
MAX_CONNECTIONS = 8  # batches at once, unless more are requested
# Reasons of a refused line that may not apply to the next try.
TEMPORARY = frozenset(("queue-full", "loading", "model-loading", "draining", "engine-lost"))
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0

Event = SegmentView | SolveAnswer


class Client:
    """Talks to one server from any thread; a call retries temporary refusals for `patience_s`.

    The key is `api_key`, or else HRM_API_KEY of the environment. `cacert` is a file with the
    server's certificate. Many puzzles are sent as `connections` batches at once: a fleet behind a
    proxy shares them; by default as many as a model has slots. A puzzle is text, rows, a flat
    list, an array, an ARC task, or a request with fields of its own.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        cacert: Path | str | None = None,
        connections: int | None = None,
        patience_s: float = 0.0,
        timeout_s: float = 300.0,
    ) -> None:
        if connections is not None and connections < 1:
            raise ValueError(f"connections is {connections}: pass 1 or more")
        if api_key is None:
            api_key = os.environ.get(KEY_VARIABLE)
        self._http = Connection(url, api_key, timeout_s, cacert)
        self._num_connections = connections
        self._patience_s = patience_s

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @property
    def url(self) -> str:
        return self._http.url

    def solve(self, puzzle: object, **fields: object) -> SolveAnswer:
        """Solve one puzzle; `fields` are the other fields of a request."""
        request = request_from(puzzle, fields)
        return self._call(SolveAnswer, "POST", "/solve", request)

    def solve_many(self, puzzles: Iterable[object], **fields: object) -> list[Reply]:
        """Answers or refusals in the order of the puzzles."""
        return in_order(self.as_finished(puzzles, **fields))

    def as_finished(
        self, puzzles: Iterable[object], **fields: object
    ) -> Generator[Numbered, None, None]:
        """Yield positions and replies as they finish; temporary refusals are sent again."""
        pieces = pieces_of(requests_from(puzzles, fields))
        first = next(pieces, {})
        second = next(pieces, None)
        if second is None:
            yield from self._solved(first)
            return
        every_piece = itertools.chain((first, second), pieces)
        if self._num_connections is None:
            slots = [model.slots for model in self.models()]
            self._num_connections = min(MAX_CONNECTIONS, max(slots, default=1))
        yield from merged(self._solved, every_piece, self._num_connections)

    def stream(self, puzzle: object, **fields: object) -> Generator[Event, None, None]:
        """Yield a view of each segment of one puzzle while it is solved, then the answer.

        A stream that breaks is sent again for `patience_s`; a segment is yielded once. The next
        stream may have fewer segments.
        """
        request = request_from(puzzle, fields)
        retry = RetryPolicy(limit_s=self._patience_s)
        num_yielded = 0
        while True:
            try:
                with self._sent("POST", "/solve/stream", request) as response:
                    for number, event in enumerate(self._events(response), 1):
                        if number > num_yielded or isinstance(event, SolveAnswer):
                            num_yielded = number
                            retry.renew()
                            yield event
                    return
            except (UnavailableError, UnreachableError) as error:
                if not retry.wait(error):
                    raise

    def models(self) -> list[ModelView]:
        return self._call(ModelsAnswer, "GET", "/models").models

    def push(self, archive: Archive) -> ChangeAnswer:
        """Send a bundle; the server tries it and serves it. Needs an admin's key."""
        headers = {"content-type": "application/x-tar", "content-length": str(archive.num_bytes)}
        path = f"/models/{quote(archive.name, safe='')}"
        sent = self._http.response("PUT", path, content=archive.pieces(), headers=headers)
        with sent as response:
            return self._http.whole(ChangeAnswer, response)

    def _solved(self, piece: Piece) -> Iterator[Numbered]:
        """Send requests until each has its reply or patience ends."""
        unanswered: dict[int, SolveRequest] = {}
        for position, request in piece.items():
            if isinstance(request, ErrorDetail):
                yield position, request
            else:
                unanswered[position] = request
        retry = RetryPolicy(limit_s=self._patience_s)
        while unanswered:
            refused: dict[int, ErrorDetail] = {}
            failure: UnavailableError | UnreachableError | None = None
            try:
                for position, reply in self._lines(unanswered):
                    if isinstance(reply, ErrorDetail) and reply.reason in TEMPORARY:
                        refused[position] = reply
                        continue
                    del unanswered[position]
                    retry.renew()
                    yield position, reply
            except (UnavailableError, UnreachableError) as error:
                failure = error
            if unanswered and not retry.wait(failure):
                if failure is not None:
                    raise failure
                yield from refused.items()
                return

    def _lines(self, requests: Mapping[int, SolveRequest]) -> Iterator[Numbered]:
        """Send one batch and yield its replies; the server numbers lines from 1."""
        awaited = dict(enumerate(requests, 1))
        lines = map(_json_of, requests.values())
        content = "".join(f"{line}\n" for line in lines).encode()
        headers = {"content-type": "application/x-ndjson"}
        batch = self._http.response("POST", "/solve/batch", content=content, headers=headers)
        with batch as response:
            status = response.status_code
            for text in self._http.lines(response):
                line = parsed(BatchLine, text, status)
                reply = line.answer or line.error
                if reply is None:
                    message = f"line {line.line} holds neither an answer nor an error"
                    raise foreign(status, message)
                if line.line not in awaited:
                    raise foreign(status, f"line {line.line} is not waiting for an answer")
                yield awaited.pop(line.line), reply
        if awaited:
            missing = f"{self.url} did not answer line {min(awaited)}"
            raise UnreachableError(f"{missing}: run the command again.")

    def _events(self, response: httpx.Response) -> Iterator[Event]:
        """Yield the events of a stream; an error event raises ServerError."""
        status = response.status_code
        name = ""
        for line in self._http.lines(response):
            key, _, value = line.partition(b": ")
            if key == b"event":
                name = value.decode("utf-8", "replace")
            elif key == b"data" and name == "segment":
                yield parsed(SegmentView, value, status)
            elif key == b"data" and name == "answer":
                yield parsed(SolveAnswer, value, status)
                return
            elif key == b"data":
                detail = parsed(ErrorAnswer, value, status).error
                kind = UnavailableError if detail.reason in TEMPORARY else ServerError
                raise kind(status_of(detail.reason), detail)
        raise UnreachableError(f"{self.url} did not finish the puzzle: send it again.")

    def _call(
        self, fields: type[Fields], method: str, path: str, request: SolveRequest | None = None
    ) -> Fields:
        """Send a request until it has an answer; one without a puzzle fails if nobody listens."""
        retry = RetryPolicy(limit_s=self._patience_s)
        while True:
            try:
                with self._sent(method, path, request) as response:
                    return self._http.whole(fields, response)
            except (UnavailableError, UnreachableError) as error:
                is_nobody = request is None and error.retry_after_s is None
                if is_nobody or not retry.wait(error):
                    raise

    def _sent(
        self, method: str, path: str, request: SolveRequest | None
    ) -> contextlib.AbstractContextManager[httpx.Response]:
        content = None
        if request is not None:
            content = _json_of(request).encode()
        headers = {"content-type": "application/json"}
        return self._http.response(method, path, content=content, headers=headers)


@dataclass(kw_only=True)
class RetryPolicy:
    """Random pauses with a bound that doubles; gives up `limit_s` after the last success."""

    limit_s: float
    rng: random.Random = field(default_factory=random.Random)
    _bound_s: float = FIRST_PAUSE_S
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """Start over after a success."""
        self._bound_s = FIRST_PAUSE_S
        self._success_s = time.monotonic()

    def wait(self, failure: Exception | None = None) -> bool:
        """Sleep until the next try, at least as long as a server asks; False after the limit."""
        pause_s = self.pause_s(getattr(failure, "retry_after_s", None) or 0.0)
        if time.monotonic() + pause_s > self._success_s + self.limit_s:
            return False
        time.sleep(pause_s)
        return True

    def pause_s(self, retry_after_s: float = 0.0) -> float:
        """Seconds until the next try."""
        bound_s = self._bound_s
        self._bound_s = min(LONGEST_PAUSE_S, 2 * bound_s)
        return retry_after_s + self.rng.uniform(0, bound_s)


def in_order(finished: Iterable[Numbered]) -> list[Reply]:
    """All replies, sorted by their positions."""
    replies = dict(finished)
    return [replies[position] for position in sorted(replies)]


def _json_of(request: SolveRequest) -> str:
    return request.model_dump_json(exclude_none=True)
