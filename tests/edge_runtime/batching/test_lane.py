"""The lane's laws over a scripted engine; a segment takes a second of its clock."""

import numpy as np
import pytest
from attempt_tools import Course, Seer, Tens, tokens

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import StepOutput

VERIFIED = HaltingPolicy(kind="verified", max_segments=4)

WRONG = 9  # a question that is answered wrongly after two segments
COURSES = {WRONG: Course(segments=2, answer=0)}
for question in range(1, 9):  # right after as many segments
    COURSES[question] = Course(segments=question, answer=question + 50)


def job(attempt_id: int, question: int, arrival_s: float = 0.0) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        tokens_T=tokens(question),
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=VERIFIED,
        arrival_s=arrival_s,
    )


def lane_over(engine: Seer) -> Lane:
    puzzle = Tens(proof_exists=True)
    return Lane(engine, puzzle, queue_limit=9, clock=lambda: float(len(engine.steps)))


def run_out(lane: Lane) -> dict[int, Attempt]:
    results: dict[int, Attempt] = {}
    while lane.has_work:
        for result in lane.step():
            assert result.attempt_id not in results, "a job ended twice"
            results[result.attempt_id] = result
    return results


def test_a_halted_slot_is_refilled_before_the_very_next_step_so_occupancy_is_full() -> None:
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


def test_time_splits_into_queue_and_compute_and_adds_up() -> None:
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


class Broken(Seer):
    """Returns an impossible token for question 7 and a NaN margin for question 8."""

    def step(self, num_active: int) -> StepOutput:
        output = super().step(num_active)
        answer_BT = output.answer_BT.copy()
        margin_B = output.halt_margin_B.copy()
        for slot, question in enumerate(self.loaded[:num_active]):
            if question == 7:
                answer_BT[slot, 1] = -5
            if question == 8:
                margin_B[slot] = np.nan
        return StepOutput(answer_BT=answer_BT, halt_margin_B=margin_B, q_halt_B=output.q_halt_B)


class Touchy(Tens):
    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        if (inputs_BT == 6).any():
            raise RuntimeError("this check cannot bear a 6")
        return super().check_BT(inputs_BT, answers_BT)


def test_garbage_from_a_slot_ends_that_puzzle_alone() -> None:
    lane = Lane(Broken(COURSES, num_slots=4), Touchy(proof_exists=True), queue_limit=9)
    for question in (7, 8, 6, 2, 3):
        lane.submit(job(question, question))
    results = run_out(lane)
    for question in (7, 8, 6):
        result = results[question]
        assert (result.halted_by, result.answer_T, result.verified) == ("failed", None, None)
    for question in (2, 3):
        assert results[question].halted_by == "proven"
        assert results[question].verified is True


@pytest.mark.parametrize("wrong", [np.zeros(4, np.int32), tokens(-1), tokens(100)])
def test_tokens_the_model_does_not_know_are_refused_at_the_door(wrong: np.ndarray) -> None:
    lane = lane_over(Seer(COURSES, num_slots=1))
    one = job(1, 1)
    one.tokens_T = wrong
    with pytest.raises(ValueError, match=r"give 3 tokens in 0\.\.99"):
        lane.submit(one)
    assert not lane.has_work


def test_the_expected_wait_is_that_behind_everybody_in_line() -> None:
    lane = lane_over(Seer(COURSES, num_slots=2))
    for attempt_id, question in enumerate([1, 3, 2, 3]):
        lane.submit(job(attempt_id, question))
    lane.step()
    # two are ahead and one slot is free: it follows the second of three, in two slots
    assert lane.snapshot().expected_wait_s == 1.0
