"""A small client: one method for each thing a server does, one error class for each thing it may say instead."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

from hrm_edge_runtime.batching.halting import PolicyKind
from hrm_edge_runtime.service.schema import ErrorDetail, ModelsAnswer, ModelView, SolveAnswer, SolveRequest

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles sent at a time: httpx sends a whole body before it reads, and their answers fit the buffers
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
NOT_NOW = frozenset(("queue-full", "loading", "draining", "engine-lost"))  # reasons of a line worth sending again


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
    """503, or 429 where a key has used up its share: not now; try again after `retry_after_s`."""


class DeadlineMissedError(ServerError):
    """504: the deadline passed first."""


class UnreachableError(Exception):
    """No answer at all: nothing listens there, or the connection broke."""


@dataclass(kw_only=True)
class Patience:
    """Pauses that grow, for as long as `limit_s` after the last success; never shorter than a server asks for.

    Each is drawn at random up to a bound that doubles: clients who were refused together do not return together.
    """

    limit_s: float
    rng: random.Random
    _num_pauses: int = 0
    _success_s: float = field(default_factory=time.monotonic)

    def renew(self) -> None:
        """After a success everything begins anew."""
        self._num_pauses, self._success_s = 0, time.monotonic()

    def pause_s(self, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next try; None where it would be too late."""
        bound_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**self._num_pauses)
        self._num_pauses += 1
        pause_s = retry_after_s + self.rng.uniform(0, bound_s)
        return pause_s if time.monotonic() + pause_s <= self._success_s + self.limit_s else None


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

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
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
    ) -> SolveAnswer:
        """Have one puzzle solved, in any notation that is a JSON value."""
        fields = {
            "puzzle": puzzle,
            "kind": kind,
            "model": model,
            "policy": policy,
            "max_segments": max_segments,
            "attempts": attempts,
            "deadline_ms": deadline_ms,
        }
        stated = {name: value for name, value in fields.items() if value is not None}
        return SolveAnswer.model_validate(self._patiently("POST", "/solve", stated))

    def solve_many(self, requests: Iterable[SolveRequest]) -> Iterator[tuple[int, SolveAnswer | ServerError]]:
        """Each request's position and its answer or refusal, as they finish; memory does not grow with their number.

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
        """Ask until every request has its end."""
        patience = self._patience()
        while unanswered:
            refused: dict[int, ServerError] = {}
            failure: UnavailableError | UnreachableError | None = None
            try:
                for position, outcome in self._lines(unanswered):
                    if isinstance(outcome, ServerError) and outcome.detail.reason in NOT_NOW:
                        refused[position] = outcome
                        continue
                    del unanswered[position]
                    patience.renew()
                    yield position, outcome
            except (UnavailableError, UnreachableError) as error:
                failure = error
            if unanswered and not _wait(patience, failure):
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
                    yield positions[answered["line"] - 1], _outcome(answered)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from error

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None = None) -> object:
        patience = self._patience()
        while True:
            try:
                return self._call(method, path, body)
            except UnavailableError as error:
                if not _wait(patience, error):
                    raise

    def _patience(self) -> Patience:
        return Patience(limit_s=self._patience_s, rng=self._rng)

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


def _wait(patience: Patience, failure: Exception | None) -> bool:
    """Sleep before the next try; false where there shall be none."""
    pause_s = patience.pause_s(failure.retry_after_s if isinstance(failure, ServerError) else 0.0)
    if pause_s is not None:
        time.sleep(pause_s)
    return pause_s is not None


def _outcome(answered: dict[str, Any]) -> SolveAnswer | ServerError:
    """What a line of a batch says; an error in a line has no status of its own."""
    if "answer" in answered:
        return SolveAnswer.model_validate(answered["answer"])
    return ServerError(200, ErrorDetail.model_validate(answered["error"]))


def _error_from(response: httpx.Response) -> ServerError:
    try:
        detail = ErrorDetail.model_validate(response.json()["error"])
    except (ValueError, KeyError, TypeError):  # a proxy's answer, not ours
        detail = ErrorDetail(
            reason="unknown",
            field=None,
            rule=None,
            cell=None,
            message=f"the server answered {response.status_code} without a reason",
            remedy="look whether another server or a proxy listens at this address",
        )
    if response.status_code in (429, 503):
        return UnavailableError(response.status_code, detail, _seconds(response.headers.get("retry-after", "")))
    return _CLASS_OF.get(response.status_code, _class_of_range(response.status_code))(response.status_code, detail)


def _seconds(retry_after: str) -> float:
    """What the header says; a proxy may write a date instead, which counts as a second."""
    return float(retry_after) if retry_after.isdecimal() else 1.0


_CLASS_OF: dict[int, type[ServerError]] = {401: KeyRefusedError, 504: DeadlineMissedError}


def _class_of_range(status: int) -> type[ServerError]:
    return RefusedError if 400 <= status < 500 else ServerError
