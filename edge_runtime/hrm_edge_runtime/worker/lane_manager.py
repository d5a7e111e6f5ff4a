"""The lanes of the running engine, seen from the event loop: their places, and which are open."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import anyio

from hrm_edge_runtime.worker.lanes import LaneReport, MakeLane
from hrm_edge_runtime.worker.messages import LaneChanged, Load, Retire, ToEngine

LOOK_AGAIN_S = 1.0  # a wait for free places checks this often even if none is given back
BATCH_SHARE = 0.5  # share of the places; the rest is for single requests

_log = logging.getLogger("hrm_edge_runtime.worker")


class AdmissionLimits:
    """The bounded places of each lane; a request holds one from its parsing to its answer."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = dict(limits)
        self._taken = dict.fromkeys(limits, 0)
        self._freed = asyncio.Event()

    def take(self, lane: str, *, for_batch: bool = False) -> bool:
        """Take a place, to give back with `leave`; False if none is free."""
        limit = self._limits.get(lane, 0)  # 0 if it has been closed
        if limit and for_batch:
            limit = self.batch_limit(lane)
        if self._taken.get(lane, 0) >= limit:
            return False
        self._taken[lane] += 1
        return True

    def leave(self, lane: str) -> None:
        self._taken[lane] -= 1
        self._freed.set()

    def open(self, lane: str, limit: int) -> None:
        self._limits[lane] = limit
        self._taken.setdefault(lane, 0)

    def close(self, lane: str) -> None:
        assert not self._taken.get(lane), f"{self._taken[lane]} requests hold places of {lane}"
        self._limits.pop(lane, None)
        self._taken.pop(lane, None)

    def is_open(self, lane: str) -> bool:
        return lane in self._limits

    def num_taken(self, lane: str) -> int:
        return self._taken.get(lane, 0)

    def batch_limit(self, lane: str) -> int:
        """A batch may take a place only while fewer than this many are in use."""
        share = int(BATCH_SHARE * self._limits[lane])
        return max(1, share)

    async def freed(self, wait_s: float) -> None:
        """Wait until a place is given back, at most `wait_s`."""
        self._freed.clear()
        # unlike wait_for before Python 3.12, it never loses a cancel
        with anyio.move_on_after(wait_s):
            await self._freed.wait()

    async def vacant(self, lane: str | None = None) -> None:
        """Wait until no place of this lane is taken; None stands for all lanes."""
        while self._num_in_use(lane):
            await self.freed(LOOK_AGAIN_S)

    def _num_in_use(self, lane: str | None) -> int:
        if lane is None:
            return sum(self._taken.values())
        return self.num_taken(lane)


class LaneNotOpenedError(Exception):
    """The engine could not open a lane, perhaps for a lack of memory."""

    def __init__(self, message: str, *, is_over_budget: bool = False) -> None:
        super().__init__(message)
        self.is_over_budget = is_over_budget


class LaneManager:
    """Opens and closes lanes of the engine; `reports` holds each open lane's report by its key."""

    def __init__(self, send: Callable[[ToEngine], None], limits: AdmissionLimits) -> None:
        self._send = send
        self._limits = limits
        self.changes: dict[str, asyncio.Future[None]] = {}
        self._models: dict[str, str] = {}
        self.reports: dict[str, LaneReport] = {}

    def model_of(self, lane: str) -> str:
        return self._models.get(lane, lane)

    async def load(self, lane: str, model: str, make_lane: MakeLane, *, beside: bool) -> None:
        """Open a lane; raises LaneNotOpenedError, or the error passed to `note_loss`."""
        self._models[lane] = model
        await self._changed(Load(lane=lane, make_lane=make_lane, beside=beside))

    async def retire(self, lane: str) -> None:
        """Close a lane after its last request; returns when its memory is given back."""
        await self._limits.vacant(lane)
        self._limits.close(lane)
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

    def note_ready(self, reports: Mapping[str, LaneReport]) -> None:
        for lane, report in reports.items():
            self._open(lane, report)

    def note_loss(self, error: Exception) -> None:
        self.reports = {}
        for future in self.changes.values():
            if not future.done():
                future.set_exception(error)

    def _open(self, lane: str, report: LaneReport) -> None:
        self.reports[lane] = report
        self._limits.open(lane, report.num_slots + report.queue_limit)
        _log.debug("lane %s: %s", lane, report)
