"""The middleware around every request: who is let in, our headers, the log line and the metrics.

It is plain ASGI: starlette's BaseHTTPMiddleware would hide a client's disconnect from the route.

Browsers name the page's origin in every request that changes something; programs do not. A page of
another origin could otherwise use the key that its reader's browser keeps.

Without keys a stranger could point a name of his own at this address, and a page under that name
would count as the server's own (DNS rebinding). So the name in the Host header must be an address,
a private name, or a name of `--allow-host`.
"""

import asyncio
import base64
import functools
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hrm_edge_runtime.api.errors import AGAIN, JSON, SAFE_HEADERS, ServiceError, as_json
from hrm_edge_runtime.contract import logs
from hrm_edge_server.auth import LOOPBACK, KeyRing, TokenBucket
from hrm_edge_server.growing import cut
from hrm_edge_server.metrics import Metrics

OPEN_PATHS = frozenset(("/livez", "/readyz", "/health"))
"""They answer without a key, and say more with one."""
METERED_PATHS = frozenset(("/solve", "/solve/stream", "/puzzle"))
"""Each request takes a token of its key; /solve/batch takes one per line."""
QUIET_PATHS = OPEN_PATHS | {"/metrics"}
"""Monitors probe them all the time: only failures are logged."""
CHALLENGES = (  # one header each, because Chromium does not read a list of them
    'Basic realm="HRM Edge", charset="UTF-8"',  # makes a browser prompt for a password
    "Bearer",
)
PIECE_BYTES = 16 * 1024  # of an answer

PRIVATE_ENDINGS = (
    ".local",
    ".localhost",
    ".localdomain",
    ".internal",
    ".lan",
    ".home.arpa",
    ".svc",
    ".test",
)
"""Nobody can register a name below them. Other names come from `--allow-host`: a list of public
suffixes or a search list of DHCP would admit names that a stranger can register."""

FOREIGN_PAGE = ServiceError(
    403,
    "foreign-page",
    "a page of another origin sent this request",
    "open this server's own page; a proxy in front of it must keep the name in the address "
    "(nginx: proxy_set_header Host $http_host), or start the server with --cors ORIGIN",
)
BAD_KEY = ServiceError(
    401,
    "bad-key",
    "this server requires a key, and the request holds none that it knows",
    "send the header 'authorization: Bearer KEY' or 'x-api-key: KEY'; "
    "in a browser enter it as the password",
)

_log = logging.getLogger("hrm_edge_runtime.access")


class Access(NamedTuple):
    """The rules of access to the server.

    With `keys`, every path but `OPEN_PATHS` needs one of them, unknown paths too. A key comes as a
    Bearer token, as X-API-Key, or as the password of Basic, which browsers use for the page.

    Without keys, `hosts` lists the server's public names (`Sites`). Pages of the `origins` may
    send requests with a key in a header.
    """

    keys: KeyRing | None = None
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()


class RequestMiddleware:
    """Lets a request in or refuses it, adds our headers to the answer, and records both."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        metrics: Metrics,
        routes: Sequence[Route],
        access: Access,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes
        self._keys = access.keys
        hosts = access.hosts if access.keys is None else None
        self._sites = Sites(hosts, access.origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.monotonic()
        # If a name occurs twice, the first one wins.
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        method = scope["method"]
        route = self._route_of(scope["path"])
        context = logs.begin_request(headers)
        status = 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = (b"x-request-id", context.request_id.encode("ascii"))
                message["headers"] = [*message["headers"], *SAFE_HEADERS, request_id]
            if len(message.get("body", b"")) <= PIECE_BYTES:
                await send(message)
                return
            for piece in _pieces(message):
                await send(piece)

        try:
            app = self._refusal(scope, route, headers, context) or self._app
            if method == "HEAD":  # routes know only GET, and uvicorn drops the body
                scope = {**scope, "method": "GET"}
            await app(scope, receive, send_with_headers)
        except asyncio.CancelledError:  # uvicorn ends what still runs some seconds after SIGTERM
            if not cut(scope):
                raise
        except Exception:
            if not status:
                message = "the server made a mistake"
                fault = ServiceError(500, "internal", message, "report it with the server's log")
                await response_to(fault)(scope, receive, send_with_headers)
            raise
        finally:
            status = status or 500
            self._report(method, route, status, time.monotonic() - began_s, context)

    def _route_of(self, path: str) -> str:
        """The template of the route that takes a path: a label of metrics and of the log."""
        for route in self._routes:
            if route.path_regex.match(path):
                return route.path
        return "other"

    def _refusal(
        self,
        scope: Scope,
        route: str,
        headers: Mapping[bytes, bytes],
        context: logs.RequestContext,
    ) -> Response | None:
        """The refusal of a request, or None if it may enter; then its key is noted."""
        foreign = self._sites.refusal(scope["method"], headers)
        if foreign is not None:
            return response_to(foreign)
        if self._keys is None:
            return None
        key = self._keys.find(_secret(headers))
        if key is None:
            return None if route in OPEN_PATHS else _challenge()
        scope.setdefault("state", {})["key"] = key
        context.key = key.label
        if route in METERED_PATHS and key.bucket is not None:
            return _rate_refusal(key.bucket)
        return None

    def _report(
        self,
        method: str,
        route: str,
        status: int,
        seconds: float,
        context: logs.RequestContext,
    ) -> None:
        """Count an answered request and log it."""
        self._metrics.note_request(route, status, seconds, context.key)
        if route in QUIET_PATHS and (status < 400 or status == 503):  # 503: not ready yet
            return
        fields: dict[str, object] = {
            "ms": round(1000 * seconds, 3),
            "refused": context.refused,
            "key": context.key,
            "trace": context.trace_id,
        }
        if context.num_puzzles:
            fields |= {
                "model": ",".join(sorted(context.models)),
                "puzzles": context.num_puzzles,
                "attempts": context.attempts,
                "segments": context.segments,
                "halted_by": ",".join(sorted(context.halted_by)),
                "queue_ms": round(1000 * context.queue_s, 3),
                "compute_ms": round(1000 * context.compute_s, 3),
            }
        words = f"{method} {route} {status}"
        for name, value in fields.items():
            if value is not None:
                words += f", {name}: {value}"
        request = {"method": method, "route": route, "status": status}
        _log.info("%s", words, extra={"fields": request | fields})


def _pieces(message: Message) -> Iterator[Message]:
    """A long body in pieces: each waits until the client has read the last."""
    body = message["body"]
    while len(body) > PIECE_BYTES:
        yield {**message, "body": body[:PIECE_BYTES], "more_body": True}
        body = body[PIECE_BYTES:]
    yield {**message, "body": body}


def _challenge() -> Response:
    """Refuses a request without a known key; a browser prompts for one."""
    answer = response_to(BAD_KEY)
    for challenge in CHALLENGES:
        answer.headers.append("WWW-Authenticate", challenge)
    return answer


def _rate_refusal(bucket: TokenBucket) -> Response | None:
    """Take a token for a request, or refuse it."""
    wait_s = bucket.wait_s()
    if not wait_s:
        return None
    message = "this key sends requests faster than it may"
    return response_to(ServiceError(429, "rate-limited", message, AGAIN, retry_after_s=wait_s))


def response_to(refusal: ServiceError) -> Response:
    """The answer to a refused request; its log line gets the reason."""
    context = logs.request.get()
    if context is not None:
        context.refused = refusal.detail.reason
    return json_answer(refusal.body(), refusal.status, refusal.headers)


def json_answer(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """JSON in plain ASCII that ends its line, for terminals."""
    return Response(as_json(value) + "\n", status, headers, JSON)


def _secret(headers: Mapping[bytes, bytes]) -> str:
    """The key that a request sends, known or not; empty without one. It is Basic's password."""
    authorization = headers.get(b"authorization", b"").decode("latin-1")
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    if scheme.lower() != "basic":
        return headers.get(b"x-api-key", b"").decode("latin-1")
    try:
        user_and_password = base64.b64decode(token.strip(), validate=True).decode("utf-8")
    except ValueError:
        return ""
    return user_and_password.partition(":")[2]


class Sites:
    """The names and the origins that may use the server; `hosts` is None if it has keys."""

    def __init__(self, hosts: Iterable[str] | None, origins: Iterable[str]) -> None:
        self._hosts: frozenset[str] | None = None
        if hosts is not None:
            self._hosts = frozenset(host.lower().rstrip(".") for host in hosts)
        self._origins = frozenset(origin.encode() for origin in origins)

    def refusal(self, method: str, headers: Mapping[bytes, bytes]) -> ServiceError | None:
        """The refusal of a request from another site or to another name; None if it may enter."""
        origin = headers.get(b"origin")
        if method not in ("GET", "HEAD") and origin is not None and self._is_foreign(headers):
            return FOREIGN_PAGE
        if self._hosts is None:
            return None
        name = public_name_in(headers.get(b"host", b""))
        if name is None or name in self._hosts:
            return None
        is_plain = re.fullmatch(r"[a-z0-9.-]{1,253}", name) is not None
        option = f"--allow-host {name if is_plain else 'NAME'}"
        problem = "this server has no keys, and the request names it by a public name"
        return ServiceError(
            403,
            "foreign-host",
            f"{problem} that it does not know",
            f"use its address, or start it with {option} or with --keys",
        )

    def _is_foreign(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a page of another origin sends the request.

        The browser's own word counts if it gives one. It knows the address bar, while a proxy may
        have replaced the Host header.
        """
        origin = headers[b"origin"]
        if origin in self._origins:
            return False
        site = headers.get(b"sec-fetch-site")
        if site is not None:
            # its own page, and an address that a person typed
            return site not in (b"same-origin", b"none")
        host = headers.get(b"host", b"").decode("latin-1").lower()
        return not _is_same(origin.decode("latin-1").lower(), host)


def _is_same(origin: str, host: str) -> bool:
    """Whether an origin has the name and port of a Host header, or may have had before a proxy.

    A Host header without a port may have lost it in a proxy. On loopback both sides are this
    machine, whatever a proxy on it wrote.
    """
    _, _, authority = origin.partition("://")
    if authority == host:
        return True
    name = _without_port(authority)
    own_name = _without_port(host)
    if LOOPBACK.fullmatch(name) and LOOPBACK.fullmatch(own_name):
        return True
    return own_name == host and name == own_name


def _without_port(authority: str) -> str:
    return re.sub(r":\d*$", "", authority)


@functools.lru_cache(maxsize=256)
def public_name_in(host: bytes) -> str | None:
    """The name in a Host header, if it is a public name; None for addresses and private names."""
    name = _without_port(host.decode("latin-1").lower())
    if re.fullmatch(r"\[[^\]]*\]|[0-9.]*", name):
        return None  # an address
    name = name.removesuffix(".")
    if "." not in name or name.endswith(PRIVATE_ENDINGS):
        return None
    return name
