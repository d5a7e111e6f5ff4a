"""The bounded places of each lane, and the lines of batches that wait for one.

A request holds a place from its parsing to its answer. A single request takes a place or is
rejected. A line of a batch waits for one, in order of arrival: a place given back wakes one line.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping

from hrm_edge_runtime.worker.lanes import LaneKey

BATCH_SHARE = 0.5  # share of the places; the rest is for single requests

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
        """A line may take a place only while fewer than this many are taken."""
        share = int(BATCH_SHARE * self.limit)
        return max(1, share)

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


class Places:
    """The places of all lanes, by the key of the lane."""

    def __init__(self, limits: Mapping[LaneKey, int]) -> None:
        self._lanes = {lane: LanePlaces(limit) for lane, limit in limits.items()}

    def __getitem__(self, lane: LaneKey) -> LanePlaces:
        return self._lanes[lane]

    def is_open(self, lane: LaneKey) -> bool:
        """Whether the lane admits requests."""
        return lane in self._lanes and self._lanes[lane].is_open

    def num_taken(self, lane: LaneKey) -> int:
        return self._lanes[lane].num_taken if lane in self._lanes else 0

    def serve(self, lane: LaneKey, limit: int) -> None:
        """The engine runs the lane: its lines get their places."""
        places = self._lanes.setdefault(lane, LanePlaces(limit))
        places.limit = limit
        places.is_served = True
        places.hand_out()

    def pause(self) -> None:
        """The engine is lost: lines wait until `serve`."""
        for places in self._lanes.values():
            places.is_served = False

    def stop(self) -> None:
        """Wake all lines that wait, since nothing more is admitted."""
        for places in self._lanes.values():
            places.stop()

    async def close(self, lane: LaneKey) -> None:
        """Admit nothing more to a lane, and remove it when its last place is given back."""
        places = self._lanes[lane]
        places.is_open = False
        places.stop()
        await places.vacant()
        del self._lanes[lane]

    async def vacant(self) -> None:
        """Wait until no place of any lane is taken."""
        for places in list(self._lanes.values()):
            await places.vacant()
