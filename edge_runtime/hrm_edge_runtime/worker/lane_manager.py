"""The lanes of the running engine, seen from the event loop, and the bounded places of each.

A request holds a place from its parsing to its answer. A single request takes a place or is
rejected. A line of a batch waits for one, in order of arrival: a place given back wakes one line.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping

from hrm_edge_runtime.worker.lanes import LaneKey, LaneReport, MakeLane
from hrm_edge_runtime.worker.messages import LaneChanged, Load, Retire, ToEngine

Turn = asyncio.Future[bool]
"""A wait for a place: True when the place is taken, False when the lane takes no lines."""


class LanePlaces:
    """The places of one lane."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_taken = 0
        self.is_open = True
        self.is_served = False
        """Whether the engine runs the lane. Until then no line gets a place."""
        self._turns: OrderedDict[Turn, None] = OrderedDict()
        self._vacated = asyncio.Event()

    @property
    def batch_limit(self) -> int:
        """Half of the places: a line may take one only while fewer are taken.

        The rest is for single requests.
        """
        return max(1, self.limit // 2)

    def take(self) -> bool:
        """Take a place, to give back with `leave`; False if none is free."""
        if self.num_taken >= self.limit:
            return False
        self.num_taken += 1
        return True

    def leave(self) -> None:
        self.num_taken -= 1
        if self.num_taken == 0:
            self._vacated.set()
        self.hand_out()

    def hand_out(self) -> None:
        """Give the free places to the lines that have waited longest."""
        while self.is_served and self._turns and self.num_taken < self.batch_limit:
            turn, _ = self._turns.popitem(last=False)
            self.num_taken += 1
            turn.set_result(True)

    def join(self) -> Turn:
        """Wait for a place behind the lines that wait already."""
        turn: Turn = asyncio.get_running_loop().create_future()
        self._turns[turn] = None
        self.hand_out()
        return turn

    def quit(self, turn: Turn) -> None:
        """Wait no longer; gives back the place if the line has just got it."""
        if turn in self._turns:
            del self._turns[turn]
        elif turn.result():
            self.leave()

    def stop(self) -> None:
        """Give no place to lines any more, and wake those that wait."""
        self.is_served = False
        for turn in self._turns:
            turn.set_result(False)
        self._turns.clear()

    async def vacant(self) -> None:
        """Wait until no place is taken."""
        while self.num_taken:
            self._vacated.clear()
            await self._vacated.wait()


class Places(dict[LaneKey, LanePlaces]):
    """The places of all lanes, by the key of the lane."""

    def __init__(self, limits: Mapping[LaneKey, int]) -> None:
        for lane, limit in limits.items():
            self[lane] = LanePlaces(limit)

    def num_taken(self, lane: LaneKey) -> int:
        return self[lane].num_taken if lane in self else 0

    def serve(self, lane: LaneKey, limit: int) -> None:
        """The engine runs the lane: its lines get their places."""
        places = self.setdefault(lane, LanePlaces(limit))
        places.limit = limit
        places.is_served = True
        places.hand_out()

    def pause(self) -> None:
        """The engine is lost: lines wait until `serve`."""
        for places in self.values():
            places.is_served = False

    def stop(self) -> None:
        """Wake all lines that wait, since nothing more is admitted."""
        for places in self.values():
            places.stop()

    async def close(self, lane: LaneKey) -> None:
        """Admit nothing more to a lane, and remove it when its last place is given back."""
        places = self[lane]
        places.is_open = False
        places.stop()
        await places.vacant()
        del self[lane]

    async def vacant(self) -> None:
        """Wait until no place of any lane is taken."""
        for places in list(self.values()):
            await places.vacant()


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
