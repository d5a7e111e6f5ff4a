"""`tools/simulated_device.py`: laws of the policies on a device whose host takes no time."""

import numpy as np
import pytest
from simulated_device import Device, SimulatedEngine, served

from hrm_benchmarks.policies import POLICIES, Bench
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
from hrm_puzzles.data.sources import questions_made

PUZZLE = registry.get("sudoku-4x4")
MAX_SEGMENTS = 4


def seconds_of_policies(num_slots: int) -> dict[str, float]:
    device = Device(name="even", step_s=lambda _: 1.0, host_factor=0.0, rates_per_s=())
    questions = questions_made(PUZZLE, 8, difficulty="easy", seed=0)
    recording = {}
    for question in questions:
        unsolved = [question.tokens_T] * (question.index % MAX_SEGMENTS)
        recording[question.tokens_T.tobytes()] = [*unsolved, question.labels_T]
    seconds: dict[str, float] = {}
    for policy in POLICIES:
        engine = SimulatedEngine(recording, device, num_slots)
        bench = Bench(
            engine=engine,
            puzzle=PUZZLE,
            puzzle_vector_E=np.zeros(1, np.float32),
            questions=questions,
            rule=HaltingPolicy(kind="verified", max_segments=MAX_SEGMENTS),
            clock=engine.now_s,
            title="even steps",
        )
        latencies_s, _ = served(policy, bench, engine)
        assert len(latencies_s) == len(questions)
        seconds[policy.name] = engine.now_s()
    return seconds


@pytest.mark.parametrize("num_slots", [1, 2, 4])
def test_refilling_is_never_slower_if_a_step_takes_as_long_for_any_batch(num_slots: int) -> None:
    seconds = seconds_of_policies(num_slots)
    assert seconds["refill"] == min(seconds.values())
    assert seconds["refill"] < seconds["fixed"]


def test_with_one_slot_all_policies_that_stop_early_are_equal() -> None:
    seconds = seconds_of_policies(1)
    assert seconds.pop("fixed") == 8 * MAX_SEGMENTS
    assert set(seconds.values()) == {2 * (1 + 2 + 3 + 4)}
