"""What stands in front of every route: the headers, the page that may ask, and the key.

Plain ASGI, because a wrapper around the request would hide a client's disconnect from the route.
"""

from __future__ import annotations

import base64
import binascii
import math

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hrm_edge_runtime.http.auth import KeyRing
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.http.responses import SAFE_HEADERS, error_response
from hrm_edge_runtime.http.token_bucket import Allowance

OPEN_PATHS = frozenset(("/livez",))
METERED_PATHS = frozenset(("/solve", "/solve/stream"))  # lines of /solve/batch are metered there, one by one
READING_METHODS = frozenset(("GET", "HEAD"))
CHALLENGES = (  # one in each line, since Chromium reads no list of them; Basic is what browsers ask people for
    'Basic realm="HRM Edge", charset="UTF-8"',
    "Bearer",
)


class RequireKey:
    """Every path but `/livez`, known or not, needs one of the keys.

    As Bearer token, as X-API-Key, or as the password of Basic, which is how a browser opens the page; its user name is
    not looked at. Puts the key's holder into `scope["state"]["caller"]`, and their allowance beside it.
    """

    def __init__(self, app: ASGIApp, keys: KeyRing) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        holder = self._keys.find(secret_of(Headers(scope=scope)))
        if holder is None:
            await _challenge()(scope, receive, send)
            return
        scope.setdefault("state", {}).update(caller=holder.caller, allowance=holder.allowance)
        wait_s = holder.allowance.wait_s() if holder.allowance and scope["path"] in METERED_PATHS else 0.0
        answer = error_response(_too_often(wait_s)) if wait_s else self._app
        await answer(scope, receive, send)


def secret_of(headers: Headers) -> str:
    """The key in a request, or nothing."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        return _password(token.strip())
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def allowance_of(scope: Scope) -> Allowance | None:
    """What bounds this caller, where something does."""
    return scope.get("state", {}).get("allowance")


class OwnPagesOnly:
    """A page of another site may not make its visitor's browser ask here, with the key that the browser remembers.

    Browsers name the page's origin in every request that is not a plain reading one; programs send no such header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in READING_METHODS and _is_foreign(Headers(scope=scope)):
            await error_response(_foreign_page())(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class SafeHeaders:
    """Headers on every answer, so that a browser takes none for what it is not, whoever embeds or links it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *SAFE_HEADERS]}
            await send(message)

        await self._app(scope, receive, with_headers)


def _password(token: str) -> str:
    try:
        return base64.b64decode(token, validate=True).decode("utf-8").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _is_foreign(headers: Headers) -> bool:
    origin = headers.get("origin")
    return origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower()


def _challenge() -> Response:
    refusal = ServiceError(
        401,
        "bad-key",
        "this server asks for a key and the request holds none that it knows",
        "send the header 'authorization: Bearer KEY' or 'x-api-key: KEY'; in a browser give it as the password",
    )
    answer = error_response(refusal)
    for challenge in CHALLENGES:
        answer.headers.append("WWW-Authenticate", challenge)
    return answer


def _too_often(wait_s: float) -> ServiceError:
    return ServiceError(
        429,
        "rate-limited",
        "this key asks more often than it may",
        "send it again after Retry-After seconds",
        headers={"Retry-After": str(max(1, math.ceil(wait_s)))},
    )


def _foreign_page() -> ServiceError:
    return ServiceError(
        403,
        "foreign-page",
        "a page of another origin sent this request",
        "open this server's own page; a proxy in front of it must leave the Host header as it is",
    )
