"""How many segments run between two looks at the line changes no answer and no number of segments.

Shown with the shipped models on ONNX Runtime, which is exact to the last bit whatever else is in
the batch.
"""

from functools import cache

import numpy as np
import pytest
from attempt_tools import Tens, tokens

from hrm_edge_runtime.batching.lane import Lane
from hrm_edge_runtime.batching.stats import MAX_RUN, LaneCounters
from hrm_edge_runtime.batching.task import Attempt, Result, SegmentEvent, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.contract.bundle import Bundle
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_edge_runtime.contract.shipped import find_bundle
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_edge_runtime.engines.onnx import OnnxEngine, engine_from_bundle
from hrm_edge_runtime.engines.scripted import Script, ScriptedEngine
from hrm_puzzles.data.sources import Questions, questions_made

RUN_LENGTHS = (1, 2, 4, 8)
NUM_SLOTS = 8

puzzles = pytest.mark.parametrize("num_puzzles", [48, pytest.param(1000, marks=pytest.mark.slow)])
models = pytest.mark.parametrize("name", ["sudoku-6x6", "maze-8x8"])


class Counted(Engine):
    """A real engine that counts the segments and rows it computes."""

    def __init__(self, engine: OnnxEngine) -> None:
        self.num_slots = engine.num_slots
        self.seq_len = engine.seq_len
        self.load = engine.load
        self.move = engine.move
        self._engine = engine
        self.segments = 0
        self.rows = 0

    def step(self, num_active: int) -> StepOutput:
        self.segments += 1
        self.rows += num_active
        return self._engine.step(num_active)


@cache
def bundle_of(name: str) -> Bundle:
    return Bundle.open(find_bundle(name))


@cache
def engine_of(name: str) -> OnnxEngine:
    return engine_from_bundle(bundle_of(name), num_slots=NUM_SLOTS, num_threads=1)


@cache
def questions_of(name: str, num_puzzles: int) -> Questions:
    return questions_made(bundle_of(name).puzzle, num_puzzles, difficulty="medium", seed=5)


def attempts_of(name: str, run_length: int) -> tuple[TaskLane, Counted]:
    """A lane of the model; a segment takes a second of its clock."""
    bundle = bundle_of(name)
    engine = Counted(engine_of(name))
    attempts = TaskLane(
        engine,
        bundle.puzzle,
        bundle.puzzle_table,
        queue_limit=1000,
        max_attempts=4,
        identifiers=bundle.identifiers,
        clock=lambda: float(engine.segments),
        run_length=run_length,
    )
    return attempts, engine


def task(name: str, task_id: int, tokens_T: np.ndarray, **more: object) -> Task:
    fields = {"policy": bundle_of(name).manifest.halting_policy(), "arrival_s": 0.0, **more}
    return Task(task_id=task_id, tokens_T=tokens_T, **fields)  # type: ignore[arg-type]


def said(one: Result) -> tuple[object, ...]:
    answer = None if one.answer_T is None else one.answer_T.tobytes()
    halting = (one.segments, one.halted_by, one.verified, one.margin)
    return (answer, *halting, one.num_attempts, one.total_segments, one.votes)


@cache
def served(name: str, num_puzzles: int, run_length: int) -> tuple[dict[int, Result], int]:
    """All puzzles through a full lane, and how many rows the engine computed."""
    attempts, engine = attempts_of(name, run_length)
    for asked in questions_of(name, num_puzzles):
        attempts.submit(task(name, asked.index, asked.tokens_T))
    results: dict[int, Result] = {}
    while attempts.has_work:
        for one in attempts.step()[0]:
            results[one.task_id] = one
    return results, engine.rows


@models
@puzzles
def test_answers_and_segments_are_the_same_however_long_the_runs(
    name: str, num_puzzles: int
) -> None:
    alone, rows = served(name, num_puzzles, 1)
    assert rows == sum(one.segments for one in alone.values())
    for run_length in RUN_LENGTHS[1:]:
        ours, rows = served(name, num_puzzles, run_length)
        for index, one in ours.items():
            assert said(one) == said(alone[index])
        wasted = rows - sum(one.segments for one in ours.values())
        assert 0 < wasted <= num_puzzles * (run_length - 1)


@pytest.mark.parametrize("name", ["sudoku-6x6", "arc-7x7"])
def test_attempts_that_prove_or_vote_end_and_stream_the_same_however_long_the_runs(
    name: str,
) -> None:
    golden = bundle_of(name).golden()
    first: list[object] = []
    for run_length in RUN_LENGTHS:
        lane, _ = attempts_of(name, run_length)
        seen: list[object] = []
        for row, tokens_T in enumerate(golden.tokens_BT[:12]):
            puzzle_id = int(golden.puzzle_ids_B[row])
            lane.submit(
                task(name, row, tokens_T, puzzle_id=puzzle_id, num_attempts=4, streamed=True)
            )
            seen += told_by(lane)
        first = first or seen
        assert seen
        assert seen == first


def told_by(lane: TaskLane) -> list[object]:
    """The segments of all attempts in their order, then the results."""
    events: list[SegmentEvent] = []
    results: list[Result] = []
    while lane.has_work:
        ended, streamed = lane.step()
        results += ended
        events += streamed
    # attempts that end in the same segment are reported by slot
    events.sort(key=lambda one: (one.segment, one.attempt))
    told: list[object] = []
    for one in events:
        told.append((one.attempt, one.segment, one.answer_T.tobytes(), one.margin))
    return told + [said(one) for one in results]


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


def test_a_run_is_left_when_nobody_is_left_in_it() -> None:
    engine = Ahead(num_slots=2, seq_len=3, play=play)
    lane = Lane(engine, Tens(proof_exists=False), queue_limit=9, run_length=8)
    lane.submit(attempt(1, 2))
    lane.submit(attempt(2, 5))
    ended = [*lane.step(), *lane.step()]
    assert lane.num_ahead == 6
    assert lane.drop(2, "cancelled").segments == 2
    assert lane.num_ahead == 0
    ended += lane.step()
    assert [one.attempt_id for one in ended] == [1]
    assert engine.num_segments == 2


@pytest.mark.parametrize(
    ("host_s", "first_s", "segments", "length"),
    [
        (1.0, 1.0, [4], 4),  # a run of 4 costs 2 + 1 + 3, four of 1 cost 4 x 3
        (1.0, 1.0, [1, 1, 1, 16], 4),
        (1.0, 100.0, [4, 5, 6, 7], 1),  # a large model: the host hardly counts
        (100.0, 1.0, [4, 5, 6, 7], 7),
        (1.0, 1.0, [160], MAX_RUN),
    ],
)
def test_runs_are_as_long_as_puzzles_hold_a_slot_for_the_least_time(
    host_s: float, first_s: float, segments: list[int], length: int
) -> None:
    counters = LaneCounters(mean_host_s=host_s, mean_first_s=first_s)
    assert counters.best_run_length() == 1
    counters.recent_segments.extend(32 * segments)
    assert counters.best_run_length() == length


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
