"""The lanes of the running engine: what it told of each, and having it open and close more of them.

Everything here runs in the event loop. A model that is loaded again gets a lane of another key; the old one is closed
when the last request that was admitted to it has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from hrm_edge_runtime.batching.stats import LaneSnapshot
from hrm_edge_runtime.http.errors import ServiceError
from hrm_edge_runtime.worker.admission import AdmissionLimits
from hrm_edge_runtime.worker.lanes import MakeLane
from hrm_edge_runtime.worker.messages import Failed, Load, Loaded, LoadFailed, Retire, Retired, ToEngine
from hrm_edge_runtime.worker.reports import LaneReport

_log = logging.getLogger("hrm_edge_runtime.worker")


class LaneNotOpenedError(Exception):
    """The engine could not open a lane; `lacking_bytes` where memory was the reason."""

    def __init__(self, message: str, lacking_bytes: int | None) -> None:
        super().__init__(message)
        self.lacking_bytes = lacking_bytes


class LaneManager:
    """The lanes by their keys; `reports` of those that are open."""

    def __init__(self, send: Callable[[ToEngine], None], places: AdmissionLimits) -> None:
        self._send = send
        self._places = places
        self._loads: dict[str, asyncio.Future[LaneReport]] = {}
        self._retirements: dict[str, asyncio.Future[None]] = {}
        self._models: dict[str, str] = {}
        self.reports: dict[str, LaneReport] = {}

    def model_of(self, lane: str) -> str:
        """The name of a lane's model."""
        return self._models.get(lane, lane)

    def by_model(self, lanes: Mapping[str, LaneSnapshot]) -> dict[str, LaneSnapshot]:
        """Snapshots by the names of models; of two lanes of one model, the one that was opened last."""
        return {self.model_of(lane): snapshot for lane, snapshot in lanes.items()}

    async def load(self, lane: str, model: str, make_lane: MakeLane, *, beside: bool) -> LaneReport:
        """Have a lane opened; raises LaneNotOpenedError, or 503 where the engine is lost meanwhile."""
        future = self._loads[lane] = asyncio.get_running_loop().create_future()
        self._models[lane] = model
        self._send(Load(lane=lane, make_lane=make_lane, beside=beside))
        try:
            return await future
        finally:
            del self._loads[lane]

    async def retire(self, lane: str) -> None:
        """Have a lane closed when the last request in it has ended; returns when its memory is given back."""
        await self._places.vacant(lane)
        if self.reports.pop(lane, None) is not None:
            future = self._retirements[lane] = asyncio.get_running_loop().create_future()
            self._send(Retire(lane=lane))
            await future
            del self._retirements[lane]
        self._places.close(lane)

    def take(self, message: Loaded | LoadFailed | Retired | Failed) -> None:
        if isinstance(message, Loaded):
            self._take_loaded(message)
        elif isinstance(message, LoadFailed):
            if (load := self._loads.get(message.lane)) is not None and not load.done():
                load.set_exception(LaneNotOpenedError(message.message, message.lacking_bytes))
        elif isinstance(message, Retired):
            _finish(self._retirements.get(message.lane))

    def note_ready(self, reports: Mapping[str, LaneReport]) -> None:
        """A new engine has opened its lanes."""
        self.reports = dict(reports)
        for lane, report in reports.items():
            self._open(lane, report)

    def note_loss(self, refusal: ServiceError) -> None:
        """The engine has gone, and every lane with it."""
        self.reports = {}
        for load in self._loads.values():
            if not load.done():
                load.set_exception(refusal)
        for retirement in self._retirements.values():
            _finish(retirement)

    def _take_loaded(self, message: Loaded) -> None:
        load = self._loads.get(message.lane)
        if load is None or load.done():  # whoever asked for it has gone
            self._send(Retire(lane=message.lane))
            return
        self.reports[message.lane] = message.report
        self._open(message.lane, message.report)
        load.set_result(message.report)

    def _open(self, lane: str, report: LaneReport) -> None:
        self._places.open(lane, report.num_slots + report.queue_limit)
        _log.info("lane %s: %s", lane, report)


def _finish(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
