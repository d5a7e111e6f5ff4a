"""A client of one server: it retries temporary refusals and bounds what it accepts.

Another program may listen at the address. Answers are bounded in bytes and in time, and an answer
that does not fit `api/schema` raises a ServerError.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from hrm_edge_runtime.api.schema import (
    ErrorAnswer,
    ErrorDetail,
    ModelsAnswer,
    ModelView,
    SolveAnswer,
    SolveRequest,
)

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles per request, because httpx sends the whole body before it reads answers
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
MAX_DOUBLINGS = 10  # doublings of the pause; unbounded, a float overflows after half a day
DEFAULT_RETRY_S = 1.0  # seconds to wait if a refusal has no Retry-After, or one with a date
MAX_ANSWER_BYTES = 8 << 20  # bytes of a whole answer; a hundred models take a tenth of it
# bytes of a line; ten times the longest answer, a 30x30 city with its route
MAX_LINE_BYTES = 1 << 20
# Reasons of a refused line that may not apply to the next try.
TEMPORARY = frozenset(("queue-full", "loading", "draining", "engine-lost"))
# Retrying does not help: the deadline starts again with each request.
MISSED_DEADLINE = "cannot-make-deadline"

Fields = TypeVar("Fields", bound=BaseModel)
Numbered = tuple[int, SolveAnswer | ErrorDetail]
"""The position of a request, and its reply."""


class ServerError(Exception):
    """A server's refusal; `detail` holds reason, field, rule, cell, message and remedy."""

    def __init__(self, status: int, detail: ErrorDetail, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{detail.message}; {detail.remedy}.")
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class UnavailableError(ServerError):
    """503, or 429 for a key over its limit: try again after `retry_after_s`."""


class UnreachableError(Exception):
    """No answer: nothing listens at the address, or the connection broke."""


@dataclass(kw_only=True)
class RetryPolicy:
    """Random pauses with a bound that doubles; gives up `limit_s` after the last success."""

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """Start over after a success."""
        self._num_pauses = 0
        self._success_s = time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """Seconds until the next try, at least `retry_after_s`; None after the limit."""
        num_doublings = min(self._num_pauses, MAX_DOUBLINGS)
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**num_doublings)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        next_try_s = time.monotonic() + pause_s
        if next_try_s > self._success_s + self.limit_s:
            return None
        return pause_s

    def wait(self, failure: Exception | None) -> bool:
        """Sleep until the next try; returns False after the limit."""
        retry_after_s = 0.0
        if isinstance(failure, ServerError):
            retry_after_s = failure.retry_after_s
        pause_s = self.pause_s(retry_after_s)
        if pause_s is None:
            return False
        time.sleep(pause_s)
        return True


class Client:
    """Talks to one server from any thread; a call retries temporary refusals for `patience_s`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = 0.0,
        timeout_s: float = 300.0,
        rng: random.Random | None = None,
    ) -> None:
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
        """Solve one puzzle; `fields` are the other fields of a `SolveRequest`."""
        body = {"puzzle": puzzle, **fields}
        return self._call(SolveAnswer, "POST", "/solve", body)

    def solve_many(self, requests: Iterable[SolveRequest]) -> Iterator[Numbered]:
        """Yield positions and replies as they finish; temporary refusals are sent again."""
        numbered = enumerate(requests)
        while True:
            piece = dict(itertools.islice(numbered, PIECE))
            if not piece:
                return
            yield from self._piece(piece)

    def models(self) -> list[ModelView]:
        return self._call(ModelsAnswer, "GET", "/models").models

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
        lines = [request.model_dump_json(exclude_none=True) for request in requests.values()]
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
                    raise _foreign(status, message)
                if line.line not in awaited:
                    raise _foreign(status, f"line {line.line} is not waiting for an answer")
                yield awaited.pop(line.line), reply
        if awaited:
            missing = f"{self._url} did not answer line {min(awaited)}"
            raise UnreachableError(f"{missing}: run the command again.")

    def _call(
        self, fields: type[Fields], method: str, path: str, body: dict[str, Any] | None = None
    ) -> Fields:
        """One call, repeated while the server is unavailable."""
        retry = RetryPolicy(limit_s=self._patience_s, rng=self._rng)
        while True:
            try:
                with self._response(method, path, json=body) as response:
                    return _read(fields, self._whole(response), response.status_code)
            except UnavailableError as error:
                if not retry.wait(error):
                    raise

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
            raise _foreign(self.status, message)
        if time.monotonic() > self.began_s + self.limit_s:
            message = f"the server's answer did not end within {self.limit_s:g} s"
            raise _foreign(self.status, message)

    def renew(self) -> None:
        """Start over with the next line."""
        self.num_bytes = 0
        self.began_s = time.monotonic()


def _http_client(url: str, api_key: str | None, timeout_s: float) -> httpx.Client:
    """A client without compression, because unpacked data would have no bound."""
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


def _read(fields: type[Fields], content: bytes, status: int) -> Fields:
    try:
        return fields.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        problem = first["msg"]
        place = ".".join(map(str, first["loc"][:4]))
        if place:
            problem = f"{place}: {problem}"
        message = f"the server does not answer as hrm-serve does ({problem[:200]})"
        raise _foreign(status, message) from None


def _foreign(status: int, message: str) -> ServerError:
    """The error for an answer that hrm-serve does not give."""
    detail = ErrorDetail(
        reason="unknown",
        field=None,
        rule=None,
        cell=None,
        message=message,
        remedy="check whether another server or a proxy listens at this address",
    )
    return ServerError(status, detail)


def _error_from(response: httpx.Response, content: bytes) -> ServerError:
    status = response.status_code
    try:
        detail = ErrorAnswer.model_validate_json(content).error
    except ValidationError:  # a proxy's answer
        detail = _foreign(status, f"the server answered {status} without a reason").detail
    if status in (429, 503) and detail.reason != MISSED_DEADLINE:
        return UnavailableError(status, detail, _retry_after_s(response))
    return ServerError(status, detail)


def _retry_after_s(response: httpx.Response) -> float:
    text = response.headers.get("retry-after", "")
    if text.isdecimal():
        return float(text)
    return DEFAULT_RETRY_S
