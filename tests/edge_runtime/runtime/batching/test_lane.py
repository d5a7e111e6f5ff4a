"""The lane's laws over scripted engines; `test_lane_machine.py` does anything in any order."""

from typing import Any

import numpy as np
import pytest
from attempt_tools import Course, Seer, Tens, tokens
from scripted_engine import Script, ScriptedEngine

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.scheduler import Scheduler
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import StepOutput

VERIFIED = HaltingPolicy(kind="verified", max_segments=4)
LEARNED = HaltingPolicy(kind="learned", max_segments=100)

WRONG = 9  # a question that is answered wrongly after two segments
COURSES = {WRONG: Course(segments=2, answer=0)}
for question in range(1, 9):  # right after as many segments
    COURSES[question] = Course(segments=question, answer=question + 50)


def job(attempt_id: int, question: int, **fields: Any) -> Attempt:
    given = {"policy": VERIFIED, "arrival_s": 0.0, **fields}
    vector_E = np.zeros(1, np.float32)
    return Attempt(
        attempt_id=attempt_id, tokens_T=tokens(question), puzzle_vector_E=vector_E, **given
    )


def lane_over(engine: Seer) -> Lane:
    puzzle = Tens(proof_exists=True)
    return Lane(engine, puzzle, queue_limit=9, clock=lambda: float(len(engine.steps)))


def run_out(lane: Lane) -> dict[int, Attempt]:
    results = {}
    while lane.has_work:
        for result in lane.step():
            assert result.attempt_id not in results, "a job ended twice"
            results[result.attempt_id] = result
    return results


def test_a_halted_slot_is_refilled_before_the_very_next_step_so_occupancy_is_full():
    engine = Seer(COURSES, num_slots=2)
    lane = lane_over(engine)
    for attempt_id, question in enumerate([1, 3, 2, 1, 3]):
        lane.submit(job(attempt_id, question))
    run_out(lane)
    widths = [len(row) for row in engine.steps]
    assert widths == [2, 2, 2, 2, 1, 1]  # ten slot-segments of work, none of them idle
    seen = lane.snapshot()
    assert seen.steps == 6
    assert seen.slot_segments == 10
    # occupancy counts the steps that left somebody waiting
    assert seen.slot_segments_used == 6
    assert seen.slot_segments_offered == 6
    assert seen.occupancy == 1.0


def test_time_splits_into_queue_and_compute_and_adds_up():
    lane = lane_over(Seer(COURSES, num_slots=1))
    assert lane.snapshot().occupancy == 1.0  # nobody has waited yet
    lane.submit(job(1, 2, arrival_s=-1.0))
    lane.submit(job(2, 3))
    results = run_out(lane)
    assert results[1].queue_s == 1.0
    assert results[1].compute_s == 2.0
    assert results[2].queue_s == 2.0
    assert results[2].compute_s == 3.0
    seen = lane.snapshot()
    assert seen.step_seconds_total == 5.0
    assert seen.host_seconds_total == 0.0


@pytest.mark.parametrize("wrong", [np.zeros(4, np.int32), tokens(-1), tokens(100)])
def test_tokens_the_model_does_not_know_are_refused_at_the_door(wrong: np.ndarray):
    lane = lane_over(Seer(COURSES, num_slots=1))
    one = job(1, 1)
    one.tokens_T = wrong
    with pytest.raises(ValueError, match=r"give 3 tokens in 0\.\.99"):
        lane.submit(one)
    assert not lane.has_work


def test_the_expected_wait_is_that_behind_everybody_in_line():
    lane = lane_over(Seer(COURSES, num_slots=2))
    for attempt_id, question in enumerate([1, 3, 2, 3]):
        lane.submit(job(attempt_id, question))
    lane.step()
    # two are ahead and one slot is free: it follows the second of three, in two slots
    assert lane.snapshot().expected_wait_s == 1.0


class Ahead(ScriptedEngine):
    """Counts its segments and reports that it computes ahead of the host."""

    runs_ahead = True
    num_segments = 0

    def step(self, num_active: int) -> StepOutput:
        self.num_segments += 1
        return super().step(num_active)


def play(asked_T: np.ndarray) -> Script:
    return Script(answer_T=asked_T, segments=int(asked_T[0]))


def test_a_run_ends_an_attempt_once_and_is_left_when_nobody_is_left_in_it():
    engine = Ahead(num_slots=2, seq_len=3, play=play)
    lane = Lane(engine, Tens(proof_exists=False), queue_limit=9, run_length=8)
    lane.submit(job(1, 2, policy=LEARNED))
    lane.submit(job(2, 5, policy=LEARNED))
    ended = [*lane.step(), *lane.step(), *lane.step()]
    assert lane.num_ahead == 5
    assert lane.drop(2, "cancelled").segments == 3
    assert lane.num_ahead == 0
    ended += lane.step()
    assert [(one.attempt_id, one.segments) for one in ended] == [(1, 2)]
    assert engine.num_segments == 3


@pytest.mark.parametrize(("runs_ahead", "length"), [(True, 4), (False, 1)])
def test_only_an_engine_that_runs_ahead_gets_longer_runs(runs_ahead: bool, length: int):
    engine = Ahead(num_slots=1, seq_len=3, play=play)
    engine.runs_ahead = runs_ahead
    lane = Lane(engine, Tens(proof_exists=False), queue_limit=9)
    lane.counters.mean_host_s = 1.0
    lane.counters.mean_first_s = 1.0
    lane.counters.recent_segments.extend(32 * [4])
    lane.submit(job(1, 9, policy=LEARNED))
    lane.step()
    assert lane.num_ahead == length - 1


LINES = {
    "a higher priority goes first": ([{}, {"priority": 1}, {"priority": -1}], [1, 0, 2]),
    "then the nearest deadline": ([{}, {"deadline_s": 9.0}, {"deadline_s": 5.0}], [2, 1, 0]),
    "then arrivals, even at the same instant": ([{}, {}, {}], [0, 1, 2]),
    "a priority outweighs less than its age": ([{}, {"arrival_s": 9.9, "priority": 1}], [1, 0]),
    "a waiting attempt ages past a priority": ([{}, {"arrival_s": 20.1, "priority": 1}], [0, 1]),
    "a deadline starves none without": ([{}, {"arrival_s": 10.1, "deadline_s": 11.0}], [0, 1]),
}


@pytest.mark.parametrize(("line", "order"), LINES.values(), ids=LINES)
def test_the_order_of_the_line(line: list[dict[str, Any]], order: list[int]):
    """The order in which one slot takes these attempts; ids fall, so that they decide nothing."""
    scheduler = Scheduler(1, len(line))
    for number, fields in enumerate(line):
        scheduler.submit(job(9 - number, 1, **fields))
    taken = []
    for _ in line:
        (admitted,), _ = scheduler.admit()
        scheduler.release(admitted.attempt_id)
        taken.append(9 - admitted.attempt_id)
    assert taken == order
