"""The lane's laws over scripted engines and a clock that only moves when somebody sleeps."""

import numpy as np
import pytest

from hrm_edge_runtime.batching.lane import Lane
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
        is_right_B = (answers_BT == inputs_BT + 10).all(axis=1)
        return np.where(is_right_B, RIGHT, WRONG).astype(np.int8)


class Unprovable(Tens):
    def check_BT(self, inputs_BT: np.ndarray, answers_BT: np.ndarray) -> np.ndarray:
        del answers_BT
        return np.full(len(inputs_BT), UNKNOWN, np.int8)


def tokens(value: int) -> np.ndarray:
    return np.full(SEQ_LEN, value, np.int32)


def play(tokens_T: np.ndarray) -> Script:
    """Question n: right after n segments; from 50 on, wrong after n - 50 segments."""
    value = int(tokens_T[0])
    answer = value + 10 if value < 50 else 0
    return Script(answer_T=tokens(answer), segments=value % 50)


def job(
    attempt_id: int, value: int, policy: HaltingPolicy = VERIFIED, arrival_s: float = 100.0
) -> Attempt:
    return Attempt(
        attempt_id=attempt_id,
        tokens_T=tokens(value),
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=policy,
        arrival_s=arrival_s,
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


def lane_of(num_slots: int, puzzle: Tens | None = None) -> tuple[Lane, Watched]:
    clock = Clock()
    engine = Watched(num_slots, clock)
    lane = Lane(engine, puzzle or Tens(), queue_limit=50, clock=clock)
    return lane, engine


def run_out(lane: Lane) -> dict[int, Attempt]:
    results: dict[int, Attempt] = {}
    while lane.has_work:
        for result in lane.step():
            assert result.attempt_id not in results, "a job ended twice"
            results[result.attempt_id] = result
    return results


@pytest.mark.parametrize(
    ("policy", "value", "puzzle", "ending"),
    [
        pytest.param(LEARNED, 52, Tens, ("learned", 2, False), id="learned takes a wrong answer"),
        pytest.param(VERIFIED, 52, Tens, ("max_segments", 4, False), id="verified does not"),
        pytest.param(FIXED, 2, Tens, ("max_segments", 4, True), id="fixed runs on past a proof"),
        pytest.param(VERIFIED, 2, Unprovable, ("learned", 2, None), id="no proof exists"),
    ],
)
def test_a_policy_ends_a_puzzle_and_the_answer_is_verified_by_a_proof_alone(
    policy: HaltingPolicy,
    value: int,
    puzzle: type[Tens],
    ending: tuple[str, int, bool | None],
) -> None:
    lane, _ = lane_of(1, puzzle())
    lane.submit(job(1, value, policy))
    result = run_out(lane)[1]
    assert (result.halted_by, result.segments, result.verified) == ending


def test_a_halted_slot_is_refilled_before_the_very_next_step_so_occupancy_is_full() -> None:
    lane, engine = lane_of(2)
    for attempt_id, value in enumerate([1, 3, 2, 1, 3]):
        lane.submit(job(attempt_id, value))
    run_out(lane)
    assert engine.widths == [2, 2, 2, 2, 1, 1]  # ten slot-segments of work, none of them idle
    seen = lane.snapshot()
    assert (seen.steps, seen.slot_segments) == (6, 10)
    # occupancy counts the steps that left somebody waiting
    assert (seen.slot_segments_used, seen.slot_segments_offered) == (6, 6)
    assert seen.occupancy == 1.0


def test_time_splits_into_queue_and_compute_and_adds_up() -> None:
    lane, _ = lane_of(1)
    lane.submit(job(1, 2, arrival_s=99.0))
    lane.submit(job(2, 3))
    results = run_out(lane)
    assert (results[1].queue_s, results[1].compute_s) == (1.0, 2.0)
    assert (results[2].queue_s, results[2].compute_s) == (2.0, 3.0)
    seen = lane.snapshot()
    assert (seen.step_seconds_total, seen.host_seconds_total) == (5.0, 0.0)


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
        result = results[attempt_id]
        assert (result.halted_by, result.answer_T, result.verified) == ("failed", None, None)
    for attempt_id in (3, 4):
        assert (results[attempt_id].halted_by, results[attempt_id].verified) == ("proven", True)


@pytest.mark.parametrize("wrong", [np.zeros(4, np.int32), tokens(-1), tokens(100)])
def test_tokens_the_model_does_not_know_are_refused_at_the_door(wrong: np.ndarray) -> None:
    lane, _ = lane_of(1)
    one = job(1, 1)
    one.tokens_T = wrong
    with pytest.raises(ValueError, match=r"give 3 tokens in 0\.\.99"):
        lane.submit(one)
    assert not lane.has_work


def test_a_snapshot_shows_slots_queue_and_totals() -> None:
    lane, _ = lane_of(2)
    for attempt_id, value in enumerate([1, 3, 2, 3]):
        lane.submit(job(attempt_id, value))
    lane.step()
    seen = lane.snapshot()
    slots = [(view.job_id, view.generation, view.segments) for view in seen.slots]
    assert slots == [(None, 1, 0), (1, 1, 1)]
    assert (seen.num_active, seen.num_queued) == (1, 2)
    assert seen.completed == {"proven": 1}
    assert seen.segments_histogram == (0, 1)
    assert (seen.mean_segments, seen.mean_step_s) == (1.0, 1.0)
    # two are ahead and one slot is free: it follows the second of three, in two slots
    assert seen.expected_wait_s == 1.0
