"""Answers that grow while they are read, and the one owner of their end; server-sent events.

A clean end, with HTTP's last chunk, means that everything is answered. Otherwise the last piece is
an error, and the connection ends without the last chunk.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hrm_edge_runtime.api.errors import ServiceError, as_json, refusal_from
from hrm_edge_runtime.api.schema import SegmentView, SolveAnswer
from hrm_edge_runtime.worker.client import NoAnswerError
from hrm_edge_server.body import ClientGoneError, unless_client_leaves

CUT = "hrm.cut"
"""An extension in the scope: a function that ends the connection after what was written."""
EVENT_TYPE = "text/event-stream"
WAITING = b": waiting\n\n"
BEGIN_SECONDS = 1.0  # after which an answer begins without a first piece
PULSE_SECONDS = 15.0  # of silence; common proxies cut an answer that is silent for 60 s


class UnfinishedError(Exception):
    """An answer that cannot be completed; `last` is its last piece, which has the reason."""

    def __init__(self, last: bytes) -> None:
        super().__init__(last)
        self.last = last


class GrowingAnswer(Response):
    """An answer of unknown length. Headers keep proxies from buffering it."""

    def __init__(self, media_type: str) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]


class Writer:
    """Writes one growing answer, and a pulse when it is silent while something is owed."""

    def __init__(
        self,
        answer: GrowingAnswer,
        scope: Scope,
        send: Send,
        *,
        pulse: bytes,
        is_owing: Callable[[], bool],
    ) -> None:
        self._headers = answer.raw_headers
        self._scope = scope
        self._send = send
        self._pulse = pulse
        self._is_owing = is_owing
        self.has_begun = False
        self._beginning = asyncio.Lock()
        self._is_writing = False
        self._silent_since_s = time.monotonic()

    async def write(self, piece: bytes) -> None:
        self._is_writing = True
        await self._begin()
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        self._is_writing = False
        self._silent_since_s = time.monotonic()

    async def carry(self, work: Awaitable[None]) -> None:
        """Do the work that writes the answer, and end it as the work ended."""
        pulse = asyncio.ensure_future(self._pulse_on())
        try:
            await work
        except UnfinishedError as error:
            await self.write(error.last)
            cut(self._scope)
        else:
            await self._begin()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            pulse.cancel()

    async def _begin(self) -> None:
        """Begin the answer, once."""
        async with self._beginning:
            if self.has_begun:
                return
            self.has_begun = True
            start: dict[str, Any] = {"type": "http.response.start", "status": 200}
            await self._send({**start, "headers": self._headers})

    async def _pulse_on(self) -> None:
        """Begin the answer if nothing was written for a while; then break every long silence.

        Proxies written in Go drop the rest of a body when its answer begins, and the connection
        too if they are still at its end (caddyserver/caddy#5431). `receive` sends 100 only before
        that. So a small body is here before the answer begins.
        """
        await asyncio.sleep(BEGIN_SECONDS)
        await self._begin()
        while True:
            silent_s = time.monotonic() - self._silent_since_s
            await asyncio.sleep(max(0.0, PULSE_SECONDS - silent_s))
            is_silent = time.monotonic() - self._silent_since_s >= PULSE_SECONDS
            if is_silent and not self._is_writing:
                self._silent_since_s = time.monotonic()
                if self._is_owing():
                    await self.write(self._pulse)


def cut(scope: Scope) -> bool:
    """End the connection after what was written; returns whether the server can."""
    end = scope.get("extensions", {}).get(CUT)
    if end is None:
        return False
    end()
    return True


class EventStream(GrowingAnswer):
    """Server-sent events for one puzzle: its segments, then its answer.

    An error before the answer has begun is an ordinary HTTP error; after that it is an event. A
    client that leaves cancels its puzzle.
    """

    def __init__(self, views: AsyncGenerator[SegmentView | SolveAnswer]) -> None:
        super().__init__(EVENT_TYPE)
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(self, scope, send, pulse=WAITING, is_owing=lambda: True)
        async with contextlib.aclosing(self._views):
            try:
                await unless_client_leaves(receive, writer.carry(self._write_all(writer)))
            except ClientGoneError:
                if not writer.has_begun:
                    raise

    async def _write_all(self, writer: Writer) -> None:
        try:
            async for view in self._views:
                name = "answer" if isinstance(view, SolveAnswer) else "segment"
                await writer.write(_event(name, view.model_dump(mode="json")))
        except (ServiceError, NoAnswerError) as error:
            if not writer.has_begun:
                raise
            await writer.write(_event("error", refusal_from(error).body()))


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()
