"""A body read ahead of whoever takes it, so that its client's departure is seen while nobody reads.

The departure stands behind the body in the same channel, so it can only be seen by reading on. No more than `LIMIT`
bytes and one piece are kept: a client that has sent more than that is not seen to leave before some of it is taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from starlette.types import Message, Receive

LIMIT = 64 * 1024


class PrefetchingReceive:
    """`receive` fills it and is awaited by whoever watches the client; `pieces` empties it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_whole = False
        self._filled, self._taken = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        """The channel's next message, its piece of the body kept; waits while there is no room for one."""
        while self._size > LIMIT:
            self._taken.clear()
            await self._taken.wait()
        message = await self._receive()
        if message["type"] == "http.request":
            self._pieces.append(message.get("body", b""))
            self._size += len(self._pieces[-1])
            self._is_whole = not message.get("more_body", False)
        self._filled.set()
        return message

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body, piece by piece, to its end."""
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._size -= len(piece)
                self._taken.set()
                yield piece
            if self._is_whole:
                return
            self._filled.clear()
            await self._filled.wait()
