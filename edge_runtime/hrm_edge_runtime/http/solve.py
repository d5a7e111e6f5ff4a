"""Where a request meets the engine: admit, parse, solve, write the answer. One service per application."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.types import Receive

from hrm_edge_runtime.api import schema
from hrm_edge_runtime.api.errors import ServiceError, needing_a_thread, no_answer, without_folders
from hrm_edge_runtime.api.request import ParsedRequest, answer_from, candidate_models, parse_request
from hrm_edge_runtime.api.schema import SegmentView, SlotsAnswer, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching import task
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.http.body import Turnstile, unless_client_leaves
from hrm_edge_runtime.http.metrics import Metrics
from hrm_edge_runtime.http.models import Library, ModelManager
from hrm_edge_runtime.worker.client import Admission, EngineClient, OnEvent
from hrm_puzzles.puzzle import Grid

NUM_PARSERS = 2  # a parser holds the interpreter most of its time: more threads would only starve the event loop
PARSED_TOGETHER = 8
MAX_MAKING = 16  # fresh puzzles and labels that wait for their turn, of up to half a second each
BUFFER_SIZE = 256  # segments that a reader may fall behind

Asked = TypeVar("Asked")
Made = TypeVar("Made")
Parse = Callable[[], ParsedRequest]
Parsing = asyncio.Future[ParsedRequest]


class SolveService:
    """The models served at this moment by name, their engine, and the threads that parse."""

    def __init__(
        self, models: Sequence[ServedModel], engine_client: EngineClient, library: Library | None
    ) -> None:
        self.models = {model.name: model for model in models}
        self.model_manager = ModelManager(self.models, engine_client, library) if library else None
        self.engine_client = engine_client
        self.metrics = Metrics(engine_client)
        self._parsers = ParserThreads()
        self.turnstile = Turnstile()
        self._makers = CapacityLimiter(1)  # fresh puzzles are made one at a time, behind all else

    def view(self, model: ServedModel) -> schema.ModelView:
        return model.view(self.engine_client.lane_manager.reports.get(model.lane))

    def close(self) -> None:
        self._parsers.close()
        if self.model_manager is not None:
            self.model_manager.close()

    async def made(self, receive: Receive, make: Callable[[Asked], Made], asked: Asked) -> Made:
        """What `make` returns, run in a thread in its turn; dropped if its client leaves before that.

        Raises ServiceError if too many wait for their turn.
        """
        if self._makers.statistics().tasks_waiting >= MAX_MAKING:
            raise no_answer("queue-full")
        with needing_a_thread():
            return await unless_client_leaves(
                receive, to_thread.run_sync(make, asked, limiter=self._makers)
            )

    async def admit(
        self, request: SolveRequest, *, wait_s: float | None = None
    ) -> Admission[ServedModel]:
        return await self.engine_client.admit(
            partial(candidate_models, self.models.values(), request), wait_s=wait_s
        )

    async def solve(self, request: SolveRequest, *, arrival_s: float) -> SolveAnswer:
        """Admit and answer a request; raises ServiceError or NoAnswerError."""
        with contextlib.closing(await self.admit(request)) as admission:
            parsed = await self.parsed(admission, request, arrival_s=arrival_s)
            return await self.answer(parsed)

    async def stream(
        self, request: SolveRequest, *, arrival_s: float
    ) -> AsyncGenerator[SegmentView | SolveAnswer | None]:
        """Answer a request in steps: None once it is admitted, every segment of every attempt, and the answer."""
        with contextlib.closing(await self.admit(request)) as admission:
            parsed = await self.parsed(admission, request, arrival_s=arrival_s, streamed=True)
            yield None
            events, shown = EventBuffer(BUFFER_SIZE + 1), dict[int, Grid]()
            work = asyncio.ensure_future(self.answer(parsed, events.push))
            work.add_done_callback(lambda _: events.push(None))
            try:
                async for event in events:
                    yield _segment_view(parsed, event, shown)
                yield await work
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def slots(self) -> SlotsAnswer:
        """The engine's last snapshot; it is not asked for another, so this answers while the engine steps."""
        client, snapshot = self.engine_client, self.engine_client.snapshot
        engine = schema.EngineView(
            state=client.state,
            pid=client.process.pid,
            losses=client.process.num_losses,
            losses_in_a_row=client.process.losses_in_a_row,
            last_error=without_folders(client.process.last_error or "") or None,
        )
        views: list[schema.LaneView] = []
        for name, model in self.models.items():
            report, num_requests = (
                client.lane_manager.reports.get(model.lane),
                client.limits.num_taken(model.lane),
            )
            seen, memory = (
                snapshot.lanes.get(name) if snapshot else None,
                report.memory_bytes if report else None,
            )
            views.append(
                schema.LaneView(name=name, lane=seen, memory_bytes=memory, requests=num_requests)
            )
        age_ms = 1000 * (time.monotonic() - snapshot.taken_s) if snapshot else None
        return SlotsAnswer(
            engine=engine, waiting=client.num_waiting, snapshot_age_ms=age_ms, lanes=views
        )

    async def parsed(
        self,
        admission: Admission[ServedModel],
        request: SolveRequest,
        *,
        arrival_s: float,
        priority_penalty: int = 0,
        streamed: bool = False,
    ) -> ParsedRequest:
        """Parse in a thread, so that the event loop goes on, and settle on the model that reads the puzzle."""
        while True:
            parse = partial(
                parse_request,
                admission.candidates,
                request,
                task_id=next(self.engine_client.task_ids),
                arrival_s=arrival_s,
                priority_penalty=priority_penalty,
                streamed=streamed,
            )
            parsed = await self._parsers.run(parse)
            if await admission.settle(parsed.model.lane, parsed.task):
                return parsed

    async def answer(self, parsed: ParsedRequest, on_event: OnEvent | None = None) -> SolveAnswer:
        """Have a parsed request solved; the caller holds and releases its admission."""
        result = await self.engine_client.solve(parsed.model.lane, parsed.task, on_event)
        model = parsed.model.name
        self.metrics.note_solved(model, result)
        if (context := logs.request.get()) is not None:
            context.add(model, result)
        return answer_from(parsed, result)


class ParserThreads:
    """Parses in threads, a few requests of the same turn of the event loop together.

    Waking a thread costs more than most puzzles take to parse: a thread for each request takes 20 % more CPU where
    batches bring many at once.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_PARSERS, thread_name_prefix="hrm-parser")
        self._unparsed: list[tuple[Parsing, Parse]] = []

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, parse: Parse) -> ParsedRequest:
        """What `parse` returns, or raises."""
        loop = asyncio.get_running_loop()
        future: Parsing = loop.create_future()
        self._unparsed.append((future, parse))
        if len(self._unparsed) == 1:
            loop.call_soon(self._hand_out, loop)
        return await future

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        unparsed, self._unparsed = self._unparsed, []
        for start in range(0, len(unparsed), PARSED_TOGETHER):
            together = unparsed[start : start + PARSED_TOGETHER]
            try:
                with needing_a_thread():
                    self._threads.submit(_parse_all, together, loop)
            except ServiceError as refusal:
                _set_outcomes([(future, refusal) for future, _ in together])


def _parse_all(unparsed: list[tuple[Parsing, Parse]], loop: asyncio.AbstractEventLoop) -> None:
    """Runs in a thread; the outcomes are set in the event loop."""
    outcomes: list[tuple[Parsing, ParsedRequest | Exception]] = []
    for future, parse in unparsed:
        try:
            if not future.cancelled():
                outcomes.append((future, parse()))
        except Exception as error:  # it belongs to the request that awaits the future
            outcomes.append((future, error))
    with contextlib.suppress(RuntimeError):  # the event loop has closed
        loop.call_soon_threadsafe(_set_outcomes, outcomes)


def _set_outcomes(outcomes: list[tuple[Parsing, ParsedRequest | Exception]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


class EventBuffer(asyncio.Queue["task.SegmentEvent | None"]):
    """Segment events on their way to one reader, up to None; where it is too slow the oldest are left out."""

    def push(self, event: task.SegmentEvent | None) -> None:
        if self.full():
            self.get_nowait()
        self.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[task.SegmentEvent]:
        while (event := await self.get()) is not None:
            yield event


def _segment_view(
    parsed: ParsedRequest, event: task.SegmentEvent, shown: dict[int, Grid]
) -> SegmentView:
    """A segment in its request's notation; `shown` holds each attempt's last grid. A new shape changes all cells."""
    grid = parsed.model.puzzle.decode(event.answer_T)
    before = shown.get(event.attempt, parsed.parsed.grid)
    shown[event.attempt] = grid
    is_changed = (
        (before != grid).reshape(-1) if before.shape == grid.shape else np.ones(grid.size, np.bool_)
    )
    return SegmentView(
        segment=event.segment,
        attempt=event.attempt,
        solution=parsed.solution_of(event.answer_T),
        changed=np.flatnonzero(is_changed).tolist(),
        margin=event.margin,
        verified=event.verified,
    )
