"""Where a request meets the engine: take a seat, parse, solve, write the answer. One per application."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.requests import Request

from hrm_edge_runtime.service.metrics import Metrics
from hrm_edge_runtime.service.questions import ServedModel, answer_from, check_addressee, question_from
from hrm_edge_runtime.service.schema import EngineView, SlotsAnswer, SolveAnswer, SolveRequest
from hrm_edge_runtime.service.supervisor import Supervisor

NUM_PARSERS = 2  # a parser holds the interpreter most of its time: more threads would only starve the event loop

T = TypeVar("T")


class ClientGoneError(Exception):
    """The client closed its connection before the answer was there."""


class Desk:
    """The model, its supervised engine and the threads that parse."""

    def __init__(self, model: ServedModel, supervisor: Supervisor) -> None:
        self.model = model
        self.supervisor = supervisor
        self.metrics = Metrics(supervisor, model.name)
        self._parsers = ThreadPoolExecutor(NUM_PARSERS, thread_name_prefix="hrm-parser")

    def close(self) -> None:
        self._parsers.shutdown(wait=False, cancel_futures=True)

    async def solve(self, request: SolveRequest, arrival_s: float) -> SolveAnswer:
        """The way of a request; its seat bounds all of it, parsing too."""
        check_addressee(self.model, request)
        deadline_s = None if request.deadline_ms is None else arrival_s + request.deadline_ms / 1000
        with self.supervisor.seat():
            question = await self._in_parser(lambda: question_from(self.model, request))
            result = await self.supervisor.solve(
                question.tokens_T,
                question.policy,
                arrival_s=arrival_s,
                puzzle_id=question.puzzle_id,
                deadline_s=deadline_s,
            )
        self.metrics.note_solved(result)
        return answer_from(self.model, question, result)

    def slots(self) -> SlotsAnswer:
        """The engine's last picture of itself; asks nobody, so it answers while the engine steps."""
        supervisor, snapshot = self.supervisor, self.supervisor.snapshot
        engine = EngineView(
            state=supervisor.state,
            pid=supervisor.engine_pid,
            losses=supervisor.num_losses,
            losses_in_a_row=supervisor.backoff.num_in_a_row,
            last_error=supervisor.last_error,
        )
        return SlotsAnswer(
            engine=engine,
            waiting=supervisor.num_waiting,
            snapshot_age_ms=1000 * (time.monotonic() - snapshot.taken_s) if snapshot else None,
            lane=snapshot.lane if snapshot else None,
        )

    async def _in_parser(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._parsers, work)


async def unless_client_leaves(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, but drop it (and raise ClientGoneError) the moment the client closes its connection.

    The body must have been read: what comes after it can only be the disconnect.
    """
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
