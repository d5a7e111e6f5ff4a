"""A client of one server: it retries temporary refusals and bounds what it accepts.

Another program may listen at the address. Answers are bounded in bytes and in time, and an answer
that does not fit `api/schema` raises a ServerError.
"""

import contextlib
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ValidationError

from hrm_edge_runtime.api.errors import status_of
from hrm_edge_runtime.api.schema import (
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
from hrm_edge_runtime.contract.faults import words_for
from hrm_edge_runtime.solve.errors import (
    ServerError,
    UnavailableError,
    UnreachableError,
    foreign,
)
from hrm_edge_runtime.solve.key import key_of_environment
from hrm_edge_runtime.solve.requests import request_from, requests_from
from hrm_edge_runtime.solve.retry import RetryPolicy

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles per request, because httpx sends the whole body before it reads answers
DEFAULT_RETRY_S = 1.0  # seconds to wait if a refusal has no Retry-After, or one with a date
JSON_TYPE = {"content-type": "application/json"}
MAX_ANSWER_BYTES = 8 << 20  # bytes of a whole answer; a hundred models take a tenth of it
# bytes of a line; ten times the longest answer, a 30x30 city with its route
MAX_LINE_BYTES = 1 << 20
# Reasons of a refused line that may not apply to the next try.
TEMPORARY = frozenset(("queue-full", "loading", "model-loading", "draining", "engine-lost"))
UNAUTHORIZED = 401
KEY_REMEDY = "set HRM_API_KEY or pass the key, with --key-file or in Python with api_key"
# Retrying does not help: the deadline starts again with each request.
MISSED_DEADLINE = "cannot-make-deadline"

Fields = TypeVar("Fields", bound=BaseModel)
Reply = SolveAnswer | ErrorDetail
Event = SegmentView | SolveAnswer
Numbered = tuple[int, Reply]
"""The position of a puzzle, and its reply."""


class Client:
    """Talks to one server from any thread; a call retries temporary refusals for `patience_s`.

    The key is `api_key`, or else HRM_API_KEY of the environment. A puzzle is text, rows, a flat
    list, an array, an ARC task, or a request with fields of its own.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = 0.0,
        timeout_s: float = 300.0,
        rng: random.Random | None = None,
    ) -> None:
        if api_key is None:
            api_key = key_of_environment()
        self._url = url if "://" in url else f"http://{url}"
        self._http = _http_client(self._url, api_key, timeout_s)
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._rng = rng or random.Random()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

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
        unanswered: dict[int, SolveRequest] = {}
        for position, request in enumerate(requests_from(puzzles, fields)):
            if isinstance(request, ErrorDetail):
                yield position, request
                continue
            unanswered[position] = request
            if len(unanswered) == PIECE:
                yield from self._piece(unanswered)
        yield from self._piece(unanswered)

    def stream(self, puzzle: object, **fields: object) -> Generator[Event, None, None]:
        """Yield a view of each segment of one puzzle while it is solved, then the answer."""
        request = request_from(puzzle, fields)
        with self._admitted("POST", "/solve/stream", request) as response:
            yield from self._events(response)

    def models(self) -> list[ModelView]:
        return self._call(ModelsAnswer, "GET", "/models").models

    def push(self, archive: Archive) -> ChangeAnswer:
        """Send a bundle; the server tries it and serves it. Needs an admin's key."""
        headers = {"content-type": "application/x-tar", "content-length": str(archive.num_bytes)}
        path = f"/models/{quote(archive.name, safe='')}"
        with self._response("PUT", path, content=archive.pieces(), headers=headers) as response:
            return _read(ChangeAnswer, self._whole(response), response.status_code)

    def _piece(self, unanswered: dict[int, SolveRequest]) -> Iterator[Numbered]:
        """Send requests until each has its reply or patience ends."""
        retry = RetryPolicy(limit_s=self._patience_s, rng=self._rng)
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
        batch = self._response("POST", "/solve/batch", content=content, headers=headers)
        with batch as response:
            status = response.status_code
            for text in self._lines_of(response):
                line = _read(_BatchLine, text, status)
                reply = line.answer or line.error
                if reply is None:
                    message = f"line {line.line} holds neither an answer nor an error"
                    raise foreign(status, message)
                if line.line not in awaited:
                    raise foreign(status, f"line {line.line} is not waiting for an answer")
                yield awaited.pop(line.line), reply
        if awaited:
            missing = f"{self._url} did not answer line {min(awaited)}"
            raise UnreachableError(f"{missing}: run the command again.")

    def _events(self, response: httpx.Response) -> Iterator[Event]:
        """Yield the events of a stream; an error event raises ServerError."""
        status = response.status_code
        name = ""
        for line in self._lines_of(response):
            key, _, value = line.partition(b": ")
            if key == b"event":
                name = value.decode("utf-8", "replace")
            elif key == b"data" and name == "segment":
                yield _read(SegmentView, value, status)
            elif key == b"data" and name == "answer":
                yield _read(SolveAnswer, value, status)
                return
            elif key == b"data":
                detail = _read(ErrorAnswer, value, status).error
                raise _refusal(status_of(detail.reason), detail)
        raise UnreachableError(f"{self._url} did not finish the puzzle: send it again.")

    def _call(
        self, fields: type[Fields], method: str, path: str, request: SolveRequest | None = None
    ) -> Fields:
        with self._admitted(method, path, request) as response:
            return _read(fields, self._whole(response), response.status_code)

    @contextlib.contextmanager
    def _admitted(
        self, method: str, path: str, request: SolveRequest | None
    ) -> Generator[httpx.Response]:
        """As `_response`, but retried while the server is unavailable."""
        content = None
        if request is not None:
            content = _json_of(request).encode()
        retry = RetryPolicy(limit_s=self._patience_s, rng=self._rng)
        with contextlib.ExitStack() as stack:
            response = None
            while response is None:
                try:
                    sent = self._response(method, path, content=content, headers=JSON_TYPE)
                    response = stack.enter_context(sent)
                except UnavailableError as error:
                    if not retry.wait(error):
                        raise
            yield response

    @contextlib.contextmanager
    def _response(self, method: str, path: str, **content: Any) -> Generator[httpx.Response]:
        """A successful response with its body unread; raises ServerError or UnreachableError."""
        try:
            with self._http.stream(method, path, **content) as response:
                if not response.is_success:
                    raise _error_from(response, self._whole(response))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            remedy = "start hrm-serve there, or give another address"
            raise UnreachableError(f"no answer from {self._url} ({error}): {remedy}.") from error

    def _whole(self, response: httpx.Response) -> bytes:
        bound = self._bound(response, MAX_ANSWER_BYTES)
        content = bytearray()
        for piece in response.iter_raw():
            bound.take(piece)
            content += piece
        return bytes(content)

    def _lines_of(self, response: httpx.Response) -> Iterator[bytes]:
        """Yield each line as soon as it is complete."""
        line = bytearray()
        bound = self._bound(response, MAX_LINE_BYTES)
        for piece in response.iter_raw():
            first, *others = piece.split(b"\n")
            bound.take(first)
            line += first
            for other in others:
                yield bytes(line)
                line = bytearray(other)
                bound.renew()
                bound.take(other)
        if line:
            yield bytes(line)

    def _bound(self, response: httpx.Response, max_bytes: int) -> "_Bound":
        status = response.status_code
        return _Bound(status=status, max_bytes=max_bytes, limit_s=self._timeout_s)


def in_order(finished: Iterable[Numbered]) -> list[Reply]:
    """All replies, sorted by their positions."""
    replies = dict(finished)
    return [replies[position] for position in sorted(replies)]


class _BatchLine(BaseModel):
    """A line of /solve/batch: the number of a request's line, and its reply."""

    line: int
    answer: SolveAnswer | None = None
    error: ErrorDetail | None = None


@dataclass(kw_only=True)
class _Bound:
    """Limits of an answer, or of one line of a batch."""

    status: int
    max_bytes: int
    limit_s: float
    num_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def take(self, piece: bytes) -> None:
        """Count a piece; raises ServerError beyond a limit."""
        self.num_bytes += len(piece)
        if self.num_bytes > self.max_bytes:
            message = f"the server's answer has more than {self.max_bytes} bytes"
            raise foreign(self.status, message)
        if time.monotonic() > self.began_s + self.limit_s:
            message = f"the server's answer did not end within {self.limit_s:g} s"
            raise foreign(self.status, message)

    def renew(self) -> None:
        """Start over with the next line."""
        self.num_bytes = 0
        self.began_s = time.monotonic()


def _http_client(url: str, api_key: str | None, timeout_s: float) -> httpx.Client:
    """A client without compression, because unpacked data would have no limit."""
    headers = {"accept-encoding": "identity"}
    if api_key:
        headers["authorization"] = f"Bearer {api_key}"
    timeout = httpx.Timeout(timeout_s, connect=10.0)
    try:
        return httpx.Client(base_url=url, headers=headers, timeout=timeout)
    # the address, the key, or a proxy or certificate of the environment is wrong
    except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:
        remedy = "correct --url, the key, or the environment's proxy and certificates"
        raise UnreachableError(f"cannot connect to {url} ({error}): {remedy}.") from error


def _json_of(request: SolveRequest) -> str:
    return request.model_dump_json(exclude_none=True)


def _read(fields: type[Fields], content: bytes, status: int) -> Fields:
    try:
        return fields.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        problem = words_for(first)
        place = ".".join(map(str, first["loc"][:4]))
        if place:
            problem = f"{place}: {problem}"
        message = f"the server does not answer as hrm-serve does ({problem[:200]})"
        raise foreign(status, message) from None


def _error_from(response: httpx.Response, content: bytes) -> ServerError:
    status = response.status_code
    try:
        detail = ErrorAnswer.model_validate_json(content).error
    except ValidationError:  # a proxy's answer
        detail = foreign(status, f"the server answered {status} without a reason").detail
    if status == UNAUTHORIZED:
        detail = detail.model_copy(update={"remedy": KEY_REMEDY})
    return _refusal(status, detail, _retry_after_s(response))


def _refusal(
    status: int, detail: ErrorDetail, retry_after_s: float = DEFAULT_RETRY_S
) -> ServerError:
    if status in (429, 503) and detail.reason != MISSED_DEADLINE:
        return UnavailableError(status, detail, retry_after_s)
    return ServerError(status, detail)


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    return DEFAULT_RETRY_S
