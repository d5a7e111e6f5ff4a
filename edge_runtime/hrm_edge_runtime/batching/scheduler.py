"""Which puzzle sits in which slot: pure logic, with no thread, no I/O and no clock (time is passed in).

One owner of slots. A slot's generation rises with every tenant it gets, so a stale reference to a slot can be told from
a live one. A slot is emptied in one place (`_vacate`) and state is reset at admission, never at release: between them a
slot may hold anything. `admit` makes the occupied slots a dense prefix: freed slots take the first jobs in line, then
the last tenants move into what is left, so a step never computes an idle row.

The line is ordered by priority with ageing, then deadline, then arrival. Time is cut into periods of `ageing_s`; the
rank of a job is its arrival period less its priority, a number that never changes. So no job is overtaken by one of `k`
higher priority that arrives more than `k + 1` periods later, nobody starves, and the line stays a plain heap.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import HaltingPolicy
from hrm_edge_runtime.batching.heap import Key, LeavingHeap

AGEING_S = 10.0


class QueueFull(ValueError):  # noqa: N818 - says what is the case, like queue.Full
    """The line is as long as it may get; `limit` says how many may wait."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)  # the number alone, so that the error survives pickling
        self.limit = limit

    def __str__(self) -> str:
        return f"the queue already holds its limit of {self.limit} waiting puzzles: retry when some have finished."


def rank(priority: int, deadline_s: float | None, arrival_s: float, ageing_s: float = AGEING_S) -> Key:
    """Where a job stands in line: the smaller goes first. Never changes, so ranks of different moments compare."""
    period = math.floor(arrival_s / ageing_s)
    return (period - priority, -priority, math.inf if deadline_s is None else deadline_s, arrival_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class Attempt:
    """One puzzle to solve. A greater `priority` is more urgent; times are seconds of the lane's clock."""

    attempt_id: int
    tokens_T: NDArray[np.int32]
    puzzle_vector_E: NDArray[np.float32]
    policy: HaltingPolicy
    arrival_s: float
    priority: int = 0
    deadline_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A job in a slot, under the generation the slot had when the job came in."""

    job: Attempt
    slot: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class Departure:
    """A job that left before it halted, and its slot where it had one."""

    job: Attempt
    slot: int | None


@dataclass(frozen=True, kw_only=True)
class Move:
    """Carry the state of slot `source` over slot `target`."""

    source: int
    target: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an engine must do before the next step: begin these puzzles, then move those slots, in this order."""

    admissions: tuple[Tenant, ...] = ()
    moves: tuple[Move, ...] = ()


class Scheduler:
    """Gives slots to jobs. At most `num_slots + queue_limit` jobs live at once; past that `submit` raises QueueFull."""

    def __init__(self, num_slots: int, queue_limit: int, *, ageing_s: float = AGEING_S) -> None:
        if num_slots < 1 or queue_limit < 0 or not ageing_s > 0:
            raise ValueError(
                f"num_slots {num_slots}, queue_limit {queue_limit} and ageing_s {ageing_s} are out of range: "
                "give at least one slot, a limit of zero or more and a positive ageing period."
            )
        self.num_slots = num_slots
        self.queue_limit = queue_limit
        self.ageing_s = ageing_s
        self._tenants: list[Tenant | None] = [None] * num_slots
        self._generations = [0] * num_slots
        self._slot_of: dict[int, int] = {}
        self._waiting: dict[int, Attempt] = {}
        self._line = LeavingHeap()
        self._deadlines = LeavingHeap()
        self._num_submitted = 0

    @property
    def num_running(self) -> int:
        return len(self._slot_of)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def submit(self, job: Attempt) -> None:
        """Put a job in line; raises QueueFull, or ValueError for an id that is still alive."""
        if self.holds(job.attempt_id):
            raise ValueError(f"job {job.attempt_id} is already here: give every job its own id.")
        if self.num_waiting + self.num_running >= self.queue_limit + self.num_slots:
            raise QueueFull(self.queue_limit)
        self._num_submitted += 1
        self._waiting[job.attempt_id] = job
        self._line.join(job.attempt_id, self._rank(job))
        if job.deadline_s is not None:
            self._deadlines.join(job.attempt_id, (job.deadline_s,))

    def holds(self, attempt_id: int) -> bool:
        """Whether a job is here, in the line or in a slot."""
        return attempt_id in self._waiting or attempt_id in self._slot_of

    def slot_of(self, attempt_id: int) -> int | None:
        """The slot of a running job."""
        return self._slot_of.get(attempt_id)

    def cancel(self, attempt_id: int) -> Departure | None:
        """Take a job out of the line or out of its slot; None where it is not here (any more)."""
        slot = self._slot_of.get(attempt_id)
        if slot is not None:
            return Departure(job=self._vacate(slot), slot=slot)
        job = self._waiting.get(attempt_id)
        if job is None:
            return None
        self._leave_line(job)
        self._deadlines.leave(attempt_id)
        return Departure(job=job, slot=None)

    def expire(self, now: float) -> list[Departure]:
        """Take out every job, waiting or running, whose deadline is `now` or earlier, the earliest first."""
        departures: list[Departure] = []
        while (first := self._deadlines.first()) is not None and first[0][0] <= now:
            departure = self.cancel(first[1])
            assert departure is not None  # a job leaves its deadline behind only where it leaves itself
            departures.append(departure)
        return departures

    def admit(self) -> Plan:
        """Fill free slots from the line, lowest slot first, and close the gaps that remain with the last tenants."""
        if self.num_running == self.num_slots:
            return Plan()
        free = [slot for slot, tenant in enumerate(self._tenants) if tenant is None]
        admissions: list[Tenant] = []
        while len(admissions) < len(free) and (first := self._line.first()) is not None:
            job = self._waiting[first[1]]
            self._leave_line(job)
            admissions.append(self._seat(job, free[len(admissions)]))
        gaps = [slot for slot in free[len(admissions) :] if slot < self.num_running]
        return Plan(admissions=tuple(admissions), moves=tuple(self._close(gap) for gap in gaps))

    def release(self, slot: int) -> Attempt:
        """Empty a slot whose job has halted."""
        return self._vacate(slot)

    def tenants(self) -> tuple[Tenant | None, ...]:
        """Who sits where, one entry for every slot."""
        return tuple(self._tenants)

    def generation(self, slot: int) -> int:
        """How many tenants a slot has had."""
        return self._generations[slot]

    def _rank(self, job: Attempt) -> Key:
        return (*rank(job.priority, job.deadline_s, job.arrival_s, self.ageing_s), self._num_submitted)

    def _leave_line(self, job: Attempt) -> None:
        del self._waiting[job.attempt_id]
        self._line.leave(job.attempt_id)

    def _seat(self, job: Attempt, slot: int) -> Tenant:
        self._generations[slot] += 1
        tenant = Tenant(job=job, slot=slot, generation=self._generations[slot])
        self._tenants[slot] = tenant
        self._slot_of[job.attempt_id] = slot
        return tenant

    def _close(self, gap: int) -> Move:
        source = max(self._slot_of.values())
        tenant = self._tenants[source]
        assert tenant is not None
        self._tenants[source] = None
        self._seat(tenant.job, gap)
        return Move(source=source, target=gap)

    def _vacate(self, slot: int) -> Attempt:
        tenant = self._tenants[slot]
        assert tenant is not None, f"slot {slot} is empty already: only its one owner may empty it"
        self._tenants[slot] = None
        del self._slot_of[tenant.job.attempt_id]
        self._deadlines.leave(tenant.job.attempt_id)
        return tenant.job
