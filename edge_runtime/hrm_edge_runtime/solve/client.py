"""A small client: one method for each thing a server does, one error class for each thing it may say instead."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import httpx

from hrm_edge_runtime.batching.halting import PolicyKind
from hrm_edge_runtime.http.schema import ErrorDetail, ModelsAnswer, ModelView, SolveAnswer, SolveRequest
from hrm_edge_runtime.solve.client_errors import (
    DeadlineMissedError,
    KeyRefusedError,
    RefusedError,
    ServerError,
    UnavailableError,
    UnreachableError,
    error_from,
)
from hrm_edge_runtime.solve.retry import Patience

__all__ = [
    "Client",
    "DeadlineMissedError",
    "KeyRefusedError",
    "RefusedError",
    "ServerError",
    "UnavailableError",
    "UnreachableError",
]

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles sent at a time: httpx sends a whole body before it reads, and their answers fit the buffers
NOT_NOW = frozenset(("queue-full", "loading", "draining", "engine-lost"))  # reasons of a line worth sending again


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
        best_so_far: bool | None = None,
        priority: int | None = None,
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
            "best_so_far": best_so_far,
            "priority": priority,
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
                    raise error_from(response)
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
        raise error_from(response)

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
