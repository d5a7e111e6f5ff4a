"""The one middleware around every request. Plain ASGI: a wrapper would hide a client's disconnect from the route."""

import base64
import functools
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hrm_edge_runtime.api.errors import JSON, SAFE_HEADERS, ServiceError, as_json
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.http.auth import KeyRing
from hrm_edge_runtime.http.metrics import Metrics

OPEN_PATHS = frozenset(("/livez",))
METERED_PATHS = frozenset(("/solve", "/solve/stream", "/puzzle"))  # lines of /solve/batch are metered there, one by one
QUIET_PATHS = frozenset(("/livez", "/readyz", "/health", "/metrics"))  # probed all the time: only failures are logged
READING_METHODS = frozenset(("GET", "HEAD"))
CHALLENGES = (  # one header each, since Chromium reads no list of them; Basic is what browsers ask people for
    'Basic realm="HRM Edge", charset="UTF-8"',
    "Bearer",
)
BAD_KEY = ServiceError(
    401,
    "bad-key",
    "this server asks for a key and the request holds none that it knows",
    "send the header 'authorization: Bearer KEY' or 'x-api-key: KEY'; in a browser give it as the password",
)
FOREIGN_PAGE = ServiceError(
    403,
    "foreign-page",
    "a page of another origin sent this request",
    "open this server's own page; a proxy in front of it must leave the Host header as it is",
)
FOREIGN_HOST = ServiceError(
    403,
    "foreign-host",
    "this server has no keys, and the request names it by a public name that it was not told",
    "use its address, or start it with --allow-host NAME or with --keys",
)
PRIVATE_ENDINGS = (".local", ".localhost", ".internal", ".lan", ".home.arpa")  # nobody can own a name below them
INTERNAL = ServiceError(500, "internal", "the server made a mistake", "report it with the server's log")

Trace = Callable[[str, str, Mapping[bytes, bytes], logs.RequestContext], Callable[[int], None]]
"""Begins the trace of a request by its method, route, headers and context; what it returns takes the status."""

_log = logging.getLogger("hrm_edge_runtime.access")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who is let in and watched: with `keys`, every path but `/livez`, known or not, needs one of them.

    A key comes as Bearer token, as X-API-Key, or as the password of Basic, which is how a browser opens the page.
    Without keys `hosts` lists the server's public names, or a stranger could give this address to a name of his own,
    and a page under that name would count as the server's. Pages of the `origins` may ask with a key in a header.
    """

    keys: KeyRing | None = None
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    trace: Trace | None = None


class RequestMiddleware:
    def __init__(self, app: ASGIApp, *, metrics: Metrics, routes: Iterable[str], access: Access) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = frozenset(routes)
        self._keys, self._trace = access.keys, access.trace
        self._hosts = frozenset(host.lower().encode("latin-1", "replace") for host in access.hosts)
        self._origins = frozenset(origin.encode() for origin in access.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of two of one name the first counts
        route = scope["path"] if scope["path"] in self._routes else "other"
        context = logs.begin_request(headers)
        end_trace = self._trace(scope["method"], route, headers, context) if self._trace else None
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = (b"x-request-id", context.request_id.encode("ascii"))
                message = {**message, "headers": [*message["headers"], *SAFE_HEADERS, own]}
            await send(message)

        try:
            app = self._refusal(scope, headers, context) or self._app
            await app(scope, receive, send_with_headers)
        except Exception:
            if not status:
                await response_to(INTERNAL)(scope, receive, send_with_headers)
            raise
        finally:
            status = status or 500
            if end_trace is not None:
                end_trace(status)
            self._report(scope["method"], route, status, time.monotonic() - began_s, context)

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes], context: logs.RequestContext) -> Response | None:
        # Browsers name the page's origin in every request that is not a plain reading one; programs send none. Another
        # site's page must not ask with the key that its visitor's browser remembers.
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        is_foreign = origin is not None and origin.partition(b"://")[2].lower() != host.lower()
        if is_foreign and origin not in self._origins and scope["method"] not in READING_METHODS:
            return response_to(FOREIGN_PAGE)
        if self._keys is None and (name := public_name_in(host)) is not None and name not in self._hosts:
            return response_to(FOREIGN_HOST)
        if self._keys is None or scope["path"] in OPEN_PATHS:
            return None
        key = self._keys.find(_secret(headers))
        if key is None:
            answer = response_to(BAD_KEY)
            for challenge in CHALLENGES:
                answer.headers.append("WWW-Authenticate", challenge)
            return answer
        scope.setdefault("state", {})["key"] = key
        context.key = key.label
        is_metered = scope["path"].rstrip("\n") in METERED_PATHS  # Starlette's routes take one line break behind them
        wait_s = key.bucket.wait_s() if key.bucket and is_metered else 0.0
        if not wait_s:
            return None
        retry = {"Retry-After": str(max(1, math.ceil(wait_s)))}
        message, remedy = "this key asks more often than it may", "send it again after Retry-After seconds"
        return response_to(ServiceError(429, "rate-limited", message, remedy, headers=retry))

    def _report(self, method: str, route: str, status: int, seconds: float, context: logs.RequestContext) -> None:
        self._metrics.note_request(route, status, seconds, context.key)
        if route in QUIET_PATHS and (status < 400 or status == 503):  # a poll until it is ready is no event
            return
        ms = round(1000 * seconds, 3)
        fields: dict[str, object] = {"method": method, "route": route, "status": status, "ms": ms}
        fields |= {"refused": context.refused, "key": context.key, "trace": context.trace_id}
        words = f"{method} {route} {status} in {ms} ms"
        if context.refused:
            words += f", refused: {context.refused}"
        if context.num_puzzles:
            models = ",".join(sorted(context.models))
            queue_ms, compute_ms = round(1000 * context.queue_s, 3), round(1000 * context.compute_s, 3)
            fields |= {"model": models, "puzzles": context.num_puzzles, "attempts": context.attempts}
            fields |= {"segments": context.segments, "halted_by": ",".join(sorted(context.halted_by))}
            fields |= {"queue_ms": queue_ms, "compute_ms": compute_ms}
            words += f", {models}: {context.num_puzzles} answered in {context.segments} segments"
            words += f", queue {queue_ms} ms, compute {compute_ms} ms"
        _log.info("%s", words, extra={"fields": fields})


@functools.lru_cache(maxsize=256)
def public_name_in(host: bytes) -> bytes | None:
    """The name in a Host header, if anybody could have registered it; None for addresses and private names."""
    name = re.sub(rb":\d*$", b"", host.lower())
    is_address = re.fullmatch(rb"\[[^\]]*\]|[0-9.]*", name) is not None
    is_private = b"." not in name or name.decode("latin-1").endswith(PRIVATE_ENDINGS)
    return None if is_address or is_private else name


def response_to(refusal: ServiceError) -> Response:
    """The answer to a refused request; its log line gets the reason."""
    context = logs.request.get()
    if context is not None:
        context.refused = refusal.detail.reason
    return Response(as_json(refusal.body()), refusal.status, refusal.headers, JSON)


def _secret(headers: Mapping[bytes, bytes]) -> str:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(token.strip(), validate=True).decode("utf-8").partition(":")[2]
        except ValueError:
            return ""
    return token.strip() if scheme.lower() == "bearer" else headers.get(b"x-api-key", b"").decode("latin-1")
