"""Server-sent events: the answer after every segment, and at last the answer or the error.

A refusal before the request is admitted is an ordinary HTTP error; after that the status is 200 and an error is an
event. A client that closes its connection cancels the puzzle.
"""

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hrm_edge_runtime.http.body import ClientGoneError, unless_client_leaves
from hrm_edge_runtime.http.errors import ServiceError, refusal_from
from hrm_edge_runtime.http.responses import as_json
from hrm_edge_runtime.http.schema import SegmentView, SolveAnswer
from hrm_edge_runtime.worker.client import NoAnswerError

MEDIA_TYPE = "text/event-stream"
ADMITTED = b": admitted\n\n"  # a comment: it lets proxies and clients see the headers before the first segment

Views = AsyncGenerator[SegmentView | SolveAnswer | None]


class EventStream(Response):
    """Sends views as events, and nothing before the first of them (None) has come."""

    media_type = MEDIA_TYPE

    def __init__(self, views: Views) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with contextlib.aclosing(self._views):
            await unless_client_leaves(receive, anext(self._views))
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            with contextlib.suppress(ClientGoneError):
                await unless_client_leaves(receive, self._tell_all(send))

    async def _tell_all(self, send: Send) -> None:
        await send(body_piece(ADMITTED))
        try:
            async for view in self._views:
                assert view is not None, "a request is admitted once"
                name = "answer" if isinstance(view, SolveAnswer) else "segment"
                await send(body_piece(event(name, view.model_dump(mode="json"))))
        except (ServiceError, NoAnswerError) as error:
            await send(body_piece(event("error", refusal_from(error).body())))
        await send({"type": "http.response.body", "body": b""})


def event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()


def body_piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}
