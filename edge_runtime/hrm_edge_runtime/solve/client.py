"""A small client of a server: what is solved, what it refuses, and how long a refusal for the moment is waited out.

What listens at an address may be no server of ours. Its answers are bounded in bytes and in time, and one that is not
as `schema` describes it is a ServerError like any other.
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
PIECE = 100  # puzzles sent at a time: httpx sends a whole body before it reads, and their answers fit the buffers
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
MAX_DOUBLINGS = 10  # of the pause; after a thousand, in half a day without a server, a float could not hold it
MAX_ANSWER_BYTES = 8 << 20  # a hundred models take a tenth of it
MAX_LINE_BYTES = 1 << 20  # of a batch: ten times the longest answer, a 30 x 30 city with its route
NOT_NOW = frozenset(("queue-full", "loading", "draining", "engine-lost"))  # reasons of a line worth sending again
NOT_BY_THEN = "cannot-make-deadline"  # the one 503 that waiting does not mend: a deadline counts from each request

Fields = TypeVar("Fields", bound=BaseModel)


class ServerError(Exception):
    """A server's refusal; `detail` holds its reason, field, rule, cell, message and remedy."""

    def __init__(self, status: int, detail: ErrorDetail, retry_after_s: float = 0.0) -> None:
        super().__init__(f"{detail.message}; {detail.remedy}.")
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class UnavailableError(ServerError):
    """503, or 429 where a key has used up its share: not now; try again after `retry_after_s`."""


class UnreachableError(Exception):
    """No answer at all: nothing listens there, or the connection broke."""


@dataclass(kw_only=True)
class RetryPolicy:
    """Pauses drawn at random up to a bound that doubles, for `limit_s` after a success; never less than asked."""

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        self._num_pauses, self._success_s = 0, time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next try; None where it would be too late."""
        num_doublings = min(self._num_pauses, MAX_DOUBLINGS)
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**num_doublings)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        return pause_s if time.monotonic() + pause_s <= self._success_s + self.limit_s else None

    def wait(self, failure: Exception | None) -> bool:
        pause_s = self.pause_s(failure.retry_after_s if isinstance(failure, ServerError) else 0.0)
        if pause_s is not None:
            time.sleep(pause_s)
        return pause_s is not None


class Client:
    """Talks to one server, from any thread; a call waits out refusals for the moment for `patience_s`."""

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        patience_s: float = 0.0,
        timeout_s: float = 300.0,
        rng: random.Random | None = None,
    ) -> None:
        headers = {"accept-encoding": "identity"}  # what is unpacked would have no bound
        if api_key:
            headers["authorization"] = f"Bearer {api_key}"
        self._url = url = url if "://" in url else f"http://{url}"
        timeout = httpx.Timeout(timeout_s, connect=10.0)
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout)
        except (httpx.InvalidURL, ImportError, OSError, ValueError) as error:  # of the address, a proxy's, or the key
            remedy = "correct --url, the key, or the environment's proxy and certificates"
            raise UnreachableError(f"{url} cannot be asked ({error}): {remedy}.") from error
        self._patience_s = patience_s
        self._timeout_s = timeout_s
        self._rng = rng or random.Random()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def solve(self, puzzle: object, **fields: object) -> SolveAnswer:
        """Have one puzzle solved, in any notation that is a JSON value; `fields` are the others of a `SolveRequest`."""
        return self._patiently(SolveAnswer, "POST", "/solve", {"puzzle": puzzle, **fields})

    def solve_many(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ErrorDetail]]:
        """Yield each position and its answer or refusal, as they finish; what fails for the moment is sent again."""
        numbered = enumerate(requests)
        while piece := dict(itertools.islice(numbered, PIECE)):
            yield from self._piece(piece)

    def models(self) -> list[ModelView]:
        return self._patiently(ModelsAnswer, "GET", "/models").models

    def _piece(self, unanswered: dict[int, SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ErrorDetail]]:
        """Ask until every request has its answer or refusal, or patience is at its end."""
        retry = RetryPolicy(limit_s=self._patience_s, rng=self._rng)
        while unanswered:
            refused: dict[int, ErrorDetail] = {}
            failure: UnavailableError | UnreachableError | None = None
            try:
                for position, reply in self._lines(unanswered):
                    if isinstance(reply, ErrorDetail) and reply.reason in NOT_NOW:
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

    def _lines(self, requests: Mapping[int, SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ErrorDetail]]:
        awaited = dict(enumerate(requests, 1))
        body = "".join(f"{request.model_dump_json(exclude_none=True)}\n" for request in requests.values())
        headers = {"content-type": "application/x-ndjson"}
        with self._response("POST", "/solve/batch", content=body.encode(), headers=headers) as response:
            for text in self._lines_of(response):
                line = _read(_BatchLine, text, response.status_code)
                reply = line.answer or line.error
                if reply is None:
                    raise _not_ours(response.status_code, f"line {line.line} holds neither an answer nor an error")
                if line.line not in awaited:
                    raise _not_ours(response.status_code, f"line {line.line} is not waiting for an answer")
                yield awaited.pop(line.line), reply
        if awaited:
            raise UnreachableError(f"{self._url} did not answer line {min(awaited)}: run the command again.")

    def _patiently(self, fields: type[Fields], method: str, path: str, body: dict[str, Any] | None = None) -> Fields:
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
        """A response that says yes, its body unread; raises ServerError or UnreachableError for any other end."""
        try:
            with self._http.stream(method, path, **content) as response:
                if not response.is_success:
                    raise _error_from(response, self._whole(response))
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            remedy = "start hrm-serve there, or give another address"
            raise UnreachableError(f"no answer from {self._url} ({error}): {remedy}.") from error

    def _whole(self, response: httpx.Response) -> bytes:
        bound = _Bound(status=response.status_code, max_bytes=MAX_ANSWER_BYTES, limit_s=self._timeout_s)
        content = bytearray()
        for piece in response.iter_raw():
            bound.take(piece)
            content += piece
        return bytes(content)

    def _lines_of(self, response: httpx.Response) -> Iterator[bytes]:
        """Each line as soon as it is whole."""
        line = bytearray()
        bound = _Bound(status=response.status_code, max_bytes=MAX_LINE_BYTES, limit_s=self._timeout_s)
        for piece in response.iter_raw():
            first, *others = piece.split(b"\n")
            bound.take(first)
            line += first
            for other in others:
                yield bytes(line)
                bound.renew()
                bound.take(other)
                line = bytearray(other)
        if line:
            yield bytes(line)


class _BatchLine(BaseModel):
    """A line of /solve/batch: the number of a request's line, and what came of it."""

    line: int
    answer: SolveAnswer | None = None
    error: ErrorDetail | None = None


@dataclass(kw_only=True)
class _Bound:
    """What an answer, or one line of many, may take."""

    status: int
    max_bytes: int
    limit_s: float
    num_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def take(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        if self.num_bytes > self.max_bytes:
            raise _not_ours(self.status, f"the server's answer has more than {self.max_bytes} bytes")
        if time.monotonic() > self.began_s + self.limit_s:
            raise _not_ours(self.status, f"the server's answer did not end within {self.limit_s:g} s")

    def renew(self) -> None:
        self.num_bytes = 0
        self.began_s = time.monotonic()


def _read(fields: type[Fields], content: bytes, status: int) -> Fields:
    try:
        return fields.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:4]))
        problem = f"{place}: {first['msg']}" if place else first["msg"]
        raise _not_ours(status, f"the server does not answer as hrm-serve does ({problem[:200]})") from None


def _not_ours(status: int, message: str) -> ServerError:
    remedy = "check whether another server or a proxy listens at this address"
    detail = ErrorDetail(reason="unknown", field=None, rule=None, cell=None, message=message, remedy=remedy)
    return ServerError(status, detail)


def _error_from(response: httpx.Response, content: bytes) -> ServerError:
    status = response.status_code
    try:
        detail = ErrorAnswer.model_validate_json(content).error
    except ValidationError:  # a proxy's answer, not ours
        detail = _not_ours(status, f"the server answered {status} without a reason").detail
    if status in (429, 503) and detail.reason != NOT_BY_THEN:
        pause = response.headers.get("retry-after", "")  # a proxy may write a date instead, which counts as a second
        return UnavailableError(status, detail, float(pause) if pause.isdecimal() else 1.0)
    return ServerError(status, detail)
