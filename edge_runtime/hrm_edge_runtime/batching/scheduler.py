"""Which attempt holds which slot: pure logic without threads, I/O or a clock.

A slot's state is reset at admission, never at release: in between it may hold anything.

The queue is ordered by priority with aging. An attempt's place is its arrival period of AGEING_S
seconds minus its priority, and it never changes. So an attempt of priority `k` above another's
does not overtake it if it arrives more than `k + 1` periods later, and no attempt starves.
"""

import math
from bisect import bisect_left, insort
from typing import Any

from hrm_edge_runtime.batching.task import Attempt, Task

AGEING_S = 10.0

Place = tuple[Any, ...]


def place_of(one: Task | Attempt) -> Place:
    """The place in the queue, smaller first; it never changes, so places compare at any time."""
    period = math.floor(one.arrival_s / AGEING_S)
    deadline_s = math.inf if one.deadline_s is None else one.deadline_s
    return (period - one.priority, -one.priority, deadline_s, one.arrival_s)


class Scheduler:
    """Gives slots to attempts; at most `num_slots + queue_limit` attempts are alive at once."""

    def __init__(self, num_slots: int, queue_limit: int) -> None:
        assert num_slots > 0, "a lane has a slot"
        self.num_slots = num_slots
        self.queue_limit = queue_limit
        self.slots: list[Attempt | None] = [None] * num_slots
        self.generations = [0] * num_slots
        self.dense: list[Attempt] = []  # slots occupied since the last `admit`
        self.running: dict[int, Attempt] = {}
        self.waiting: dict[int, Attempt] = {}
        self._line: list[tuple[Place, int]] = []  # kept sorted, like the deadlines
        self._deadlines: list[tuple[float, int]] = []
        self._place_of: dict[int, Place] = {}
        self._num_submitted = 0
        self._is_settled = True  # no attempt was added or removed since the last `admit`

    def submit(self, attempt: Attempt) -> None:
        """Queue an attempt with an id of its own; raises ValueError if the queue is full."""
        attempt_id = attempt.attempt_id
        assert attempt_id not in self.waiting, f"attempt {attempt_id} is already here"
        if len(self.waiting) + len(self.running) >= self.queue_limit + self.num_slots:
            limit = f"the queue already holds its limit of {self.queue_limit} attempts"
            raise ValueError(f"{limit}: retry when some have ended.")
        self._num_submitted += 1
        self.waiting[attempt_id] = attempt
        place = (*place_of(attempt), self._num_submitted)
        self._place_of[attempt_id] = place
        insort(self._line, (place, attempt_id))
        if attempt.deadline_s is not None:
            insort(self._deadlines, (attempt.deadline_s, attempt_id))
        self._is_settled = False

    def cancel(self, attempt_id: int) -> Attempt | None:
        """Remove an attempt from the queue or from its slot; None if it is not alive."""
        if attempt_id in self.running:
            return self.release(attempt_id)
        attempt = self.waiting.pop(attempt_id, None)
        if attempt is None:
            return None
        place = self._place_of.pop(attempt_id)
        _remove(self._line, (place, attempt_id))
        if attempt.deadline_s is not None:
            _remove(self._deadlines, (attempt.deadline_s, attempt_id))
        return attempt

    def expire(self, now: float) -> list[Attempt]:
        """Remove every attempt whose deadline is `now` or earlier, the earliest first."""
        expired: list[Attempt] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, attempt_id = self._deadlines[0]
            attempt = self.cancel(attempt_id)
            assert attempt is not None, "an attempt takes its deadline along when it leaves"
            expired.append(attempt)
        return expired

    def admit(self) -> tuple[list[Attempt], list[tuple[int, int]]]:
        """Fill free slots from the queue; then move the last running attempts into the gaps.

        Returns the attempts that an engine loads before the next step, and then the moves of slots
        (from, to).
        """
        admissions: list[Attempt] = []
        moves: list[tuple[int, int]] = []
        if self._is_settled:
            return admissions, moves
        self._is_settled = True
        for slot in range(self.num_slots):
            if self.slots[slot] is not None:
                continue
            if self._line:
                _, attempt_id = self._line.pop(0)
                del self._place_of[attempt_id]
                attempt = self.waiting.pop(attempt_id)
                admissions.append(attempt)
            elif slot < len(self.running):
                attempt = list(filter(None, self.slots))[-1]
                source = self.slots.index(attempt)
                self.slots[source] = None
                moves.append((source, slot))
            else:
                break
            attempt.slot = slot
            self.slots[slot] = attempt
            self.generations[slot] += 1
            self.running[attempt.attempt_id] = attempt
        self.dense = list(filter(None, self.slots))
        return admissions, moves

    def release(self, attempt_id: int) -> Attempt:
        """Free the slot of a running attempt."""
        attempt = self.running.pop(attempt_id)
        slot = self.slots.index(attempt)
        self.slots[slot] = None
        if attempt.deadline_s is not None:
            _remove(self._deadlines, (attempt.deadline_s, attempt_id))
        self._is_settled = False
        return attempt


def _remove(entries: list[tuple[Any, int]], entry: tuple[Any, int]) -> None:
    """Remove an entry of a sorted list."""
    del entries[bisect_left(entries, entry)]
