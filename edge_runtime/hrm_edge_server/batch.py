"""JSON lines for many puzzles: an answer for each line of a body, while it arrives.

The answer starts immediately, so every refusal is a line. A client that closes its connection
cancels its puzzles.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import anyio
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hrm_edge_runtime.api.errors import JSON, ServiceError, as_json, refusal_from
from hrm_edge_runtime.api.request import outline_of
from hrm_edge_runtime.api.schema import BatchOrder, SolveRequest
from hrm_edge_runtime.worker.client import NoAnswerError
from hrm_edge_server import auth, solve
from hrm_edge_server.admission import Admission
from hrm_edge_server.body import (
    ClientGoneError,
    Line,
    PrefetchingReceive,
    lines_of,
    unless_client_leaves,
)
from hrm_edge_server.growing import GrowingAnswer, UnfinishedError, Writer
from hrm_edge_server.middleware import BAD_KEY

BATCH_TYPE = "application/x-ndjson"
BATCH_TYPES = (BATCH_TYPE, "application/ndjson", "application/jsonl", JSON)
PRIORITY_PENALTY = 1  # lines rank behind single requests of the same priority
IDLE_SECONDS = 60.0  # how long a client that is owed no answer may send nothing
PATIENCE_S = 60.0  # how long a line waits for an engine that does not run
SMALL_LINE_BYTES = 2048  # decoded, such a line takes less memory than a large one as bytes
MAX_BLANK_LINES = 1000


class BatchStream(GrowingAnswer):
    """Answers lines. Its window limits the lines whose answers the client has not read yet."""

    def __init__(self, service: solve.SolveService, request: Request, order: BatchOrder) -> None:
        super().__init__(BATCH_TYPE)
        self._service = service
        self._key = auth.key_of(request.scope)
        self._keys = cast("auth.KeyRing | None", request.app.state.keys)
        self._keeps_order = order == "kept"
        places = service.engine_client.places
        limits = [places[model.lane].batch_limit for model in service.models.values()]
        self._window = asyncio.Semaphore(max(limits, default=1))
        self._answers: asyncio.Queue[asyncio.Future[bytes] | None] = asyncio.Queue()
        self._unsent: set[asyncio.Future[bytes]] = set()
        self._num_owed = 0  # lines that were read and are not answered
        self._patience_s = PATIENCE_S

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = PrefetchingReceive(receive)
        # A space before a line is valid JSON. It needs a line behind it.
        writer = Writer(self, scope, send, pulse=b" ", is_owing=lambda: self._num_owed > 0)
        with contextlib.suppress(ClientGoneError):
            work = writer.carry(self._answer_all(body, writer))
            await unless_client_leaves(body.receive, work)

    async def _answer_all(self, body: PrefetchingReceive, writer: Writer) -> None:
        reader = asyncio.ensure_future(self._read(body))
        try:
            await self._write(writer)
            await reader
        finally:
            for task in (reader, *self._unsent):
                task.cancel()
            await asyncio.gather(reader, *self._unsent, return_exceptions=True)

    async def _read(self, body: PrefetchingReceive) -> None:
        """Begin an answer for each line; the window and the limits of admission hold it back.

        Raises UnfinishedError, after all other answers, if lines are missing.
        """
        number = 0
        num_blank = 0
        try:
            async for number, line in lines_of(self._pieces(body)):
                if line:
                    await self._begin_answer(number, line)
                    continue
                num_blank += 1
                if num_blank > MAX_BLANK_LINES:
                    message = f"the batch has more than {MAX_BLANK_LINES} blank lines"
                    remedy = "send a puzzle in each line"
                    raise ServiceError(422, "too-many-blank-lines", message, remedy)
                await self._take_token()
        except ServiceError as error:
            raise UnfinishedError(_refusal(number, error)) from None
        except TimeoutError:
            message = f"nothing arrived for {IDLE_SECONDS:.0f} s, and the batch has no end"
            remedy = "send the lines that are missing in another batch, and end the body"
            error = ServiceError(408, "body-too-slow", message, remedy)
            raise UnfinishedError(_refusal(number + 1, error)) from None
        finally:
            if self._unsent and not self._keeps_order:
                await asyncio.wait(self._unsent)
            self._answers.put_nowait(None)

    async def _pieces(self, body: PrefetchingReceive) -> AsyncIterator[bytes]:
        """Yield the body; raises TimeoutError if the client neither sends nor awaits anything."""
        while True:
            try:
                # `asyncio.wait_for` loses a cancel that comes with its result before Python 3.12
                with anyio.fail_after(IDLE_SECONDS):
                    piece = await body.next_piece()
            except TimeoutError:
                if not self._num_owed:
                    raise
                continue
            if piece is None:
                return
            yield piece

    async def _begin_answer(self, number: int, line: Line) -> None:
        self._num_owed += 1
        await self._window.acquire()
        await asyncio.sleep(0)  # let other tasks run: a full window of lines takes 50 ms
        answer = await self._begin(number, line)
        self._unsent.add(answer)
        if self._keeps_order:
            self._answers.put_nowait(answer)
        else:
            answer.add_done_callback(self._answers.put_nowait)

    async def _begin(self, number: int, line: Line) -> asyncio.Future[bytes]:
        """Admit a line and return its future answer. Its deadline counts from here."""
        arrival_s = time.monotonic()
        try:
            if isinstance(line, ServiceError):
                raise line
            await self._take_token()
            request = await self._service.decoded(SolveRequest, line)
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
        admission: Admission,
        content: SolveRequest | bytes,
        arrival_s: float,
    ) -> bytes:
        service = self._service
        try:
            if isinstance(content, bytes):
                content = await service.decoded(SolveRequest, content)
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

    async def _admitted(self, request: SolveRequest, arrival_s: float) -> Admission:
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

    async def _write(self, writer: Writer) -> None:
        task = await self._answers.get()
        while task is not None:
            finished = [task, *self._others_finished()]
            lines = b"".join([await one for one in finished])
            await writer.write(lines)
            for one in finished:
                self._unsent.discard(one)
                self._window.release()
                self._num_owed -= 1
            task = await self._answers.get()

    def _others_finished(self) -> Iterator[asyncio.Future[bytes]]:
        """Further answers to send in the same piece: a step ends many, and each piece costs CPU."""
        while not self._keeps_order and not self._answers.empty():
            task = self._answers.get_nowait()
            if task is None:
                self._answers.put_nowait(None)
                return
            yield task


def _refusal(number: int, error: ServiceError | NoAnswerError) -> bytes:
    return _line({"line": number, **refusal_from(error).body()})


def _line(value: dict[str, Any]) -> bytes:
    return f"{as_json(value)}\n".encode()
