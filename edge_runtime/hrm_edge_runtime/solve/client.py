"""A small client: one method for each thing a server does, one error class for each thing it may say instead."""

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from hrm_edge_runtime.batching.halting import PolicyKind
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


class RefusedError(ServerError):
    """4xx: the request or its puzzle cannot be accepted; sending it again changes nothing."""


class KeyRefusedError(RefusedError):
    """401: the server asks for a key."""


class UnavailableError(ServerError):
    """Any other 503, or 429 where a key has used up its share: not now; try again after `retry_after_s`."""


class DeadlineMissedError(ServerError):
    """504: the deadline passed first; or 503: it could only pass first. Ask again with a later one."""


class UnreachableError(Exception):
    """No answer at all: nothing listens there, or the connection broke."""


@dataclass(kw_only=True)
class RetryPolicy:
    """Pauses that grow, for as long as `limit_s` after the last success; never shorter than a server asks for.

    Each is drawn at random up to a bound that doubles: clients who were refused together do not return together.
    """

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """Begin anew after a success."""
        self._num_pauses, self._success_s = 0, time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next try; None where it would be too late."""
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_pauses)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        return pause_s if time.monotonic() + pause_s <= self._success_s + self.limit_s else None

    def wait(self, failure: Exception | None) -> bool:
        """Sleep before the next try; False where there is to be none."""
        pause_s = self.pause_s(failure.retry_after_s if isinstance(failure, ServerError) else 0.0)
        if pause_s is not None:
            time.sleep(pause_s)
        return pause_s is not None


class Client:
    """Talks to one server; safe to share between threads, and a context manager.

    `patience_s` is how long a call may wait out refusals for the moment (a full queue, a restarting engine) before it
    gives up; `solve_many` waits out broken connections too, and counts from the last answer.
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
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=10.0))
        self._patience_s = patience_s
        self._rng = rng or random.Random()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def solve(
        self,
        puzzle: object,
        *,
        kind: str | None = None,
        model: str | None = None,
        policy: PolicyKind | None = None,
        max_segments: int | None = None,
        attempts: int | None = None,
        deadline_ms: int | None = None,
        best_so_far: bool | None = None,
        priority: int | None = None,
    ) -> SolveAnswer:
        """Have one puzzle solved, in any notation that is a JSON value."""
        stated = {name: value for name, value in locals().items() if name != "self" and value is not None}
        return SolveAnswer.model_validate(self._patiently("POST", "/solve", stated))

    def solve_many(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ServerError]]:
        """Yield each request's position and its answer or refusal, as they finish; memory does not grow with them.

        What fails for the moment, as the lines of an engine that died, is sent again for as long as there is patience.
        """
        piece: dict[int, SolveRequest] = {}
        for position, request in enumerate(requests):
            piece[position] = request
            if len(piece) == PIECE:
                yield from self._piece(piece)
                piece = {}
        if piece:
            yield from self._piece(piece)

    def models(self) -> list[ModelView]:
        """The served models."""
        return ModelsAnswer.model_validate(self._patiently("GET", "/models")).models

    def ready(self) -> bool:
        """Whether the server takes new work now."""
        try:
            self._call("GET", "/readyz")
        except (UnavailableError, UnreachableError):
            return False
        return True

    def _piece(self, unanswered: dict[int, SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ServerError]]:
        """Ask until every request has its answer or refusal, or patience is at its end."""
        retry = self._retry_policy()
        while unanswered:
            refused: dict[int, ServerError] = {}
            failure: UnavailableError | UnreachableError | None = None
            try:
                for position, reply in self._lines(unanswered):
                    if isinstance(reply, ServerError) and reply.detail.reason in NOT_NOW:
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

    def _lines(self, requests: Mapping[int, SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ServerError]]:
        positions = list(requests)
        body = "".join(f"{request.model_dump_json(exclude_none=True)}\n" for request in requests.values())
        headers = {"content-type": "application/x-ndjson"}
        try:
            with self._http.stream("POST", "/solve/batch", content=body.encode(), headers=headers) as response:
                if not response.is_success:
                    response.read()
                    raise _error_from(response)
                for line in response.iter_lines():
                    answered = json.loads(line)
                    if "answer" in answered:
                        reply = SolveAnswer.model_validate(answered["answer"])
                    else:  # an error in a line has no status of its own
                        reply = ServerError(200, ErrorDetail.model_validate(answered["error"]))
                    yield positions[answered["line"] - 1], reply
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None = None) -> object:
        retry = self._retry_policy()
        while True:
            try:
                return self._call(method, path, body)
            except UnavailableError as error:
                if not retry.wait(error):
                    raise

    def _retry_policy(self) -> RetryPolicy:
        return RetryPolicy(limit_s=self._patience_s, rng=self._rng)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> object:
        try:
            response = self._http.request(method, path, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error
        if response.is_success:
            return response.json()
        raise _error_from(response)

    def _unreachable(self, error: Exception) -> UnreachableError:
        return UnreachableError(
            f"no answer from {self._url} ({error}): start hrm-serve there, or give another address."
        )


def _error_from(response: httpx.Response) -> ServerError:
    status = response.status_code
    try:
        detail = ErrorDetail.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, not ours
        detail = ErrorDetail(
            reason="unknown",
            field=None,
            rule=None,
            cell=None,
            message=f"the server answered {status} without a reason",
            remedy="look whether another server or a proxy listens at this address",
        )
    if detail.reason == NOT_BY_THEN or status == 504:
        return DeadlineMissedError(status, detail)
    if status in (429, 503):
        pause = response.headers.get("retry-after", "")  # a proxy may write a date instead, which counts as a second
        return UnavailableError(status, detail, float(pause) if pause.isdecimal() else 1.0)
    if status == 401:
        return KeyRefusedError(status, detail)
    return (RefusedError if 400 <= status < 500 else ServerError)(status, detail)
