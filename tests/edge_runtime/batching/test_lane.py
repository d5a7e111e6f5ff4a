"""The lane's laws over scripted engines and a clock that only moves when somebody sleeps."""

import numpy as np
import pytest

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.scheduler import QueueFull
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, WRONG

SEQ_LEN = 3
LEARNED = HaltingPolicy(kind="learned", max_segments=4)
VERIFIED = HaltingPolicy(kind="verified", max_segments=4)
FIXED = HaltingPolicy(kind="fixed", max_segments=4)


class Clock:
    """Seconds that pass by sleeping only."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Tens:
    """A puzzle of tokens up to 99; the right answer is the question plus ten."""

    vocab_size = 100

    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        if (inputs_BT == 66).any():
            raise RuntimeError("this check cannot bear a 66")
        return np.where((answers_BT == inputs_BT + 10).all(axis=1), RIGHT, WRONG).astype(np.int8)


class Unprovable(Tens):
    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        del answers_BT
        return np.full(len(inputs_BT), UNKNOWN, np.int8)


def tokens(value: int) -> np.ndarray:
    return np.full(SEQ_LEN, value, np.int32)


def play(tokens_T: np.ndarray) -> Script:
    """Question n: right after n segments; from 50 on, wrong after n - 50 segments."""
    value = int(tokens_T[0])
    return Script(answer_T=tokens(value + 10 if value < 50 else 0), segments=value % 50)


def job(
    attempt_id: int,
    value: int,
    policy: HaltingPolicy = VERIFIED,
    *,
    at: float = 100.0,
    **more: float,
) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        tokens_T=tokens(value),
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=policy,
        arrival_s=at,
        deadline_s=more.get("deadline_s"),
    )


class Watched(ScriptedEngine):
    """Remembers how many rows each step computed."""

    def __init__(self, num_slots: int, clock: Clock) -> None:
        super().__init__(
            num_slots=num_slots, seq_len=SEQ_LEN, play=play, step_s=1.0, sleep=clock.sleep
        )
        self.widths: list[int] = []

    def step(self, num_active: int) -> StepOutput:
        self.widths.append(num_active)
        return super().step(num_active)


def lane_of(
    num_slots: int, puzzle: Tens | None = None, queue_limit: int = 50
) -> tuple[Lane, Watched, Clock]:
    clock = Clock()
    engine = Watched(num_slots, clock)
    return Lane(engine, puzzle or Tens(), queue_limit=queue_limit, clock=clock), engine, clock


def run_out(lane: Lane) -> dict[int, Attempt]:
    results: list[Attempt] = []
    while lane.has_work:
        results += lane.step()
    assert len({result.attempt_id for result in results}) == len(results), "a job ended twice"
    return {result.attempt_id: result for result in results}


def ending_of(attempt: Attempt) -> tuple[object, ...]:
    return attempt.halted_by, attempt.segments, attempt.verified


def test_a_proven_answer_halts_its_puzzle_at_once() -> None:
    lane, _, _ = lane_of(2)
    lane.submit(job(1, 3))
    result = run_out(lane)[1]
    assert ending_of(result) == ("proven", 3, True)
    assert result.answer_T is not None
    assert result.answer_T.tolist() == [13, 13, 13]


def test_a_learned_halt_that_fails_the_check_goes_on_under_verified_only() -> None:
    lane, _, _ = lane_of(2)
    lane.submit(job(1, 52, VERIFIED))
    lane.submit(job(2, 52, LEARNED))
    results = run_out(lane)
    assert ending_of(results[1]) == ("max_segments", 4, False)
    assert ending_of(results[2]) == ("learned", 2, False)


def test_fixed_runs_every_segment_and_still_says_whether_the_answer_is_proven() -> None:
    lane, _, _ = lane_of(1)
    lane.submit(job(1, 2, FIXED))
    result = run_out(lane)[1]
    assert ending_of(result) == ("max_segments", 4, True)


def test_nothing_is_called_verified_where_no_proof_exists() -> None:
    lane, _, _ = lane_of(1, Unprovable())
    lane.submit(job(1, 2, VERIFIED))
    result = run_out(lane)[1]
    assert ending_of(result) == ("learned", 2, None)


def test_halted_puzzles_keep_their_answer() -> None:
    lane, _, _ = lane_of(1)
    lane.submit(job(1, 1))
    lane.submit(job(2, 3))
    first = lane.step()[0].answer_T
    assert first is not None
    run_out(lane)
    assert first.tolist() == [11, 11, 11]


def test_a_halted_slot_is_refilled_before_the_very_next_step_so_occupancy_is_full() -> None:
    lane, engine, _ = lane_of(2)
    for attempt_id, value in enumerate([1, 3, 2, 1, 3]):
        lane.submit(job(attempt_id, value))
    run_out(lane)
    assert engine.widths == [2, 2, 2, 2, 1, 1]  # ten slot-segments of work, none of them idle
    seen = lane.snapshot()  # occupancy counts the steps that left somebody waiting
    assert (seen.slot_segments_used, seen.slot_segments_offered, seen.occupancy) == (6, 6, 1.0)
    assert (seen.steps, seen.slot_segments) == (6, 10)


def test_time_splits_into_queue_and_compute_and_adds_up() -> None:
    lane, _, clock = lane_of(1)
    lane.submit(job(1, 2, at=99.0))
    lane.submit(job(2, 3))
    results = run_out(lane)
    assert (results[1].queue_s, results[1].compute_s) == (1.0, 2.0)
    assert (results[2].queue_s, results[2].compute_s) == (2.0, 3.0)
    seen = lane.snapshot()
    assert (seen.step_seconds_total, seen.host_seconds_total, clock.now) == (5.0, 0.0, 105.0)


def test_a_cancelled_puzzle_ends_once_and_frees_its_slot_for_the_next_step() -> None:
    lane, engine, _ = lane_of(1)
    for attempt_id in range(3):
        lane.submit(job(attempt_id, 3))
    lane.step()
    results = {one: lane.drop(one, "cancelled") for one in (0, 1)}
    later = run_out(lane)
    assert list(later) == [2]
    results |= later
    assert [results[attempt_id].halted_by for attempt_id in range(3)] == [
        "cancelled",
        "cancelled",
        "proven",
    ]
    assert (results[0].segments, results[1].segments) == (1, 0)
    assert results[1].answer_T is None
    assert engine.widths == [1] * 4


def test_a_missed_deadline_ends_a_running_puzzle_with_its_answer_and_a_waiting_one_without() -> (
    None
):
    lane, _, _ = lane_of(1)
    lane.submit(job(1, 54, deadline_s=102.0))
    lane.step()
    lane.submit(job(2, 1, at=101.0, deadline_s=101.5))
    results = run_out(lane)
    assert [results[attempt_id].halted_by for attempt_id in (1, 2)] == ["deadline", "deadline"]
    assert results[1].segments == 2
    assert results[1].answer_T is not None
    assert results[1].answer_T.tolist() == [54, 54, 54]
    assert results[2].answer_T is None


class Broken(Watched):
    """Returns an impossible token for question 7 and a NaN margin for question 8."""

    def step(self, num_active: int) -> StepOutput:
        output = super().step(num_active)
        answer_BT = output.answer_BT.copy()
        margin_B = output.halt_margin_B.copy()
        answer_BT[output.answer_BT[:, 0] == 7, 1] = -5
        margin_B[output.answer_BT[:, 0] == 8] = np.nan
        return StepOutput(answer_BT=answer_BT, halt_margin_B=margin_B, q_halt_B=output.q_halt_B)


def test_garbage_from_a_slot_ends_that_puzzle_alone() -> None:
    clock = Clock()
    lane = Lane(Broken(4, clock), Tens(), queue_limit=9, clock=clock)
    for attempt_id, value in enumerate([7, 8, 66, 2, 3]):
        lane.submit(job(attempt_id, value))
    results = run_out(lane)
    for attempt_id in (0, 1, 2):
        assert results[attempt_id].halted_by == "failed"
        assert results[attempt_id].answer_T is None
        assert results[attempt_id].verified is None
    for attempt_id in (3, 4):
        assert (results[attempt_id].halted_by, results[attempt_id].verified) == ("proven", True)


@pytest.mark.parametrize(
    "wrong", [np.zeros(4, np.int32), tokens(-1), tokens(100), np.zeros((3, 1), np.int32)]
)
def test_tokens_the_model_does_not_know_are_refused_at_the_door(wrong: np.ndarray) -> None:
    lane, _, _ = lane_of(1)
    one = Attempt(
        attempt_id=1,
        tokens_T=wrong,
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=LEARNED,
        arrival_s=0.0,
    )
    with pytest.raises(ValueError, match=r"give 3 tokens in 0\.\.99"):
        lane.submit(one)
    assert not lane.has_work


def test_a_full_queue_refuses_and_the_lane_goes_on() -> None:
    lane, _, _ = lane_of(1, queue_limit=1)
    lane.submit(job(1, 1))
    lane.submit(job(2, 1))
    with pytest.raises(QueueFull):
        lane.submit(job(3, 1))
    assert set(run_out(lane)) == {1, 2}


def test_a_snapshot_shows_slots_queue_and_totals() -> None:
    lane, _, _ = lane_of(2)
    for attempt_id, value in enumerate([1, 3, 2, 3]):
        lane.submit(job(attempt_id, value))
    lane.step()
    seen = lane.snapshot()
    assert [(view.job_id, view.generation, view.segments) for view in seen.slots] == [
        (None, 1, 0),
        (1, 1, 1),
    ]
    assert (seen.num_active, seen.num_queued) == (1, 2)
    assert seen.completed == {"proven": 1}
    assert seen.segments_histogram == (0, 1)
    assert (seen.mean_segments, seen.mean_step_s) == (1.0, 1.0)
    assert (
        seen.expected_wait_s == 1.0
    )  # two before it and one slot free: it follows the second of three, in two slots
