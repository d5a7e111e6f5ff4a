"""The lines of a body that is read while it arrives."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator

from starlette.types import Message, Receive

from hrm_edge_runtime.api.errors import ServiceError
from hrm_edge_server.body import MAX_BODY_BYTES

PREFETCH_BYTES = 64 * 1024
PART_BYTES = 4096  # split in one turn of the event loop

Line = bytes | ServiceError
"""A line of a batch, or the reason why it cannot be read."""


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
