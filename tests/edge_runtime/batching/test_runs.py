"""How many segments run between two looks at the line changes no answer and no number of segments.

Shown with the shipped models on ONNX Runtime, which is exact to the last bit whatever else is in
the batch.
"""

from functools import cache

import numpy as np
import pytest
from attempt_tools import Tens, tokens

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.task import Attempt, Result, SegmentEvent, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine


@cache
def bundle_of(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


@cache
def engine_of(name: str) -> OnnxEngine:
    return engine_from_bundle(bundle_of(name), num_slots=8, num_threads=1)


@pytest.mark.parametrize("name", ["sudoku-6x6", "arc-7x7"])
def test_attempts_that_prove_or_vote_end_and_stream_the_same_however_long_the_runs(
    name: str,
) -> None:
    first: list[object] = []
    for run_length in (1, 2, 4, 8):
        seen = told(name, run_length)
        first = first or seen
        assert seen
        assert seen == first


def told(name: str, run_length: int) -> list[object]:
    """The segments of all attempts at the golden puzzles in their order, then the results."""
    bundle = bundle_of(name)
    lane = TaskLane(
        engine_of(name),
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=1000,
        max_attempts=4,
        identifiers=bundle.identifiers,
        clock=lambda: 0.0,
        run_length=run_length,
    )
    golden = bundle.golden()
    events: list[SegmentEvent] = []
    results: list[Result] = []
    for row, tokens_T in enumerate(golden.tokens_BT[:12]):
        one = Task(
            task_id=row,
            tokens_T=tokens_T,
            policy=bundle.manifest.halting_policy(),
            arrival_s=0.0,
            puzzle_id=int(golden.puzzle_ids_B[row]),
            num_attempts=4,
            streamed=True,
        )
        lane.submit(one)
        while lane.has_work:
            ended, streamed = lane.step()
            results += ended
            events += streamed
    # attempts that end in the same segment are reported by slot
    events.sort(key=lambda one: (one.task_id, one.segment, one.attempt))
    seen: list[object] = []
    for one in events:
        seen.append((one.attempt, one.segment, one.answer_T.tobytes(), one.margin))
    return seen + [said(one) for one in results]


def said(one: Result) -> tuple[object, ...]:
    answer = None if one.answer_T is None else one.answer_T.tobytes()
    halting = (one.segments, one.halted_by, one.verified, one.margin)
    return (answer, *halting, one.num_attempts, one.total_segments, one.votes)


class Ahead(ScriptedEngine):
    """Counts its segments and reports that it computes ahead of the host."""

    runs_ahead = True
    num_segments = 0

    def step(self, num_active: int) -> StepOutput:
        self.num_segments += 1
        return super().step(num_active)


def attempt(number: int, value: int) -> Attempt:
    return Attempt(
        attempt_id=number,
        tokens_T=tokens(value),
        puzzle_vector_E=np.zeros(1, np.float32),
        policy=HaltingPolicy(kind="learned", max_segments=100),
        arrival_s=0.0,
    )


def play(asked_T: np.ndarray) -> Script:
    return Script(answer_T=asked_T, segments=int(asked_T[0]))


def test_a_run_ends_an_attempt_once_and_is_left_when_nobody_is_left_in_it() -> None:
    engine = Ahead(num_slots=2, seq_len=3, play=play)
    lane = Lane(engine, Tens(proof_exists=False), queue_limit=9, run_length=8)
    lane.submit(attempt(1, 2))
    lane.submit(attempt(2, 5))
    ended = [*lane.step(), *lane.step(), *lane.step()]
    assert lane.num_ahead == 5
    assert lane.drop(2, "cancelled").segments == 3
    assert lane.num_ahead == 0
    ended += lane.step()
    assert [(one.attempt_id, one.segments) for one in ended] == [(1, 2)]
    assert engine.num_segments == 3


@pytest.mark.parametrize(("runs_ahead", "length"), [(True, 4), (False, 1)])
def test_a_slow_host_lets_only_an_engine_that_runs_ahead_run_longer(
    runs_ahead: bool, length: int
) -> None:
    engine = Ahead(num_slots=1, seq_len=3, play=play)
    engine.runs_ahead = runs_ahead  # type: ignore[misc]
    lane = Lane(engine, Tens(proof_exists=False), queue_limit=9)
    lane.counters.mean_host_s = 1.0
    lane.counters.mean_first_s = 1.0
    lane.counters.recent_segments.extend(32 * [4])
    lane.submit(attempt(1, 9))
    lane.step()
    assert lane.num_ahead == length - 1
