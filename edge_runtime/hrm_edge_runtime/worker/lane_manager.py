"""The lanes of the running engine, seen from the event loop: how many requests each may hold, and which are open."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import anyio

from hrm_edge_runtime.worker.lanes import LaneReport, MakeLane
from hrm_edge_runtime.worker.messages import LaneChanged, Load, Retire, ToEngine

LOOK_AGAIN_S = 1.0
BATCH_SHARE = 0.5  # batches leave the other half of the places to requests for one answer

_log = logging.getLogger("hrm_edge_runtime.worker")


class AdmissionLimits:
    """The bounded places of each lane; a request holds one from before its parsing to its answer."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = dict(limits)
        self._taken = dict.fromkeys(limits, 0)
        self._used_s = dict.fromkeys(limits, time.monotonic())
        self._freed = asyncio.Event()

    def take(self, lane: str) -> None:
        """Take a place, to be given back with `leave`; the caller has made sure that one is free."""
        self._taken[lane] += 1
        self._used_s[lane] = time.monotonic()

    def leave(self, lane: str) -> None:
        self._taken[lane] -= 1
        self._used_s[lane] = time.monotonic()
        self._freed.set()

    def is_full(self, lane: str, *, for_batch: bool = False) -> bool:
        limit = self._limits.get(lane, 0)  # none where it has been closed
        return self._taken.get(lane, 0) >= (self.batch_limit(lane) if for_batch and limit else limit)

    def open(self, lane: str, limit: int) -> None:
        self._limits[lane] = limit
        self._taken.setdefault(lane, 0)
        self._used_s.setdefault(lane, time.monotonic())

    def close(self, lane: str) -> None:
        assert not self._taken.get(lane), f"{self._taken[lane]} requests hold places of {lane}"
        for by_lane in (self._limits, self._taken, self._used_s):
            by_lane.pop(lane, None)

    def is_open(self, lane: str) -> bool:
        return lane in self._limits

    def num_taken(self, lane: str) -> int:
        return self._taken.get(lane, 0)

    def idle(self) -> list[str]:
        """The longest unused first."""
        return sorted((lane for lane, taken in self._taken.items() if not taken), key=self._used_s.__getitem__)

    def batch_limit(self, lane: str) -> int:
        """How many places of a lane may be taken for a batch to take another."""
        return max(1, int(BATCH_SHARE * self._limits[lane]))

    async def freed(self, wait_s: float) -> None:
        self._freed.clear()
        with anyio.move_on_after(wait_s):  # never loses a cancel, unlike wait_for before Python 3.12
            await self._freed.wait()

    async def vacant(self, lane: str | None = None) -> None:
        """Wait until no place of a lane is taken, or of any lane."""
        while self._taken.get(lane, 0) if lane is not None else any(self._taken.values()):
            await self.freed(LOOK_AGAIN_S)


class LaneNotOpenedError(Exception):
    """The engine could not open a lane; `lacking_bytes` where memory was the reason."""

    def __init__(self, message: str, lacking_bytes: int | None) -> None:
        super().__init__(message)
        self.lacking_bytes = lacking_bytes


class LaneManager:
    """Opens and closes lanes of the engine; `reports` holds the report of each open lane by its key."""

    def __init__(self, send: Callable[[ToEngine], None], limits: AdmissionLimits) -> None:
        self._send = send
        self._limits = limits
        self.changes: dict[str, asyncio.Future[None]] = {}
        self._models: dict[str, str] = {}
        self.reports: dict[str, LaneReport] = {}

    def model_of(self, lane: str) -> str:
        return self._models.get(lane, lane)

    async def load(self, lane: str, model: str, make_lane: MakeLane, *, beside: bool) -> None:
        """Open a lane; raises LaneNotOpenedError, or the error given to `note_loss` where the engine is lost."""
        self._models[lane] = model
        await self._changed(Load(lane=lane, make_lane=make_lane, beside=beside))

    async def retire(self, lane: str) -> None:
        """Close a lane when the last request in it has ended; returns when its memory is given back."""
        await self._limits.vacant(lane)
        self._limits.close(lane)
        if self.reports.pop(lane, None) is not None:
            # an engine that is lost meanwhile has closed it too
            await asyncio.gather(self._changed(Retire(lane=lane)), return_exceptions=True)

    async def _changed(self, message: Load | Retire) -> None:
        assert message.lane not in self.changes, f"{message.lane} is being opened or closed"
        future = self.changes[message.lane] = asyncio.get_running_loop().create_future()
        self._send(message)
        try:
            await future
        finally:
            del self.changes[message.lane]

    def take(self, change: LaneChanged) -> None:
        future = self.changes.get(change.lane)
        if future is None or future.done():  # its caller has gone
            if change.report is not None:
                self._send(Retire(lane=change.lane))
        elif change.refusal is not None:
            future.set_exception(LaneNotOpenedError(change.refusal, change.lacking_bytes))
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
        _log.info("lane %s: %s", lane, report)
