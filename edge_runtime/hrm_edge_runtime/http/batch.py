"""Many puzzles over one connection: a line of JSON for each, and a line for each answer, while the lines still come.

Memory is bounded whatever the length: no more lines are read than `window` whose answers have not been taken by the
client yet, and a line that is too long is skipped, not kept. A bad line gives an error for that line alone. Lines wait
for their places and stand behind single requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Literal

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hrm_edge_runtime.http.auth import principal_of
from hrm_edge_runtime.http.body import MAX_BODY_BYTES, solve_request_from
from hrm_edge_runtime.http.disconnects import ClientGoneError, unless_client_leaves
from hrm_edge_runtime.http.errors import ServiceError, deadline_missed
from hrm_edge_runtime.http.prefetch import PrefetchingReceive
from hrm_edge_runtime.http.responses import as_json
from hrm_edge_runtime.http.solve import Order, SolveService

BatchOrder = Literal["as-finished", "kept"]

MEDIA_TYPE = "application/x-ndjson"
MEDIA_TYPES = (MEDIA_TYPE, "application/ndjson", "application/jsonl")
PRIORITY_PENALTY = 1  # lines stand behind single requests of the same priority
IDLE_SECONDS = 60.0  # how long a client may neither send nor take anything
PATIENCE_S = 60.0  # how long a line waits for its place, for instance while an engine is restarted

Numbered = tuple[int, "bytes | ServiceError"]


class BatchStream(Response):
    """Reads lines and answers them; begins its answer at once, so every refusal after that is a line."""

    media_type = MEDIA_TYPE

    def __init__(self, service: SolveService, request: Request, order: BatchOrder) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._request = request
        self._keeps_order = order == "kept"
        self._window = asyncio.Semaphore(
            max(service.engine_client.places.batch_limit(model.lane) for model in service.models)
        )
        self._answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[bytes]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        body = PrefetchingReceive(receive)
        with contextlib.suppress(ClientGoneError, TimeoutError):
            await unless_client_leaves(body.receive, self._answer_all(body, send))

    async def _answer_all(self, body: PrefetchingReceive, send: Send) -> None:
        reader = asyncio.ensure_future(self._read(body))
        try:
            await self._write(send)
            await reader
        finally:
            for one in (reader, *self._tasks):
                one.cancel()
            await asyncio.gather(reader, *self._tasks, return_exceptions=True)

    async def _read(self, body: PrefetchingReceive) -> None:
        """Begin a task for each line; the window and the places hold it back."""
        try:
            async for number, line in lines_of(body.pieces()):
                await self._window.acquire()
                await self._begin(number, line)
        finally:
            if not self._keeps_order:
                await asyncio.wait(self._tasks) if self._tasks else None
            self._answers.put_nowait(None)

    async def _begin(self, number: int, line: bytes | ServiceError) -> None:
        order = line if isinstance(line, ServiceError) else await self._order(line)
        task = asyncio.ensure_future(self._answer(number, order))
        self._tasks.add(task)
        if isinstance(order, Order) and order.place is not None:
            task.add_done_callback(functools.partial(self._give_back, order.place))
        if self._keeps_order:
            self._answers.put_nowait(task)
        else:
            task.add_done_callback(self._answers.put_nowait)

    async def _order(self, line: bytes) -> Order | ServiceError:
        """The order of a line, once there is a place for it; its deadline counts from here."""
        arrival_s = time.monotonic()
        try:
            principal = principal_of(self._request.scope)
            if principal is not None and principal.bucket is not None:
                await principal.bucket.take()
            order = Order(request=solve_request_from(line), arrival_s=arrival_s, priority_penalty=PRIORITY_PENALTY)
            return replace(order, place=await self._place(order))
        except ServiceError as refusal:
            return refusal

    async def _place(self, order: Order) -> str:
        """Take a place, in the lane that is told."""
        left_s = PATIENCE_S if order.deadline_s is None else max(0.0, order.deadline_s - time.monotonic())
        try:
            lane = self._service.likeliest_model(order.request).lane
            await self._service.engine_client.take_place_for_batch(lane, min(PATIENCE_S, left_s))
            return lane
        except ServiceError:
            if not order.is_in_time:
                raise deadline_missed() from None
            raise

    def _give_back(self, place: str, _: object) -> None:
        self._service.engine_client.places.leave(place)

    async def _answer(self, number: int, order: Order | ServiceError) -> bytes:
        try:
            if isinstance(order, ServiceError):
                raise order
            answer = await self._service.solve(order)
        except ServiceError as refusal:
            return _line({"line": number, **refusal.body()})
        return _line({"line": number, "answer": answer.model_dump(mode="json")})

    async def _write(self, send: Send) -> None:
        while (task := await self._answers.get()) is not None:
            finished = [task, *self._finished_too()]
            lines = b"".join([await one for one in finished])
            with anyio.fail_after(IDLE_SECONDS):
                await send(_piece(lines))
            for one in finished:
                self._tasks.discard(one)
                self._window.release()
        await send({"type": "http.response.body", "body": b""})

    def _finished_too(self) -> Iterator[asyncio.Task[bytes]]:
        """Answers that go along in the same piece: a step ends many puzzles, and a piece costs more than a line."""
        while not self._keeps_order and not self._answers.empty():
            task = self._answers.get_nowait()
            if task is None:
                self._answers.put_nowait(None)
                return
            yield task


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[Numbered]:
    """Numbered lines from 1, blank ones left out; an error in the place of one that is too long."""
    buffer, number, is_skipping = bytearray(), 1, False
    async for piece in _before_idle(pieces):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            line = _checked(buffer + end, is_skipping)
            if line:
                yield number, line
            buffer.clear()
            number, is_skipping = number + 1, False
        buffer += rest
        if len(buffer) > MAX_BODY_BYTES:
            is_skipping = True
            buffer.clear()
    if line := _checked(buffer, is_skipping):
        yield number, line


async def _before_idle(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Not by `asyncio.wait_for`: before Python 3.12 it loses a cancel that comes together with its result."""
    while True:
        try:
            with anyio.fail_after(IDLE_SECONDS):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        yield piece


def _checked(line: bytearray, is_skipping: bool) -> bytes | ServiceError:
    if is_skipping or len(line) > MAX_BODY_BYTES:
        return ServiceError(
            413, "line-too-large", f"the line has more than {MAX_BODY_BYTES} bytes", "send one puzzle in each line"
        )
    return bytes(line.strip())


def _line(value: dict[str, Any]) -> bytes:
    return as_json(value) + b"\n"


def _piece(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}
