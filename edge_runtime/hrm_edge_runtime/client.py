"""A small client: one method for each thing a server does, one error class for each thing it may say instead."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any

import httpx

from hrm_edge_runtime.batching.halting import PolicyKind
from hrm_edge_runtime.service.schema import ErrorDetail, ModelsAnswer, ModelView, SolveAnswer, SolveRequest

DEFAULT_URL = "http://127.0.0.1:8000"
PIECE = 100  # puzzles sent at a time: httpx sends a whole body before it reads, and their answers fit the buffers
RETRY_S = 1.0
NOT_NOW = frozenset(("queue-full", "loading", "draining", "engine-lost"))  # reasons of a line worth sending again

Numbered = tuple[int, SolveRequest]


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
    """503: not now; try again after `retry_after_s`."""


class DeadlineMissedError(ServerError):
    """504: the deadline passed first."""


class UnreachableError(Exception):
    """No answer at all: nothing listens there, or the connection broke."""


class Client:
    """Talks to one server; safe to share between threads, and a context manager.

    `patience_s` is how long a call may wait out 503s (a full queue, a restarting engine) before it gives up.
    """

    def __init__(
        self, url: str = DEFAULT_URL, *, api_key: str | None = None, patience_s: float = 0.0, timeout_s: float = 300.0
    ) -> None:
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._url = url
        self._http = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(timeout_s, connect=10.0))
        self._patience_s = patience_s

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

        Lines that fail for the moment, as those of an engine that died, are sent again for as long as `patience_s`.
        """
        piece: list[Numbered] = []
        for numbered in enumerate(requests):
            piece.append(numbered)
            if len(piece) == PIECE:
                yield from self._piece(piece)
                piece = []
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

    def _piece(self, piece: list[Numbered]) -> Iterator[tuple[int, SolveAnswer | ServerError]]:
        give_up_s = time.monotonic() + self._patience_s
        while piece:
            is_last = time.monotonic() + RETRY_S > give_up_s
            again: list[Numbered] = []
            for (position, request), outcome in self._lines(piece):
                if isinstance(outcome, ServerError) and outcome.detail.reason in NOT_NOW and not is_last:
                    again.append((position, request))
                else:
                    yield position, outcome
            piece = again
            time.sleep(RETRY_S if piece else 0.0)

    def _lines(self, piece: list[Numbered]) -> Iterator[tuple[Numbered, SolveAnswer | ServerError]]:
        body = "".join(f"{request.model_dump_json(exclude_none=True)}\n" for _, request in piece)
        headers = {"content-type": "application/x-ndjson"}
        try:
            with self._http.stream("POST", "/solve/batch", content=body.encode(), headers=headers) as response:
                if not response.is_success:
                    response.read()
                    raise _error_from(response)
                for line in response.iter_lines():
                    answered = json.loads(line)
                    yield piece[answered["line"] - 1], _outcome(answered)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _patiently(self, method: str, path: str, body: dict[str, Any] | None = None) -> object:
        give_up_s = time.monotonic() + self._patience_s
        while True:
            try:
                return self._call(method, path, body)
            except UnavailableError as error:
                if time.monotonic() + error.retry_after_s > give_up_s:
                    raise
                time.sleep(error.retry_after_s)

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
    if response.status_code == 503:
        return UnavailableError(503, detail, float(response.headers.get("retry-after", "1")))
    return _CLASS_OF.get(response.status_code, _class_of_range(response.status_code))(response.status_code, detail)


_CLASS_OF: dict[int, type[ServerError]] = {401: KeyRefusedError, 504: DeadlineMissedError}


def _class_of_range(status: int) -> type[ServerError]:
    return RefusedError if 400 <= status < 500 else ServerError
