"""A small client of a server: what is solved, what it refuses, and how long a refusal for the moment is waited out."""

import contextlib
import itertools
import json
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from hrm_edge_runtime.http.schema import ErrorDetail, ModelsAnswer, ModelView, SolveAnswer, SolveRequest

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles sent at a time: httpx sends a whole body before it reads, and their answers fit the buffers
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
NOT_NOW = frozenset(("queue-full", "loading", "draining", "engine-lost"))  # reasons of a line worth sending again
NOT_BY_THEN = "cannot-make-deadline"  # the one 503 that waiting does not mend: a deadline counts from each request


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
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_pauses)
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
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url = url if "://" in url else f"http://{url}"
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=10.0))
        self._patience_s = patience_s
        self._rng = rng or random.Random()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def solve(self, puzzle: object, **fields: object) -> SolveAnswer:
        """Have one puzzle solved, in any notation that is a JSON value; `fields` are the others of a `SolveRequest`."""
        return SolveAnswer.model_validate(self._patiently("POST", "/solve", {"puzzle": puzzle, **fields}))

    def solve_many(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ErrorDetail]]:
        """Yield each position and its answer or refusal, as they finish; what fails for the moment is sent again."""
        numbered = enumerate(requests)
        while piece := dict(itertools.islice(numbered, PIECE)):
            yield from self._piece(piece)

    def models(self) -> list[ModelView]:
        return ModelsAnswer.model_validate(self._patiently("GET", "/models")).models

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
        positions = list(requests)
        body = "".join(f"{request.model_dump_json(exclude_none=True)}\n" for request in requests.values())
        headers = {"content-type": "application/x-ndjson"}
        with self._response("POST", "/solve/batch", content=body.encode(), headers=headers) as response:
            for line in map(json.loads, response.iter_lines()):
                kind, said = (SolveAnswer, line["answer"]) if "answer" in line else (ErrorDetail, line["error"])
                yield positions[line["line"] - 1], kind.model_validate(said)

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None = None) -> object:
        retry = RetryPolicy(limit_s=self._patience_s, rng=self._rng)
        while True:
            try:
                with self._response(method, path, json=body) as response:
                    return json.loads(response.read())
            except UnavailableError as error:
                if not retry.wait(error):
                    raise

    @contextlib.contextmanager
    def _response(self, method: str, path: str, **content: Any) -> Generator[httpx.Response]:
        """A response that says yes, its body unread; raises ServerError or UnreachableError for any other end."""
        try:
            with self._http.stream(method, path, **content) as response:
                if not response.is_success:
                    response.read()
                    raise _error_from(response)
                yield response
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            remedy = "start hrm-serve there, or give another address"
            raise UnreachableError(f"no answer from {self._url} ({error}): {remedy}.") from error


def _error_from(response: httpx.Response) -> ServerError:
    status = response.status_code
    try:
        detail = ErrorDetail.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, not ours
        message = f"the server answered {status} without a reason"
        remedy = "look whether another server or a proxy listens at this address"
        detail = ErrorDetail(reason="unknown", field=None, rule=None, cell=None, message=message, remedy=remedy)
    if status in (429, 503) and detail.reason != NOT_BY_THEN:
        pause = response.headers.get("retry-after", "")  # a proxy may write a date instead, which counts as a second
        return UnavailableError(status, detail, float(pause) if pause.isdecimal() else 1.0)
    return ServerError(status, detail)
