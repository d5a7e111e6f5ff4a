"""What a client sends, within bounds of bytes, pieces and time; see clients leave.

`ClientBytes` bounds a request on its way through h11. A body is read whole or in lines.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Any, TypeVar

import anyio
import h11
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from hrm_edge_runtime.api.errors import JSON, ServiceError

HEADER_BYTES = 16 * 1024
MAX_HEADERS = 100
MAX_BODY_BYTES = 64 * 1024  # ten times the longest notation of a 30 x 30 board
EVENTS_A_TURN = 8  # of h11, 12 us each: other connections get turns between
# A body of more pieces must average LEAST_PIECE bytes.
MANY_PIECES = 1000
LEAST_PIECE = 16  # bytes
BODY_SECONDS = 10.0
LONGEST_METHOD = 20  # bytes; each is logged
UNDECLARED = ("", "application/x-www-form-urlencoded")  # no type, or the default of curl -d
PREFETCH_BYTES = 64 * 1024
PART_BYTES = 4096  # split in one turn of the event loop

T = TypeVar("T")
Line = bytes | ServiceError
"""A line of a batch, or the reason why it cannot be read."""


class ClientBytes(h11.Connection):
    """The bytes of one client as events of HTTP, within bounds of bytes, headers and pieces."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, HEADER_BYTES)
        self.fault = h11.RemoteProtocolError("")  # the last one
        self.events_left = EVENTS_A_TURN
        self._num_pieces = 0
        self.body_bytes = 0  # of the request in progress

    def forget_body(self) -> None:
        """The request is answered, or refused."""
        self._num_pieces = 0
        self.body_bytes = 0

    def next_event(self) -> Any:
        """The next event; NEED_DATA too if this turn may parse no more."""
        if not self.events_left:
            return h11.NEED_DATA
        self.events_left -= 1
        try:
            if self.their_state is h11.IDLE:
                self._check_header()
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check_request(event)
                if not event.target.startswith(b"/"):
                    event = in_origin_form(event)
            elif isinstance(event, h11.Data):
                self._num_pieces += 1
                self.body_bytes += len(event.data)
                least_bytes = LEAST_PIECE * self._num_pieces
                if self._num_pieces > MANY_PIECES and self.body_bytes < least_bytes:
                    raise h11.RemoteProtocolError("a body in crumbs")
        except h11.RemoteProtocolError as error:
            self.fault = error
            raise
        return event

    def _check_header(self) -> None:
        """Bound a header before h11 parses it, whole or not.

        Skip blank lines before it: old clients send one after a body (RFC 9112, 2.2).
        """
        while self.trailing_data[0].startswith(b"\r\n"):
            self._receive_buffer.maybe_extract_next_line()
        header = self.trailing_data[0].partition(b"\r\n\r\n")[0]
        num_lines = header.count(b"\n")
        if num_lines > MAX_HEADERS or len(header) > HEADER_BYTES:
            raise h11.RemoteProtocolError("its header is too long", error_status_hint=431)
        if num_lines != header.count(b"\r\n"):
            raise h11.RemoteProtocolError("a line without CR")

    @staticmethod
    def _check_request(request: h11.Request) -> None:
        if request.method == b"CONNECT":
            raise h11.RemoteProtocolError("not a proxy", error_status_hint=501)
        headers = dict(request.headers)
        has_two_lengths = b"content-length" in headers and b"transfer-encoding" in headers
        is_known = request.http_version in (b"1.0", b"1.1")
        if has_two_lengths or not is_known or len(request.method) > LONGEST_METHOD:
            raise h11.RemoteProtocolError("two lengths, a long method or an unknown version")


def in_origin_form(request: h11.Request) -> h11.Request:
    """The request with a path as its target, if a client named the whole URL as to a proxy."""
    _, scheme, rest = request.target.partition(b"://")
    if not scheme:
        return request
    return h11.Request(
        method=request.method,
        target=b"/" + rest.partition(b"/")[2],
        headers=list(request.headers),
        http_version=request.http_version,
    )


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


def check_type(request: Request, media_types: Sequence[str]) -> None:
    """Reject a body of another declared type, or a compressed one, with 415."""
    declared, _, _ = request.headers.get("content-type", "").partition(";")
    media_type = declared.strip().lower()
    if media_type not in media_types and media_type not in UNDECLARED:
        expected = media_types[0]
        message = f"the content type is {media_type[:80]!r}, not {expected!r}"
        remedy = f"send it with the header 'content-type: {expected}'"
        raise ServiceError(415, "unsupported-media-type", message, remedy)
    encoding = request.headers.get("content-encoding", "").lower()
    if encoding not in ("", "identity"):
        message = f"the content encoding is {encoding[:80]!r}, and this server unpacks nothing"
        remedy = "send the plain body without content-encoding"
        raise ServiceError(415, "unsupported-encoding", message, remedy)


class PrefetchingReceive:
    """Reads a body ahead of its reader, to see the client leave while nobody reads.

    It buffers at most `PREFETCH_BYTES` and one piece. If a client sends more than that and leaves,
    its departure shows only after the reader takes some of it.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_whole = False
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    async def receive(self) -> Message:
        while self._size > PREFETCH_BYTES:
            self._taken.clear()
            await self._taken.wait()
        message = await self._receive()
        if message["type"] == "http.request":
            piece = message.get("body", b"")
            self._pieces.append(piece)
            self._size += len(piece)
            self._is_whole = not message.get("more_body", False)
        self._filled.set()
        return message

    async def next_piece(self) -> bytes | None:
        """The next piece, None at the end; a canceled call loses nothing."""
        while not self._pieces:
            if self._is_whole:
                return None
            self._filled.clear()
            await self._filled.wait()
        piece = self._pieces.popleft()
        self._size -= len(piece)
        self._taken.set()
        return piece


class LineSplitter:
    """Splits pieces into numbered lines and keeps at most `MAX_BODY_BYTES` of an unfinished one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._number = 1
        self._is_too_long = False

    def feed(self, piece: bytes) -> Iterator[tuple[int, Line]]:
        """The lines that end in this piece."""
        *ends, rest = piece.split(b"\n")
        for end in ends:
            self._buffer += end
            yield self.take()
        self._buffer += rest
        if len(self._buffer) > MAX_BODY_BYTES:
            self._is_too_long = True
            self._buffer.clear()

    def take(self) -> tuple[int, Line]:
        """End the current line and return it."""
        numbered = self._number, self._line()
        self._number += 1
        self._buffer.clear()
        self._is_too_long = False
        return numbered

    def _line(self) -> Line:
        if self._is_too_long or len(self._buffer) > MAX_BODY_BYTES:
            message = f"the line has more than {MAX_BODY_BYTES} bytes"
            return ServiceError(413, "line-too-large", message, "send one puzzle in each line")
        return bytes(self._buffer.strip())


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, Line]]:
    """Yield all lines, numbered from 1; blank ones are empty, and a long one is an error."""
    splitter = LineSplitter()
    async for piece in pieces:
        for start in range(0, len(piece), PART_BYTES):
            for numbered in splitter.feed(piece[start : start + PART_BYTES]):
                yield numbered
            await asyncio.sleep(0)
    number, line = splitter.take()
    if line:
        yield number, line
