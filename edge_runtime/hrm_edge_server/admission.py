"""A request's place in a lane, from its parsing to its answer."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hrm_edge_runtime.api.served_model import ServedModel
from hrm_edge_runtime.batching.task import Task
from hrm_edge_runtime.worker.client import EngineClient, NoAnswerError
from hrm_edge_runtime.worker.lanes import LaneKey

LOOK_AGAIN_S = 60.0  # a line that waits checks this often whether the engine still runs


@dataclass(kw_only=True, eq=False)
class Admission:
    """Holds a place from `enter` to `close`; at first in the lane of the first candidate.

    A single request that finds no place is rejected. A line of a batch waits for one until its
    deadline. If its engine does not run, it waits `patience_s` for that.
    """

    client: EngineClient
    choose: Callable[[], Sequence[ServedModel]]
    patience_s: float | None = None
    deadline_s: float = math.inf
    candidates: Sequence[ServedModel] = field(default=(), init=False)
    _lane: LaneKey | None = field(default=None, init=False)

    async def enter(self) -> None:
        """Take a place in the first candidate's lane, in the event-loop turn that names it."""
        while True:
            self.candidates = self.choose()
            if await self._takes(self.candidates[0].lane):
                return
            await asyncio.sleep(0)  # whoever closed the lane names another

    async def settle(self, lane: LaneKey, task: Task) -> bool:
        """Move the place to the lane that takes the task.

        Raises NoAnswerError if the task cannot begin before its deadline. Returns False if the lane
        was closed meanwhile; the request is then back with its candidates. It holds no place while
        it waits for another, so that two lanes never wait for each other.
        """
        if lane != self._lane:
            self.close()
            if not await self._takes(lane):
                await self.enter()
                return False
        if task.deadline_s is not None:
            self.client.check_deadline(lane, task)
        return True

    def close(self) -> None:
        if self._lane is not None:
            self.client.places[self._lane].leave()
            self._lane = None

    async def _takes(self, lane: LaneKey) -> bool:
        """Take a place; returns False if the lane is closed.

        Raises NoAnswerError if the request may wait no longer.
        """
        places = self.client.places.get(lane)
        if places is None or not places.is_open:
            return False
        if self.patience_s is None:
            self.client.take_place(lane)
        elif not await self._waits(lane, self.patience_s):
            return False
        self._lane = lane
        return True

    async def _waits(self, lane: LaneKey, patience_s: float) -> bool:
        """Wait in line for a place; returns False if the lane takes no lines any more."""
        began_s = time.monotonic()
        places = self.client.places[lane]
        turn = places.join()
        try:
            while not turn.done():
                give_up_s = self._give_up_s(lane, began_s, patience_s)
                await asyncio.wait({turn}, timeout=give_up_s - time.monotonic())
        except BaseException:
            places.quit(turn)
            raise
        return turn.result()

    def _give_up_s(self, lane: LaneKey, began_s: float, patience_s: float) -> float:
        """When to look again; raises NoAnswerError if the line may wait no longer."""
        now_s = time.monotonic()
        if now_s >= self.deadline_s:
            raise NoAnswerError("deadline-missed")
        look_again_s = now_s + LOOK_AGAIN_S
        problem = self.client.problem_of(lane)
        if problem is not None:
            look_again_s = max(began_s, self.client.lost_s) + patience_s
            if problem.reason == "draining" or now_s >= look_again_s:
                raise problem
        return min(look_again_s, self.deadline_s)
