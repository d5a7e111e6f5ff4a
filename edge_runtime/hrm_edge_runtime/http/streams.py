"""Answers that grow while they are read: server-sent events for one puzzle, JSON lines for many.

A refusal before the answer begins is an ordinary HTTP error. After that the status is 200, and an
error is an event or the line of its puzzle. A client that closes its connection cancels its
puzzles.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hrm_edge_runtime.api.errors import ServiceError, as_json, refusal_from
from hrm_edge_runtime.api.request import outline_of
from hrm_edge_runtime.api.schema import BatchOrder, SegmentView, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.http import auth, solve
from hrm_edge_runtime.http.body import MAX_BODY_BYTES, ClientGoneError, unless_client_leaves
from hrm_edge_runtime.http.middleware import BAD_KEY
from hrm_edge_runtime.worker.admission import Admission
from hrm_edge_runtime.worker.client import NoAnswerError

BATCH_TYPE = "application/x-ndjson"
BATCH_TYPES = (BATCH_TYPE, "application/ndjson", "application/jsonl")
EVENT_TYPE = "text/event-stream"
ADMITTED = b": admitted\n\n"
"""A comment that makes proxies and clients show the headers before the first segment."""
PRIORITY_PENALTY = 1  # lines rank behind single requests of the same priority
IDLE_SECONDS = 60.0  # how long a client may neither send nor read
PATIENCE_S = 60.0  # how long a line waits for an engine that does not run
PREFETCH_BYTES = 64 * 1024
SMALL_LINE_BYTES = 2048  # decoded, such a line takes less memory than a large one as bytes

Line = bytes | ServiceError
"""A line of a batch, or the reason why it cannot be read."""


class GrowingAnswer(Response):
    """An answer of unknown length. Headers keep proxies from buffering it."""

    def __init__(self, media_type: str) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]

    async def begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def send_piece(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def send_end(send: Send) -> None:
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream(GrowingAnswer):
    """Sends views as events. The first view is None: the request is admitted."""

    def __init__(self, views: AsyncGenerator[SegmentView | SolveAnswer | None]) -> None:
        super().__init__(EVENT_TYPE)
        self._views = views

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        async with contextlib.aclosing(self._views):
            await unless_client_leaves(receive, anext(self._views))
            await self.begin(send)
            with contextlib.suppress(ClientGoneError):
                await unless_client_leaves(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send_piece(send, ADMITTED)
        try:
            async for view in self._views:
                assert view is not None, "a request is admitted once"
                name = "answer" if isinstance(view, SolveAnswer) else "segment"
                await send_piece(send, _event(name, view.model_dump(mode="json")))
        except (ServiceError, NoAnswerError) as error:
            await send_piece(send, _event("error", refusal_from(error).body()))
        await send_end(send)


class BatchStream(GrowingAnswer):
    """Answers the lines of a body while it arrives.

    The answer starts immediately, so every refusal is a line. Its window limits the lines whose
    answers the client has not read yet.
    """

    def __init__(self, service: solve.SolveService, request: Request, order: BatchOrder) -> None:
        super().__init__(BATCH_TYPE)
        self._service = service
        self._key = auth.key_of(request.scope)
        self._keys = cast("auth.KeyRing | None", request.app.state.keys)
        self._keeps_order = order == "kept"
        self._window = asyncio.Semaphore(_window_size(service))
        self._answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
        self._unsent: set[asyncio.Future[bytes]] = set()
        self._patience_s = PATIENCE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        await self.begin(send)
        body = PrefetchingReceive(receive)
        with contextlib.suppress(ClientGoneError, TimeoutError):
            await unless_client_leaves(body.receive, self._answer_all(body, send))

    async def _answer_all(self, body: "PrefetchingReceive", send: Send) -> None:
        reader = asyncio.ensure_future(self._read(body))
        try:
            await self._write(send)
            await reader
        finally:
            for task in (reader, *self._unsent):
                task.cancel()
            await asyncio.gather(reader, *self._unsent, return_exceptions=True)

    async def _read(self, body: "PrefetchingReceive") -> None:
        """Begin an answer for each line; the window and the limits of admission hold it back."""
        try:
            async for number, line in lines_of(body.pieces()):
                await self._window.acquire()
                await asyncio.sleep(0)  # let other tasks run: a full window of lines takes 50 ms
                answer = await self._begin(number, line)
                self._unsent.add(answer)
                if self._keeps_order:
                    self._answers.put_nowait(answer)
                else:
                    answer.add_done_callback(self._answers.put_nowait)
        finally:
            if self._unsent and not self._keeps_order:
                await asyncio.wait(self._unsent)
            self._answers.put_nowait(None)

    async def _begin(self, number: int, line: Line) -> asyncio.Future[bytes]:
        """Admit a line and return its future answer. Its deadline counts from here."""
        arrival_s = time.monotonic()
        try:
            if isinstance(line, ServiceError):
                raise line
            await self._take_token()
            request = await self._service.turnstile.decoded(SolveRequest, line)
            outline = outline_of(request)
            content = request if len(line) <= SMALL_LINE_BYTES else line
            del request  # a large line waits as bytes: decoded it can take ten times the memory
            admission = await self._admitted(outline, arrival_s)
        except (ServiceError, NoAnswerError) as error:
            refused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            refused.set_result(_refusal(number, error))
            return refused
        answer = asyncio.ensure_future(self._answer(number, admission, content, arrival_s))
        answer.add_done_callback(lambda _: admission.close())  # also if the task never began
        return answer

    async def _take_token(self) -> None:
        """Wait until the rate of the key allows another line; rejects the line if the key was
        removed."""
        if self._key is None or self._keys is None:
            return
        if self._key.bucket is not None:
            await self._key.bucket.take()
        key = self._keys.in_force(self._key)
        if key is None:
            raise BAD_KEY
        self._key = key

    async def _answer(
        self,
        number: int,
        admission: Admission[ServedModel],
        content: SolveRequest | bytes,
        arrival_s: float,
    ) -> bytes:
        service = self._service
        try:
            if isinstance(content, bytes):
                content = await service.turnstile.decoded(SolveRequest, content)
            parsed = await service.parsed(
                admission,
                content,
                arrival_s=arrival_s,
                priority_penalty=PRIORITY_PENALTY,
            )
            del content  # not needed while it waits for a slot
            answer = await service.answer(parsed)
        except (ServiceError, NoAnswerError) as error:
            return _refusal(number, error)
        return _line({"line": number, "answer": answer.model_dump(mode="json")})

    async def _admitted(self, request: SolveRequest, arrival_s: float) -> Admission[ServedModel]:
        """Admit one line; it may wait for a place.

        If the engine does not return while a line waits for it, later lines do not wait at all.
        """
        deadline_s = math.inf
        if request.deadline_ms is not None:
            deadline_s = arrival_s + request.deadline_ms / 1000
        try:
            admission = await self._service.admit(
                request, patience_s=self._patience_s, deadline_s=deadline_s
            )
        except NoAnswerError as error:
            if error.reason in ("engine-lost", "loading"):
                self._patience_s = 0.0
            raise
        self._patience_s = PATIENCE_S
        return admission

    async def _write(self, send: Send) -> None:
        task = await self._answers.get()
        while task is not None:
            finished = [task, *self._others_finished()]
            lines = b"".join([await one for one in finished])
            with anyio.fail_after(IDLE_SECONDS):
                await send_piece(send, lines)
            for one in finished:
                self._unsent.discard(one)
                self._window.release()
            task = await self._answers.get()
        await send_end(send)

    def _others_finished(self) -> Iterator[asyncio.Future[bytes]]:
        """Further answers to send in the same piece: a step ends many, and each piece costs CPU."""
        while not self._keeps_order and not self._answers.empty():
            task = self._answers.get_nowait()
            if task is None:
                self._answers.put_nowait(None)
                return
            yield task


def _window_size(service: solve.SolveService) -> int:
    places = service.engine_client.places
    return max(places[model.lane].batch_limit for model in service.models.values())


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

    async def pieces(self) -> AsyncIterator[bytes]:
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
    """Yield the lines that are not blank, numbered from 1; a line that is too long is an error.

    Raises TimeoutError if no piece arrives for `IDLE_SECONDS`.
    """
    splitter = LineSplitter()
    piece = await _next(pieces)
    while piece is not None:
        for number, line in splitter.feed(piece):
            if line:
                yield number, line
        piece = await _next(pieces)
    number, line = splitter.take()
    if line:
        yield number, line


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    # `asyncio.wait_for` loses a cancel that comes with its result before Python 3.12
    with anyio.fail_after(IDLE_SECONDS):
        return await anext(pieces, None)


def _refusal(number: int, error: ServiceError | NoAnswerError) -> bytes:
    return _line({"line": number, **refusal_from(error).body()})


def _line(value: dict[str, Any]) -> bytes:
    return f"{as_json(value)}\n".encode()


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()
