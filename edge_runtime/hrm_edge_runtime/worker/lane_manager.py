"""The lanes of the running engine, seen from the event loop."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport, MakeLane
from hrm_edge_runtime.worker.messages import LaneChanged, Load, Retire, ToEngine
from hrm_edge_runtime.worker.places import Places

_log = logging.getLogger("hrm_edge_runtime.worker")


class LaneNotOpenedError(Exception):
    """The engine could not open a lane, perhaps for a lack of memory."""

    def __init__(self, message: str, *, is_over_budget: bool = False) -> None:
        super().__init__(message)
        self.is_over_budget = is_over_budget


class LaneManager:
    """Opens and closes lanes of the engine; `reports` holds each open lane's report."""

    def __init__(self, send: Callable[[ToEngine], None], places: Places) -> None:
        self._send = send
        self._places = places
        self.changes: dict[LaneKey, asyncio.Future[None]] = {}
        self.reports: dict[LaneKey, LaneReport] = {}

    async def load(self, lane: LaneKey, make_lane: MakeLane, *, beside: bool) -> None:
        """Open a lane; raises LaneNotOpenedError, or the error passed to `note_loss`."""
        await self._changed(Load(lane=lane, make_lane=make_lane, beside=beside))

    async def retire(self, lane: LaneKey) -> None:
        """Admit nothing more to a lane and close it after its last request.

        Returns when its memory is given back.
        """
        await self._places.close(lane)
        if self.reports.pop(lane, None) is not None:
            closing = self._changed(Retire(lane=lane))
            # if the engine is lost meanwhile, the lane is closed too
            await asyncio.gather(closing, return_exceptions=True)

    async def _changed(self, message: Load | Retire) -> None:
        assert message.lane not in self.changes, f"{message.lane} is being opened or closed"
        future = asyncio.get_running_loop().create_future()
        self.changes[message.lane] = future
        self._send(message)
        try:
            await future
        finally:
            del self.changes[message.lane]

    def take(self, change: LaneChanged) -> None:
        """Pass a change on to the caller that waits for it."""
        future = self.changes.get(change.lane)
        if future is None or future.done():  # its caller has left
            if change.report is not None:
                self._send(Retire(lane=change.lane))
        elif change.refusal is not None:
            future.set_exception(
                LaneNotOpenedError(change.refusal, is_over_budget=change.is_over_budget)
            )
        else:
            if change.report is not None:
                self._open(change.lane, change.report)
            future.set_result(None)

    def note_ready(self, reports: Mapping[LaneKey, LaneReport]) -> None:
        for lane, report in reports.items():
            self._open(lane, report)

    def note_loss(self, error: Exception) -> None:
        self.reports = {}
        self._places.pause()
        for future in self.changes.values():
            if not future.done():
                future.set_exception(error)

    def _open(self, lane: LaneKey, report: LaneReport) -> None:
        self.reports[lane] = report
        self._places.serve(lane, report.num_slots + report.queue_limit)
        _log.debug("lane %s: %s", lane, report)
