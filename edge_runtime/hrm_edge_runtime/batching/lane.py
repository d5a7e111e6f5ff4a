"""The solver loop of one model: expire, admit, one segment, check, halt, and refill before the very next step.

Shapes: B slots, T tokens. Single-threaded by design: whoever calls `step` owns the lane, its scheduler and its engine.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.halting import decide
from hrm_edge_runtime.batching.result import Result, result_of, result_without_slot
from hrm_edge_runtime.batching.scheduler import Attempt, Departure, Plan, Scheduler, Tenant
from hrm_edge_runtime.batching.seats import Seat, Seats, Slots
from hrm_edge_runtime.batching.stats import LaneCounters, LaneSnapshot, Outcome, SlotView
from hrm_edge_runtime.engines.engine import Engine, Int32, StepOutput

__all__ = ["Checker", "Lane", "Result"]


class Checker(Protocol):
    """What a lane asks of a puzzle: the range of its tokens, and proofs."""

    @property
    def vocab_size(self) -> int: ...

    def check_BT(self, inputs_BT: NDArray[Any], answers_BT: NDArray[Any]) -> NDArray[np.int8]: ...


class Lane:
    """The slots of one model with their engine; see `step`."""

    def __init__(
        self, engine: Engine, puzzle: Checker, *, queue_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._puzzle = puzzle
        self._vocab_size = puzzle.vocab_size
        self._clock = clock
        self._scheduler = Scheduler(engine.num_slots, queue_limit)
        self._seats = Seats(engine.num_slots, engine.seq_len)
        self._counters = LaneCounters()
        self._results: list[Result] = []

    @property
    def num_slots(self) -> int:
        return self._scheduler.num_slots

    @property
    def num_active(self) -> int:
        return self._scheduler.num_running

    @property
    def mean_step_s(self) -> float:
        """Time of a segment of late; 0 before the first."""
        return self._counters.mean_step_s

    @property
    def num_queued(self) -> int:
        return self._scheduler.num_waiting

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something: a puzzle lives, or a result waits to be handed out."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting or self._results)

    def submit(self, job: Attempt) -> None:
        """Put a job in line; raises QueueFull, or ValueError for tokens the model does not know."""
        self.check_tokens(job.tokens_T)
        self._scheduler.submit(job)

    def check_tokens(self, tokens_T: Int32) -> None:
        """Raise ValueError for tokens the model does not know."""
        if tokens_T.shape != (self._engine.seq_len,) or not self._are_known(tokens_T):
            raise ValueError(
                f"tokens of shape {tokens_T.shape} in {tokens_T.min()}..{tokens_T.max()} do not fit this model: "
                f"give {self._engine.seq_len} tokens in 0..{self._vocab_size - 1}."
            )

    def cancel(self, attempt_id: int) -> bool:
        """End a job wherever it stands; the next `step` reports it and refills its slot. False where it is unknown."""
        is_known = self._scheduler.holds(attempt_id)
        if is_known:
            self._results.append(self.drop(attempt_id, "cancelled"))
        return is_known

    def drop(self, attempt_id: int, outcome: Outcome) -> Result:
        """End a job that is here at once; its result is handed back instead of reported, its slot refilled next."""
        departure = self._scheduler.cancel(attempt_id)
        assert departure is not None, f"job {attempt_id} is not here"
        return self._depart(departure, outcome, self._clock())

    def look(self, attempt_id: int) -> Result | None:
        """How a job in its slot would end if it were dropped now; None for one that is not in a slot."""
        slot = self._scheduler.slot_of(attempt_id)
        return None if slot is None else self._result(slot, "cancelled", self._clock())

    def step(self) -> list[Result]:
        """Run one segment over all live puzzles and hand out every result since the last call."""
        started = self._clock()
        for departure in self._scheduler.expire(started):
            self._results.append(self._depart(departure, "deadline", started))
        self._prepare(self._scheduler.admit(), started)
        if num_active := self._scheduler.num_running:
            self._segment(num_active, started)
        results, self._results = self._results, []
        return results

    def snapshot(self) -> LaneSnapshot:
        """The lane as it stands; cheap enough to take after every step."""
        counters = self._counters
        return LaneSnapshot(
            num_slots=self._scheduler.num_slots,
            num_active=self._scheduler.num_running,
            num_queued=self._scheduler.num_waiting,
            queue_limit=self._scheduler.queue_limit,
            slots=tuple(self._view(slot, tenant) for slot, tenant in enumerate(self._scheduler.tenants())),
            steps=counters.steps,
            slot_segments=counters.slot_segments,
            slot_segments_used=counters.slot_segments_used,
            slot_segments_offered=counters.slot_segments_offered,
            completed=dict(counters.completed),
            segments_histogram=counters.histogram(),
            step_seconds_total=counters.step_seconds_total,
            host_seconds_total=counters.host_seconds_total,
            mean_step_s=counters.mean_step_s,
            mean_segments=counters.mean_segments,
            least_step_s=counters.least_step_s,
            least_segments=counters.least_segments,
        )

    def _prepare(self, plan: Plan, now: float) -> None:
        for tenant in plan.admissions:
            self._seats.load(tenant.slot, tenant.job, now)
            self._engine.load(tenant.slot, tenant.job.tokens_T, tenant.job.puzzle_vector_E)
        for move in plan.moves:
            self._seats.move(move.source, move.target)
            self._engine.move(move.source, move.target)

    def _segment(self, num_active: int, started: float) -> None:
        backlog = self._scheduler.num_waiting > 0
        before = self._clock()
        output = self._engine.step(num_active)
        after = self._clock()
        self._commit(output, after)
        self._counters.count_step(
            num_active=num_active,
            num_slots=self._scheduler.num_slots,
            backlog=backlog,
            step_s=after - before,
            host_s=(before - started) + (self._clock() - after),
        )

    def _commit(self, output: StepOutput, now: float) -> None:
        seats, changed = self._seats.take(output)
        failed = self._garbled(seats, output.answer_BT)
        failed |= self._check(np.setdiff1d(changed, list(failed)) if failed else changed)
        for slot, seat in enumerate(seats):
            is_sound = slot not in failed
            outcome = decide(seat.margin, seat.segments, seat.verdict, seat.job.policy) if is_sound else "failed"
            if outcome is not None:
                self._scheduler.release(slot)
                self._results.append(self._finish(slot, outcome, now))

    def _garbled(self, seats: list[Seat], answer_BT: Int32) -> set[int]:
        """The slots with a number that is none or a token out of the vocabulary, mostly none at all."""
        strange = {slot for slot, seat in enumerate(seats) if not math.isfinite(seat.margin + seat.q_halt)}
        if not self._are_known(answer_BT):
            strange |= {slot for slot, answer_T in enumerate(answer_BT) if not self._are_known(answer_T)}
        return strange

    def _are_known(self, tokens: Int32) -> bool:
        return bool(tokens.view(np.uint32).max() < self._vocab_size)  # a negative token becomes a large one

    def _check(self, slots: Slots) -> set[int]:
        """Renew the verdicts of some slots; gives those whose check raises."""
        try:
            self._judge(slots)
        except Exception:  # one bad answer may not take its neighbours along, whatever a third-party check does with it
            return {slot for slot in slots.tolist() if not self._bears_check(slot)}
        return set()

    def _judge(self, slots: Slots) -> None:
        if not slots.size:
            return
        seats = self._seats
        verdict_B = self._puzzle.check_BT(seats.tokens_BT.take(slots, axis=0), seats.answers_BT.take(slots, axis=0))
        for slot, verdict in zip(slots.tolist(), verdict_B.tolist(), strict=True):
            self._seats[slot].verdict = verdict

    def _bears_check(self, slot: int) -> bool:
        try:
            self._judge(np.array([slot]))
        except Exception:
            return False
        return True

    def _depart(self, departure: Departure, outcome: Outcome, now: float) -> Result:
        if departure.slot is not None:
            return self._finish(departure.slot, outcome, now)
        self._counters.count_outcome(outcome, 0)
        return result_without_slot(departure.job, outcome, now)

    def _finish(self, slot: int, outcome: Outcome, now: float) -> Result:
        self._counters.count_outcome(outcome, self._seats[slot].segments)
        return self._result(slot, outcome, now)

    def _result(self, slot: int, outcome: Outcome, now: float) -> Result:
        return result_of(self._seats[slot], self._seats.answers_BT[slot], outcome, now)

    def _view(self, slot: int, tenant: Tenant | None) -> SlotView:
        generation = self._scheduler.generation(slot)
        if tenant is None:
            return SlotView(slot=slot, generation=generation)
        seat = self._seats[slot]
        return SlotView(
            slot=slot,
            generation=generation,
            job_id=tenant.job.attempt_id,
            segments=seat.segments,
            margin=seat.margin,
        )


def run_all(lane: Lane, attempts: Iterable[Attempt]) -> Iterator[Result]:
    """Run attempts through a lane that has no other work, taken as slots come free; yields results as they end.

    At most `num_slots` attempts wait in line, so the lane's queue limit must be at least that.
    """
    waiting = iter(attempts)
    while True:
        while lane.num_queued < lane.num_slots and (attempt := next(waiting, None)) is not None:
            lane.submit(attempt)
        if not lane.has_work:
            return
        yield from lane.step()
