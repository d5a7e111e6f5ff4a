"""Read a request's untrusted body within bounds of bytes and time; watch for a disconnect."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from hrm_edge_runtime.api.decoding import Fields, most_values, validated
from hrm_edge_runtime.api.errors import JSON, ServiceError

MAX_BODY_BYTES = 64 * 1024  # ten times the longest notation of a 30 x 30 board
BODY_SECONDS = 10.0
FEW_VALUES = 200  # decoded within 0.2 ms
UNSAID = ("", "application/x-www-form-urlencoded")  # the default of curl -d

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was ready."""


async def unless_client_leaves(receive: Receive, work: Awaitable[T]) -> T:
    """Do the work, or drop it and raise ClientGoneError when the client leaves.

    The body must have been read.
    """
    working = asyncio.current_task()
    assert working is not None
    watch = asyncio.ensure_future(_cancel_at_disconnect(working, receive))
    try:
        return await work
    except asyncio.CancelledError:
        if watch.done():
            raise ClientGoneError from None
        raise
    finally:
        watch.cancel()


async def _cancel_at_disconnect(working: asyncio.Task[object], receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    working.cancel()


async def body_of(request: Request) -> bytes:
    """The bytes of a JSON body; rejects a body with 408, 413 or 415."""
    check_type(request, (JSON,))
    body = bytearray()
    try:
        with anyio.fail_after(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    message = f"the body has more than {MAX_BODY_BYTES} bytes"
                    remedy = "send one puzzle at a time, or many as lines to /solve/batch"
                    raise ServiceError(413, "body-too-large", message, remedy)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_SECONDS:.0f} s"
        raise ServiceError(408, "body-too-slow", message, "send it in one piece") from None
    except ClientDisconnect:
        raise ClientGoneError from None
    return bytes(body)


class Turnstile:
    """Decodes one large body per turn of the event loop: each takes up to 4 ms."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def decoded(self, fields: type[Fields], body: bytes) -> Fields:
        """The fields of a body, as from `validated`; waits for large bodies that came before."""
        if most_values(body) > FEW_VALUES:
            async with self._lock:
                await asyncio.sleep(0)
        return validated(fields, body)


def check_type(request: Request, media_types: Sequence[str]) -> None:
    """Reject a body of another declared type, or a compressed one, with 415."""
    headers = request.headers
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in media_types and media_type not in UNSAID:
        expected = media_types[0]
        message = f"the content type is {media_type[:80]!r}, not {expected!r}"
        remedy = f"send it with the header 'content-type: {expected}'"
        raise ServiceError(415, "unsupported-media-type", message, remedy)
    encoding = headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        remedy = "send it without content-encoding"
        raise ServiceError(415, "unsupported-encoding", "the body is compressed", remedy)
