"""The scheduler's laws by example; `test_lane_machine.py` does anything in any order."""

from typing import Any

import numpy as np
import pytest

from hrm_edge_runtime.batching.scheduler import Scheduler
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


def test_a_freed_slot_goes_to_the_next_in_line_without_a_move() -> None:
    scheduler = Scheduler(2, 2)
    for attempt_id in range(3):
        scheduler.submit(attempt_of(attempt_id))
    scheduler.admit()
    scheduler.release(0)
    (admitted,), moves = scheduler.admit()
    assert admitted.slot == 0
    assert admitted.attempt_id == 2
    assert moves == []
