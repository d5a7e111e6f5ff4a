"""The scheduler's laws, by example and by a machine that does anything in any order."""

from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hrm_edge_runtime.batching.scheduler import QueueFull, Scheduler
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy

NO_TOKENS = np.zeros(0, np.int32)
NO_VECTOR = np.zeros(0, np.float32)


def attempt_of(
    attempt_id: int, arrival_s: float = 0.0, priority: int = 0, deadline_s: float | None = None
) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        tokens_T=NO_TOKENS,
        puzzle_vector_E=NO_VECTOR,
        policy=HaltingPolicy(),
        arrival_s=arrival_s,
        priority=priority,
        deadline_s=deadline_s,
    )


LINES = {
    "a higher priority goes first": ([{}, {"priority": 1}, {"priority": -1}], [1, 0, 2]),
    "then the nearest deadline": ([{}, {"deadline_s": 9.0}, {"deadline_s": 5.0}], [2, 1, 0]),
    "then arrivals, even at the same instant": ([{}, {}, {}], [0, 1, 2]),
    "a priority outweighs less than its age": ([{}, {"arrival_s": 9.9, "priority": 1}], [1, 0]),
    "a waiting attempt ages past a priority": ([{}, {"arrival_s": 20.1, "priority": 1}], [0, 1]),
    "a deadline starves none without": ([{}, {"arrival_s": 10.1, "deadline_s": 11.0}], [0, 1]),
}


@pytest.mark.parametrize(("line", "order"), LINES.values(), ids=LINES)
def test_the_order_of_the_line(line: list[dict[str, Any]], order: list[int]) -> None:
    """The order in which one slot takes these attempts; ids fall, so that they decide nothing."""
    scheduler = Scheduler(1, len(line), ageing_s=10.0)
    for number, fields in enumerate(line):
        scheduler.submit(attempt_of(9 - number, **fields))
    taken: list[int] = []
    for _ in line:
        (admitted,), _ = scheduler.admit()
        scheduler.release(admitted.attempt_id)
        taken.append(9 - admitted.attempt_id)
    assert taken == order


def test_an_id_may_come_back_once_its_job_has_ended_and_no_sooner() -> None:
    scheduler = Scheduler(1, 2)
    for _ in range(3):
        scheduler.submit(attempt_of(5))
        with pytest.raises(ValueError, match="attempt 5 is already here"):
            scheduler.submit(attempt_of(5))
        scheduler.cancel(5)
        scheduler.submit(attempt_of(5))
        (admitted,), _ = scheduler.admit()
        assert admitted.attempt_id == 5
        scheduler.release(5)
        assert scheduler.admit() == ([], [])


def test_a_freed_slot_goes_to_the_next_in_line_without_a_move() -> None:
    scheduler = Scheduler(2, 2)
    for attempt_id in range(3):
        scheduler.submit(attempt_of(attempt_id))
    scheduler.admit()
    scheduler.release(0)
    (admitted,), moves = scheduler.admit()
    assert (admitted.slot, admitted.attempt_id) == (0, 2)
    assert moves == []


@pytest.mark.parametrize("sizes", [(0, 1), (1, -1)])
def test_sizes_out_of_range_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Scheduler(*sizes)


class AnyOrder(RuleBasedStateMachine):
    """Submits, cancels, expires, halts and steps at random beside a plain model."""

    @initialize(num_slots=st.integers(1, 5), queue_limit=st.integers(0, 6))
    def start(self, num_slots: int, queue_limit: int) -> None:
        self.scheduler = Scheduler(num_slots, queue_limit, ageing_s=5.0)
        self.ids = count()
        self.now = 0.0
        self.alive: dict[int, Attempt] = {}
        self.endings: dict[int, int] = {}
        # which job's state each slot really holds
        self.engine: list[int | None] = [None] * num_slots
        self.generations = [0] * num_slots
        self.dense = True

    @rule(
        priority=st.integers(-1, 2),
        patience=st.none() | st.floats(0.1, 8.0),
        pause=st.floats(0.0, 3.0),
    )
    def submit(self, priority: int, patience: float | None, pause: float) -> None:
        self.now += pause
        deadline_s = None if patience is None else self.now + patience
        one = attempt_of(next(self.ids), self.now, priority, deadline_s)
        room = self.scheduler.num_slots + self.scheduler.queue_limit - len(self.alive)
        try:
            self.scheduler.submit(one)
        except QueueFull:
            assert room == 0
        else:
            assert room > 0
            self.alive[one.attempt_id] = one

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        attempt_id = data.draw(st.sampled_from(sorted(self.alive)))
        departure = self.scheduler.cancel(attempt_id)
        assert departure is not None
        self.depart(attempt_id, departure.slot)
        assert self.scheduler.cancel(attempt_id) is None

    @rule(pause=st.floats(0.0, 6.0))
    def expire(self, pause: float) -> None:
        self.now += pause
        late: set[int] = set()
        for one in self.alive.values():
            if one.deadline_s is not None and one.deadline_s <= self.now:
                late.add(one.attempt_id)
        departures = self.scheduler.expire(self.now)
        assert {departure.attempt_id for departure in departures} == late
        for departure in departures:
            self.depart(departure.attempt_id, departure.slot)

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        admissions, moves = self.scheduler.admit()
        for attempt in admissions:
            assert self.engine[attempt.slot] not in self.alive, "an occupied slot was given away"
            self.check_first_in_line(attempt)
            self.settle(attempt.slot, attempt.attempt_id)
        for source, target in moves:
            self.settle(target, self.engine[source])
            self.engine[source] = None
        self.dense = True
        running = [attempt for attempt in self.scheduler.slots if attempt is not None]
        if self.scheduler.waiting:
            assert len(running) == self.scheduler.num_slots, "a slot idles in a backlog"
        for slot, attempt in enumerate(running):
            if data.draw(st.booleans()):
                released = self.scheduler.release(attempt.attempt_id)
                self.depart(released.attempt_id, slot)

    def settle(self, slot: int, attempt_id: int | None) -> None:
        self.engine[slot] = attempt_id
        attempt = self.scheduler.slots[slot]
        assert attempt is not None
        assert attempt.attempt_id == attempt_id
        generation = self.scheduler.generations[slot]
        assert generation > self.generations[slot], "each attempt has its own generation of a slot"
        self.generations[slot] = generation

    def depart(self, attempt_id: int, slot: int | None) -> None:
        if slot is not None:
            assert self.engine[slot] == attempt_id, "the slot a job leaves does not hold its state"
            self.engine[slot] = None
            self.dense = False
        del self.alive[attempt_id]
        self.endings[attempt_id] = self.endings.get(attempt_id, 0) + 1

    def check_first_in_line(self, admitted: Attempt) -> None:
        for other in self.alive.values():
            is_waiting = other.attempt_id not in self.engine
            is_alike = other.priority == admitted.priority
            if is_waiting and is_alike and other.deadline_s == admitted.deadline_s:
                assert admitted.attempt_id <= other.attempt_id, "not first in, first out"

    @invariant()
    def each_slot_holds_at_most_one_live_job_and_each_job_one_place(self) -> None:
        seated = [attempt.attempt_id for attempt in self.scheduler.slots if attempt is not None]
        assert len(seated) == len(set(seated)) == len(self.scheduler.running)
        assert set(seated) <= set(self.alive)
        assert len(self.alive) == len(self.scheduler.running) + len(self.scheduler.waiting)

    @invariant()
    def every_job_ends_once(self) -> None:
        assert all(endings == 1 for endings in self.endings.values())

    @invariant()
    def the_prefix_is_dense_when_a_step_may_run(self) -> None:
        if self.dense:
            taken = [attempt is not None for attempt in self.scheduler.slots]
            assert taken == sorted(taken, reverse=True)

    def teardown(self) -> None:
        """Whatever happened before, the rest of the jobs run out and nobody is forgotten."""
        while self.alive:
            assert any(self.scheduler.admit()) or self.scheduler.running
            for attempt in tuple(self.scheduler.slots):
                if attempt is not None:
                    released = self.scheduler.release(attempt.attempt_id)
                    del self.alive[released.attempt_id]


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
