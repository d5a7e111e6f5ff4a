"""What is told of every request once it is answered: a count, a time, a log line, and a trace where somebody collects.

Plain ASGI and outermost, so that refusals of the doors behind it are seen too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hrm_edge_runtime.http.metrics import Metrics
from hrm_edge_runtime.http.principal import Caller
from hrm_edge_runtime.http.request_context import Account, opened

QUIET = frozenset(("/livez", "/readyz", "/metrics"))  # asked every few seconds: their successes are not worth a line
HEADER = b"x-request-id"

_log = logging.getLogger("hrm_edge_runtime.access")


class Tracer(Protocol):
    """Somebody who collects traces."""

    def tell(self, scope: Scope, route: str, account: Account, status: int, began_ns: int) -> None:
        """A request that has just been answered; `began_ns` is a moment of `time.time_ns`."""
        ...

    def close(self) -> None: ...


class ObserveRequests:
    """Opens an account of every request, names it in the answer's X-Request-Id, and closes it."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Collection[str], tracer: Tracer | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = opened(Headers(scope=scope))
        status = 500  # what becomes of an exception that passes through here

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (HEADER, account.request_id.encode("ascii"))]}
            await send(message)

        began_s, began_ns = time.monotonic(), time.time_ns()
        try:
            await self._app(scope, receive, note_status)
        finally:
            route = scope["path"] if scope["path"] in self._routes else "other"
            self._count(scope, route, status, time.monotonic() - began_s)
            self._log(scope, route, status, time.monotonic() - began_s, account)
            if self._tracer is not None:
                self._tracer.tell(scope, route, account, status, began_ns)

    def _count(self, scope: Scope, route: str, status: int, seconds: float) -> None:
        self._metrics.http_requests.labels(route, str(status)).inc()
        self._metrics.http_seconds.labels(route).observe(seconds)
        if (label := label_of(scope)) is not None:
            self._metrics.key_requests.labels(label, str(status)).inc()

    def _log(self, scope: Scope, route: str, status: int, seconds: float, account: Account) -> None:
        if route in QUIET and status < 400:
            return
        fields: dict[str, object] = {
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 3),
            "refused": account.refused,
            "key": label_of(scope),
            "trace": account.trace_id,
            **account.fields(),
        }
        _log.info("%s", _words(fields), extra={"fields": fields})


def label_of(scope: Scope) -> str | None:
    """The label of the key that a request came with."""
    caller: Any = scope.get("state", {}).get("caller")
    return caller.label if isinstance(caller, Caller) else None


def _words(fields: dict[str, object]) -> str:
    said = f"{fields['method']} {fields['route']} {fields['status']} in {fields['ms']} ms"
    if fields["refused"]:
        said += f", refused: {fields['refused']}"
    if "model" in fields:
        said += f", {fields['model']}: {fields['puzzles']} answered in {fields['segments']} segments"
        said += f", queue {fields['queue_ms']} ms, compute {fields['compute_ms']} ms"
    return said
