"""Where a request meets the engine: take a place, parse, solve, write the answer. One per application."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from hrm_edge_runtime import logs
from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.batching.task import Task
from hrm_edge_runtime.http.metrics import Metrics
from hrm_edge_runtime.http.model_manager import ModelManager
from hrm_edge_runtime.http.models import Library, ServedModel
from hrm_edge_runtime.http.parse_task import Question, answer_from, candidate_models, question_from
from hrm_edge_runtime.http.parsing import Parsers
from hrm_edge_runtime.http.schema import (
    EngineView,
    LaneView,
    ModelView,
    SegmentView,
    SlotsAnswer,
    SolveAnswer,
    SolveRequest,
)
from hrm_edge_runtime.http.segment_events import Mailbox, Watcher
from hrm_edge_runtime.worker.client import EngineClient
from hrm_edge_runtime.worker.waiting import Watch


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """A request with the moment it came in; `priority_penalty` is taken from the priority it asks for.

    `place` is the lane of one that whoever asks holds already, and gives back.
    """

    request: SolveRequest
    arrival_s: float
    priority_penalty: int = 0
    place: str | None = None

    @property
    def deadline_s(self) -> float | None:
        deadline_ms = self.request.deadline_ms
        return None if deadline_ms is None else self.arrival_s + deadline_ms / 1000

    @property
    def is_in_time(self) -> bool:
        return self.deadline_s is None or time.monotonic() < self.deadline_s


class SolveService:
    """The models, their supervised engine and the threads that parse."""

    def __init__(
        self, models: Sequence[ServedModel], engine_client: EngineClient, library: Library | None = None
    ) -> None:
        self._models = {model.name: model for model in models}
        self.model_manager = ModelManager(self._models, engine_client, library) if library else None
        self.engine_client = engine_client
        self.metrics = Metrics(engine_client)
        self._parsers = Parsers()

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """What is served at this moment."""
        return tuple(self._models.values())

    def view(self, model: ServedModel) -> ModelView:
        return model.view(self.engine_client.lane_manager.reports.get(model.lane))

    def close(self) -> None:
        self._parsers.close()
        if self.model_manager is not None:
            self.model_manager.close()

    async def solve(self, order: Order) -> SolveAnswer:
        """The way of a request."""
        with contextlib.ExitStack() as places:
            return await self._answer(*await self._admitted(order, places))

    async def watch(self, order: Order) -> AsyncGenerator[SegmentView | SolveAnswer | None]:
        """The same, segment by segment: None once it is admitted, every segment of every attempt, and the answer."""
        with contextlib.ExitStack() as places:
            question, task = await self._admitted(order, places)
            yield None
            mailbox, watcher = Mailbox(), Watcher(question)
            work = asyncio.ensure_future(self._answer(question, task, mailbox.put))
            work.add_done_callback(lambda _: mailbox.close())
            try:
                async for event in mailbox:
                    yield watcher.view(event)
                yield await work
            finally:
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)

    def likeliest_model(self, request: SolveRequest) -> ServedModel:
        """The model a request is likeliest for."""
        return candidate_models(self.models, request)[0]

    def slots(self) -> SlotsAnswer:
        """The engine's last picture of itself; asks nobody, so it answers while the engine steps."""
        engine_client, snapshot = self.engine_client, self.engine_client.snapshot
        engine = EngineView(
            state=engine_client.state,
            pid=engine_client.engine_pid,
            losses=engine_client.num_losses,
            losses_in_a_row=engine_client.backoff.num_in_a_row,
            last_error=engine_client.last_error,
        )
        lanes = snapshot.lanes if snapshot else {}
        return SlotsAnswer(
            engine=engine,
            waiting=engine_client.num_waiting,
            snapshot_age_ms=1000 * (time.monotonic() - snapshot.taken_s) if snapshot else None,
            lanes=[self._lane(model, lanes.get(model.name)) for model in self.models],
        )

    def _lane(self, model: ServedModel, lane: LaneSnapshot | None) -> LaneView:
        report = self.engine_client.lane_manager.reports.get(model.lane)
        return LaneView(
            name=model.name,
            lane=lane,
            memory_bytes=report.memory_bytes if report else None,
            requests=self.engine_client.places.num_taken(model.lane),
        )

    async def _admitted(self, order: Order, places: contextlib.ExitStack) -> tuple[Question, Task]:
        """The question, and a place; that is one of the likeliest model until parsing tells which one it is."""
        candidates = candidate_models(self.models, order.request)
        if order.place is None:
            places.enter_context(self.engine_client.place(candidates[0].lane))
        question = await self._parsers.do(lambda: question_from(candidates, order.request))
        if question.model is not candidates[0]:
            places.enter_context(self.engine_client.place(question.model.lane))
        task = question.ask(
            arrival_s=order.arrival_s,
            deadline_s=order.deadline_s,
            priority=order.request.priority - order.priority_penalty,
        )
        self.engine_client.check_deadline(question.model.lane, task)
        return question, task

    async def _answer(self, question: Question, task: Task, watch: Watch | None = None) -> SolveAnswer:
        conclusion = await self.engine_client.solve(question.model.lane, task, watch)
        self.metrics.note_solved(question.model.name, conclusion)
        if (context := logs.request.get()) is not None:
            context.add(question.model.name, conclusion)
        return answer_from(question, conclusion)
