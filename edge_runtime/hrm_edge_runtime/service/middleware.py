"""What stands in front of every route: the key, and the count.

Plain ASGI, because a wrapper around the request would hide a client's disconnect from the route.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hrm_edge_runtime.service.errors import ServiceError
from hrm_edge_runtime.service.metrics import Metrics
from hrm_edge_runtime.service.responses import error_response

OPEN_PATHS = frozenset(("/livez",))


class RequireKey:
    """Every path but `/livez`, known or not, needs one of the keys: as Bearer token or as X-API-Key."""

    def __init__(self, app: ASGIApp, keys: Collection[str]) -> None:
        self._app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS
        if is_open or self._holds_key(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        refusal = ServiceError(
            401,
            "bad-key",
            "this server asks for a key and the request holds none that it knows",
            "send the header 'authorization: Bearer KEY' or 'x-api-key: KEY'",
            headers={"WWW-Authenticate": "Bearer"},
        )
        await error_response(refusal)(scope, receive, send)

    def _holds_key(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(key)  # digests have one length, so the comparison tells nothing about that of a key
        return sum(hmac.compare_digest(digest, known) for known in self._digests) > 0  # all are always compared


class CountRequests:
    """Counts answers by route and status, and times them."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Collection[str]) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500  # what becomes of an exception that passes through here

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        route = scope["path"] if scope["path"] in self._routes else "other"
        began = time.monotonic()
        try:
            await self._app(scope, receive, note_status)
        finally:
            self._metrics.http_requests.labels(route, str(status)).inc()
            self._metrics.http_seconds.labels(route).observe(time.monotonic() - began)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
