"""Answers that grow while they are read: server-sent events for one puzzle, lines of JSON for any number of them.

What is refused before the answer begins is an ordinary HTTP error; after that the status is 200 and an error is an
event, or the line of its puzzle alone. A client that closes its connection cancels what it has asked.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Any, Literal, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from hrm_edge_runtime.api.errors import ServiceError, as_json, no_answer, refusal_from
from hrm_edge_runtime.api.request import outline_of
from hrm_edge_runtime.api.schema import SegmentView, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.http import auth, solve
from hrm_edge_runtime.http.body import MAX_BODY_BYTES, ClientGoneError, unless_client_leaves
from hrm_edge_runtime.http.middleware import BAD_KEY
from hrm_edge_runtime.worker.client import Admission, NoAnswerError

BatchOrder = Literal["as-finished", "kept"]

BATCH_TYPE = "application/x-ndjson"
BATCH_TYPES = (BATCH_TYPE, "application/ndjson", "application/jsonl")
EVENT_TYPE = "text/event-stream"
ADMITTED = b": admitted\n\n"  # a comment: it lets proxies and clients see the headers before the first segment
PRIORITY_PENALTY = 1  # lines rank behind single requests of the same priority
IDLE_SECONDS = 60.0  # how long a client may neither send nor take anything
ADMISSION_WAIT_S = (
    60.0  # how long a line waits to be admitted, for instance while an engine is restarted
)
PREFETCH_BYTES = 64 * 1024
SMALL_LINE_BYTES = 2048  # as objects such a line takes less than a large one as bytes

Numbered = tuple[int, "bytes | ServiceError"]


class GrowingAnswer(Response):
    """An answer of unknown length, which nothing on its way may keep or wait for the end of."""

    def __init__(self, media_type: str) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]

    async def begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def send_piece(send: Send, body: bytes = b"") -> None:
    """An empty piece ends the answer."""
    await send({"type": "http.response.body", "body": body, "more_body": bool(body)})


class EventStream(GrowingAnswer):
    """Sends views as events, and nothing before the first of them (None) has come."""

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
        await send_piece(send)


class BatchStream(GrowingAnswer):
    """Begins at once, so every refusal is a line; its window bounds the lines whose answers are not taken yet."""

    def __init__(self, service: solve.SolveService, request: Request, order: BatchOrder) -> None:
        super().__init__(BATCH_TYPE)
        self._service = service
        self._key, self._keys = (
            auth.key_of(request.scope),
            cast("auth.KeyRing | None", request.app.state.keys),
        )
        self._keeps_order = order == "kept"
        limits = service.engine_client.limits
        self._window = asyncio.Semaphore(
            max(limits.batch_limit(model.lane) for model in service.models.values())
        )
        self._answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
        self._unsent: set[asyncio.Future[bytes]] = set()
        self._wait_s = ADMISSION_WAIT_S

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
            for one in (reader, *self._unsent):
                one.cancel()
            await asyncio.gather(reader, *self._unsent, return_exceptions=True)

    async def _read(self, body: "PrefetchingReceive") -> None:
        """Begin an answer for each line; the window and the limits of admission hold it back."""
        try:
            async for number, line in lines_of(body.pieces()):
                await self._window.acquire()
                await asyncio.sleep(
                    0
                )  # a line a turn: a window full of them is 50 ms that all others wait
                answer = await self._begin(number, line)
                self._unsent.add(answer)
                if self._keeps_order:
                    self._answers.put_nowait(answer)
                else:
                    answer.add_done_callback(self._answers.put_nowait)
        finally:
            if not self._keeps_order:
                await asyncio.wait(self._unsent) if self._unsent else None
            self._answers.put_nowait(None)

    async def _begin(self, number: int, line: bytes | ServiceError) -> asyncio.Future[bytes]:
        """The answer to come, once its line is admitted; its deadline counts from here."""
        arrival_s = time.monotonic()
        try:
            if isinstance(line, ServiceError):
                raise line
            if self._key is not None and self._keys is not None:
                if self._key.bucket is not None:
                    await self._key.bucket.take()
                if (now := self._keys.in_force(self._key)) is None:  # it has been removed meanwhile
                    raise BAD_KEY
                self._key = now
            request = await self._service.turnstile.decoded(SolveRequest, line)
            outline = outline_of(request)
            asked = request if len(line) <= SMALL_LINE_BYTES else line
            del request  # a large line waits as bytes: as objects it can take ten times the memory
            admission = await self._admitted(outline, arrival_s)
        except (ServiceError, NoAnswerError) as error:
            refused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            refused.set_result(_refusal(number, error))
            return refused
        answer = asyncio.ensure_future(self._answer(number, admission, asked, arrival_s))
        answer.add_done_callback(
            lambda _: admission.close()
        )  # even where it is cancelled before it began
        return answer

    async def _answer(
        self,
        number: int,
        admission: Admission[ServedModel],
        asked: SolveRequest | bytes,
        arrival_s: float,
    ) -> bytes:
        service = self._service
        try:
            if isinstance(asked, bytes):
                asked = await service.turnstile.decoded(SolveRequest, asked)
            parsed = await service.parsed(
                admission, asked, arrival_s=arrival_s, priority_penalty=PRIORITY_PENALTY
            )
            del asked  # its objects are not needed while it waits for a slot
            answer = await service.answer(parsed)
        except (ServiceError, NoAnswerError) as error:
            return _refusal(number, error)
        return _line({"line": number, "answer": answer.model_dump(mode="json")})

    async def _admitted(self, request: SolveRequest, arrival_s: float) -> Admission[ServedModel]:
        """A line's place; where the engine stays away for as long as a line waits, those after it wait no more."""
        deadline_s = (
            math.inf if request.deadline_ms is None else arrival_s + request.deadline_ms / 1000
        )
        try:
            wait_s = max(0.0, min(self._wait_s, deadline_s - time.monotonic()))
            admission = await self._service.admit(request, wait_s=wait_s)
        except NoAnswerError as error:
            if time.monotonic() >= deadline_s:
                raise no_answer("deadline-missed") from None
            self._wait_s = 0.0 if error.reason in ("engine-lost", "loading") else self._wait_s
            raise
        self._wait_s = ADMISSION_WAIT_S
        return admission

    async def _write(self, send: Send) -> None:
        while (task := await self._answers.get()) is not None:
            finished = [task, *self._finished_too()]
            lines = b"".join([await one for one in finished])
            with anyio.fail_after(IDLE_SECONDS):
                await send_piece(send, lines)
            for one in finished:
                self._unsent.discard(one)
                self._window.release()
        await send_piece(send)

    def _finished_too(self) -> Iterator[asyncio.Future[bytes]]:
        """Answers that go along in the same piece: a step ends many puzzles, and a piece costs more than a line."""
        while not self._keeps_order and not self._answers.empty():
            task = self._answers.get_nowait()
            if task is None:
                self._answers.put_nowait(None)
                return
            yield task


class PrefetchingReceive:
    """A body read ahead of its reader, so that the client's departure behind it is seen while nothing is read.

    It keeps at most `PREFETCH_BYTES` and a piece: a client that sent more is not seen to leave before some is taken.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._is_whole = False
        self._filled, self._taken = asyncio.Event(), asyncio.Event()

    async def receive(self) -> Message:
        while self._size > PREFETCH_BYTES:
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


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[Numbered]:
    """Numbered lines from 1, blank ones left out; an error in the place of one that is too long."""
    buffer, number, is_skipping = bytearray(), 1, False
    while True:
        with anyio.fail_after(
            IDLE_SECONDS
        ):  # `asyncio.wait_for` loses a cancel beside its result before Python 3.12
            piece = await anext(pieces, None)
        if piece is None:
            break
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


def _checked(line: bytearray, is_skipping: bool) -> bytes | ServiceError:
    if is_skipping or len(line) > MAX_BODY_BYTES:
        message = f"the line has more than {MAX_BODY_BYTES} bytes"
        return ServiceError(413, "line-too-large", message, "send one puzzle in each line")
    return bytes(line.strip())


def _refusal(number: int, error: ServiceError | NoAnswerError) -> bytes:
    return _line({"line": number, **refusal_from(error).body()})


def _line(value: dict[str, Any]) -> bytes:
    return f"{as_json(value)}\n".encode()


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {as_json(data)}\n\n".encode()
