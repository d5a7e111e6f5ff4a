"""Solving one request: admit, parse, solve, write the answer. One service per application."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeVar

import numpy as np
from anyio import CapacityLimiter, to_thread
from starlette.types import Receive

from hrm_edge_runtime.api import schema
from hrm_edge_runtime.api.decoding import Fields, validated
from hrm_edge_runtime.api.errors import model_failed, no_answer, out_of_threads, without_folders
from hrm_edge_runtime.api.request import ParsedRequest, answer_from, candidate_models, parse_request
from hrm_edge_runtime.api.schema import SegmentView, SlotsAnswer, SolveAnswer, SolveRequest
from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching import task
from hrm_edge_runtime.contract import logs
from hrm_edge_runtime.worker.client import EngineClient, OnEvent
from hrm_edge_server.admission import Admission
from hrm_edge_server.body import unless_client_leaves
from hrm_edge_server.library import Library
from hrm_edge_server.metrics import Metrics
from hrm_edge_server.models import ModelManager
from hrm_puzzles.puzzle import Grid

SMALL_BODY = 1000  # bytes; decoded within 0.3 ms
NUM_PARSERS = 2  # a parser holds the interpreter lock: more threads would starve the event loop
PARSED_TOGETHER = 8
MAX_MAKING = 16  # fresh puzzles and labels that wait for their turn, up to half a second each
BUFFER_SIZE = 256  # segments that a reader may fall behind

Made = TypeVar("Made")
ReadyRule = Literal["all", "first"]
"""Whether the server is ready with all models that did not fail, or with the first."""
Parse = Callable[[], ParsedRequest]
Parsing = asyncio.Future[ParsedRequest]


class SolveService:
    """The models that are served now, by name, with their engine and the threads that parse."""

    def __init__(
        self,
        models: Sequence[ServedModel],
        engine_client: EngineClient,
        library: Library,
        ready: ReadyRule = "all",
    ) -> None:
        self.ready: ReadyRule = ready
        self.models = {model.name: model for model in models}
        self.library = library
        self.model_manager = ModelManager(self.models, engine_client, library)
        self.engine_client = engine_client
        self.metrics = Metrics(engine_client)
        self._decoding = asyncio.Lock()
        self._parsers = ParserThreads()
        self._makers = CapacityLimiter(1)  # fresh puzzles are made one at a time, after other work

    def view(self, model: ServedModel) -> schema.ModelView:
        report = self.engine_client.lane_manager.reports.get(model.lane)
        return model.view(report, problem=self.library.failed.get(model.name))

    def _candidates(self, request: SolveRequest) -> list[ServedModel]:
        """The models that may take the request, the ones that are ready first."""
        failed = self.library.failed
        if request.model is not None and request.model in failed:
            raise model_failed(request.model, failed[request.model])
        models: Iterable[ServedModel] = self.models.values()
        if failed:
            models = [model for model in models if model.name not in failed]
        joining = self.library.joining
        if joining:
            models = sorted(models, key=lambda model: model.name in joining)
        return candidate_models(models, request)

    @property
    def state(self) -> schema.ServerState:
        """Whether the server takes new work, in one word."""
        state = self.engine_client.state
        if state == "engine-lost":
            return "failed"
        if state != "ready":
            return state
        if not self.models.keys() - self.library.failed.keys():
            return "no-model"
        if self.library.joining:
            return "partial"
        return state

    def counts(self) -> schema.ModelCounts:
        num_failed = len(self.library.failed)
        num_served = len(self.models.keys() - self.library.failed.keys())
        if self.engine_client.state == "ready":
            num_loading = len(self.library.joining)
        else:
            num_loading = num_served
        num_ready = num_served - num_loading
        return schema.ModelCounts(ready=num_ready, loading=num_loading, failed=num_failed)

    def close(self) -> None:
        self._parsers.close()
        self.model_manager.close()

    async def made(self, receive: Receive, make: Callable[[], Made]) -> Made:
        """Run `make` in a thread and return its result; dropped if the client leaves before.

        Raises ServiceError if too many calls wait for a thread.
        """
        if self._makers.statistics().tasks_waiting >= MAX_MAKING:
            raise no_answer("queue-full")
        making = to_thread.run_sync(make, limiter=self._makers)
        return await unless_client_leaves(receive, making)

    async def decoded(self, fields: type[Fields], body: bytes) -> Fields:
        """The fields of a body, as from `validated`.

        Large bodies take up to 4 ms, so a turn of the event loop decodes one of them.
        """
        if len(body) > SMALL_BODY:
            async with self._decoding:
                await asyncio.sleep(0)
        return validated(fields, body)

    async def admit(
        self,
        request: SolveRequest,
        *,
        patience_s: float | None = None,
        deadline_s: float = math.inf,
    ) -> Admission:
        """Take a place in the lane of the first candidate, until the caller closes it.

        A line of a batch has a patience and perhaps a deadline: it waits for its place.
        """
        admission = Admission(
            client=self.engine_client,
            choose=partial(self._candidates, request),
            patience_s=patience_s,
            deadline_s=deadline_s,
        )
        await admission.enter()
        return admission

    async def solve(self, request: SolveRequest, *, arrival_s: float) -> SolveAnswer:
        """Admit and answer a request; raises ServiceError or NoAnswerError."""
        with contextlib.closing(await self.admit(request)) as admission:
            parsed = await self.parsed(admission, request, arrival_s=arrival_s)
            return await self.answer(parsed)

    async def stream(
        self,
        request: SolveRequest,
        *,
        arrival_s: float,
    ) -> AsyncGenerator[SegmentView | SolveAnswer]:
        """Yield every segment of every attempt, then the answer."""
        with contextlib.closing(await self.admit(request)) as admission:
            parsed = await self.parsed(admission, request, arrival_s=arrival_s, streamed=True)
            events = EventBuffer(BUFFER_SIZE + 1)
            views = SegmentViews(parsed)
            work = asyncio.ensure_future(self.answer(parsed, events.push))
            work.add_done_callback(lambda _: events.push(None))
            try:
                async for event in events:
                    yield views.view(event)
                yield await work
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def slots(self) -> SlotsAnswer:
        """The engine's last snapshot. It sends no message, so it answers while the engine steps."""
        client = self.engine_client
        age_ms = None
        if client.snapshot is not None:
            age_ms = 1000 * (time.monotonic() - client.snapshot.taken_s)
        process = client.process
        engine = schema.EngineView(
            state=client.state,
            pid=process.pid,
            losses=process.num_losses,
            losses_in_a_row=process.losses_in_a_row,
            last_error=without_folders(process.last_error or "") or None,
        )
        lanes: list[schema.LaneView] = []
        for model in self.models.values():
            report = client.lane_manager.reports.get(model.lane)
            view = schema.LaneView(
                name=model.name,
                lane=client.lanes_by_model.get(model.name),
                memory_bytes=report.memory_bytes if report else None,
                requests=client.places.num_taken(model.lane),
            )
            lanes.append(view)
        return SlotsAnswer(
            engine=engine,
            waiting=client.num_waiting,
            snapshot_age_ms=age_ms,
            lanes=lanes,
        )

    async def parsed(
        self,
        admission: Admission,
        request: SolveRequest,
        *,
        arrival_s: float,
        priority_penalty: int = 0,
        streamed: bool = False,
    ) -> ParsedRequest:
        """Parse in a thread and settle on the model that reads the puzzle."""
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
        """Solve a parsed request; the caller holds and releases its admission."""
        result = await self.engine_client.solve(parsed.model.lane, parsed.task, on_event)
        model = parsed.model.name
        self.metrics.note_solved(model, result)
        context = logs.request.get()
        if context is not None:
            context.num_puzzles += 1
            context.segments += result.total_segments
            context.attempts += result.num_attempts
            context.queue_s += result.queue_s
            context.compute_s += result.compute_s
            context.models.add(model)
            context.halted_by.add(result.halted_by)
        return answer_from(parsed, result)


class ParserThreads:
    """Parses in threads. One call parses up to `PARSED_TOGETHER` requests.

    Waking a thread costs more than parsing most puzzles. With one call per request, batches that
    bring many puzzles take 20 % more CPU. So a call takes the requests of one turn of the event
    loop.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(NUM_PARSERS, thread_name_prefix="hrm-parser")
        self._unparsed: list[tuple[Parsing, Parse]] = []

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, parse: Parse) -> ParsedRequest:
        """The result of `parse`; raises what it raises."""
        loop = asyncio.get_running_loop()
        future: Parsing = loop.create_future()
        self._unparsed.append((future, parse))
        if len(self._unparsed) == 1:
            loop.call_soon(self._hand_out, loop)
        return await future

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        unparsed = self._unparsed
        self._unparsed = []
        for start in range(0, len(unparsed), PARSED_TOGETHER):
            together = unparsed[start : start + PARSED_TOGETHER]
            try:
                self._threads.submit(_parse_all, together, loop)
            except RuntimeError:  # the machine cannot start another thread
                _set_outcomes([(future, out_of_threads()) for future, _ in together])


def _parse_all(unparsed: list[tuple[Parsing, Parse]], loop: asyncio.AbstractEventLoop) -> None:
    """Parse in a thread, and set the outcomes in the event loop."""
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
    """Segment events for one reader, up to None; drops the oldest if the reader is too slow."""

    def push(self, event: task.SegmentEvent | None) -> None:
        if self.full():
            self.get_nowait()
        self.put_nowait(event)

    async def __aiter__(self) -> AsyncIterator[task.SegmentEvent]:
        event = await self.get()
        while event is not None:
            yield event
            event = await self.get()


class SegmentViews:
    """Segments in the notation of their request, each compared with its attempt's last grid."""

    def __init__(self, parsed: ParsedRequest) -> None:
        self._parsed = parsed
        self._grids: dict[int, Grid] = {}

    def view(self, event: task.SegmentEvent) -> SegmentView:
        grid = self._parsed.grid_of(event.answer_T)
        before = self._grids.get(event.attempt, self._parsed.parsed.grid)
        self._grids[event.attempt] = grid
        changed = np.arange(grid.size)  # all cells if the shape changed
        if before.shape == grid.shape:
            changed = np.flatnonzero(before != grid)
        return SegmentView(
            segment=event.segment,
            attempt=event.attempt,
            solution=self._parsed.board.write(grid, self._parsed.parsed.notation),
            changed=changed.tolist(),
            margin=event.margin,
            verified=event.verified,
        )
