"""Server-sent events for one puzzle: its segments, then its answer.

A refusal before the answer begins is an ordinary HTTP error. After that an error is an event. A
client that closes its connection cancels its puzzle.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.types import Receive, Scope, Send

from hrm_edge_runtime.api.errors import ServiceError, as_json, refusal_from
from hrm_edge_runtime.api.schema import SegmentView, SolveAnswer
from hrm_edge_runtime.worker.client import NoAnswerError
from hrm_edge_server.body import ClientGoneError, unless_client_leaves
from hrm_edge_server.growing import GrowingAnswer, Writer

EVENT_TYPE = "text/event-stream"
ADMITTED = b": admitted\n\n"
"""A comment that makes proxies and clients show the headers before the first segment."""
WAITING = b": waiting\n\n"


class EventStream(GrowingAnswer):
    """Sends views as events. The first view is None: the request is admitted."""

    def __init__(self, views: AsyncGenerator[SegmentView | SolveAnswer | None]) -> None:
        super().__init__(EVENT_TYPE)
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = Writer(self, scope, send, pulse=WAITING, is_owing=lambda: True)
        async with contextlib.aclosing(self._views):
            await unless_client_leaves(receive, anext(self._views))
            with contextlib.suppress(ClientGoneError):
                await unless_client_leaves(receive, writer.carry(self._write_all(writer)))

    async def _write_all(self, writer: Writer) -> None:
        await writer.write(ADMITTED)
        try:
            async for view in self._views:
                assert view is not None, "a request is admitted once"
                name = "answer" if isinstance(view, SolveAnswer) else "segment"
                await writer.write(_event(name, view.model_dump(mode="json")))
        except (ServiceError, NoAnswerError) as error:
            await writer.write(_event("error", refusal_from(error).body()))


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()
