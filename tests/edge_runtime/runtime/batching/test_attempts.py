"""The laws of attempts: one answer per question, no work past it, no false proof, no vain vote."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
from attempt_tools import Course, Seer, Shift, Tens, run_out, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.batching.task import Result, SegmentEvent, Task
from hrm_edge_runtime.batching.task_lane import TaskLane
from hrm_edge_runtime.batching.variants import TaskVariants
from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_puzzles import registry
from hrm_puzzles.arc.canvas import canvas_T, grid_at
from hrm_puzzles.arc.variants import Variant
from hrm_puzzles.puzzle import Ballot

MAX_SEGMENTS = 5
VERIFIED = HaltingPolicy(kind="verified", max_segments=MAX_SEGMENTS)
TABLE = np.zeros((1, 1), np.float32)
NEVER = Course(segments=99, answer=0)
PROVING = Tens(proof_exists=True)
VOTING = Tens(proof_exists=False)
ALL_NEVER = dict.fromkeys(range(100), NEVER)


def ask(task_id: int, value: int, num_attempts: int = 1, **more: object) -> Task:
    fields = {"policy": VERIFIED, "arrival_s": 0.0, **more}
    return Task(task_id=task_id, tokens_T=tokens(value), num_attempts=num_attempts, **fields)


def lane_over(
    engine: Seer, puzzle: Tens = PROVING, *, queue_limit: int = 50, run_length: int = 1
) -> TaskLane:
    return TaskLane(
        engine,
        puzzle,
        TABLE,
        queue_limit=queue_limit,
        max_attempts=10,
        clock=lambda: float(len(engine.steps)),
        run_length=run_length,
    )


def frames_of(value: int, count: int) -> list[int]:
    variants = TaskVariants(PROVING).variants(tokens(value), 0, count)
    return [int(variant.tokens_T[0]) for variant in variants]


def test_a_vote_is_closed_when_those_to_come_cannot_change_it():
    courses = {}
    for number, frame in enumerate(frames_of(3, 5)):
        segments = 1 if number < 3 else 4
        courses[frame] = Course(segments=segments, answer=frame)
    engine = Seer(courses, num_slots=5)
    lane = lane_over(engine, VOTING)
    lane.submit(ask(1, 3, 5))
    result = run_out(lane)[0][1]
    assert result.votes == 3
    assert result.vote_share == 1.0
    assert (result.status, result.verified) == ("halted", None)  # the model's word, and no more
    assert result.total_segments == 5
    assert len(engine.steps) == 1


def test_first_attempts_of_others_go_before_further_attempts():
    at_once = Course(segments=1, answer=0)
    engine = Seer(dict.fromkeys(range(100), at_once), num_slots=1)
    lane = lane_over(engine)
    lane.submit(ask(1, 3, 4))
    lane.submit(ask(2, 4))
    lane.submit(ask(3, 5))
    run_out(lane)
    order = [row[0] for row in engine.steps]
    assert list(dict.fromkeys(order))[:3] == [3, 4, 5]


def test_a_full_queue_counts_questions_and_refuses_one_as_a_whole():
    lane = lane_over(Seer(ALL_NEVER, num_slots=1), queue_limit=1)
    lane.submit(ask(1, 1, 10))
    lane.submit(ask(2, 2, 10))
    with pytest.raises(ValueError, match="queue already holds its limit of 1 puzzles"):
        lane.submit(ask(3, 3))
    with pytest.raises(ValueError, match="1 to 10 attempts"):
        lane.submit(ask(4, 3, 11))
    assert set(run_out(lane)[0]) == {1, 2}


class CrookedTens(Tens):
    """A symmetry whose way back is wrong: proofs of its variants do not hold for the question."""

    def symmetry(self, rng: np.random.Generator) -> Shift:
        shift = super().symmetry(rng)
        object.__setattr__(shift, "invert", lambda tokens_BT: tokens_BT)
        return shift


def test_a_proof_that_does_not_hold_for_the_question_is_no_proof():
    courses = {3: NEVER}
    for frame in range(10, 100):
        courses[frame] = Course(segments=1, answer=(frame + 50) % 100)
    lane = lane_over(Seer(courses, num_slots=2), CrookedTens(proof_exists=True))
    lane.submit(ask(1, 3, 2))
    result = run_out(lane)[0][1]
    assert (result.verified, result.total_segments) == (False, 1 + MAX_SEGMENTS)


def test_frames_differ_and_a_puzzle_with_few_symmetries_gives_what_it_has():
    values = frames_of(3, 50)
    assert values[0] == 3
    assert sorted(values) == list(range(3, 100, 10))
    assert frames_of(3, 5) == values[:5]


def test_named_variants_of_a_task_are_frames_that_turn_answers_back():
    puzzle = registry.get("arc")
    turned = Variant(turn=1, colors=(0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    names = Identifiers(["<blank>", "task", turned.name("task"), "other"])
    grid = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    asked_T = puzzle.encode(turned.apply(grid))
    asked, plain = TaskVariants(puzzle, names).variants(asked_T, 2, 4)
    assert asked.puzzle_id == 2
    assert plain.puzzle_id == 1
    assert np.array_equal(asked.tokens_T, asked_T)
    assert np.array_equal(grid_at(plain.tokens_T, 30), grid)
    answer_T = plain.turn_back(canvas_T(grid.T, 30))
    assert np.array_equal(puzzle.decode(answer_T), turned.apply(grid.T))


class Scene(NamedTuple):
    """The course of every frame, questions, and the tasks to cancel by the step before."""

    engine: Seer
    courses: dict[int, Course]
    tasks: list[Task]
    cancels: dict[int, int]
    run_length: int


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    courses = {}
    for frame in range(100):
        segments = int(rng.integers(1, MAX_SEGMENTS + 2))
        added = int(rng.choice([0, 1, 2, 50]))  # 50 is right
        courses[frame] = Course(segments=segments, answer=(frame + added) % 100)
    patience = st.none() | st.integers(1, 12).map(float)
    tasks = []
    for number in range(draw(st.integers(1, 6))):
        num_attempts = draw(st.integers(1, 6))
        deadline_s = draw(patience)
        streamed = draw(st.booleans())
        tasks.append(ask(number, number, num_attempts, deadline_s=deadline_s, streamed=streamed))
    cancels = draw(st.dictionaries(st.integers(0, 8), st.integers(0, 5), max_size=3))
    return Scene(
        engine=Seer(courses, num_slots=draw(st.integers(1, 5))),
        courses=courses,
        tasks=tasks,
        cancels=cancels,
        run_length=draw(st.sampled_from((1, 1, 3))),
    )


def play(lane: TaskLane, scene: Scene) -> tuple[dict[int, Result], set[int], list[SegmentEvent]]:
    """Run a scene to its end.

    In runs of one segment, the engine does no work for a question that is concluded.
    """
    results = {}
    cancelled = set()
    events = []
    engine = scene.engine
    for one in scene.tasks:
        lane.submit(one)
    for number in range(200):
        to_cancel = scene.cancels.get(number)
        if to_cancel is not None and lane.cancel(to_cancel):
            cancelled.add(to_cancel)
        over = set(results) | cancelled
        num_steps = len(engine.steps)
        ended, streamed = lane.step()
        events += streamed
        for row in engine.steps[num_steps:]:
            computed = {value % 10 for value in row}
            assert scene.run_length > 1 or not computed & over, "work past the answer"
        for result in ended:
            assert result.task_id not in results, "a task ended twice"
            results[result.task_id] = result
        if not lane.has_work:
            return results, cancelled, events
    raise AssertionError("it never ended")


def holds_a_proof(scene: Scene, task: Task) -> bool:
    """Whether an attempt that runs to its end proves the answer."""
    for frame in frames_of(task.task_id, task.num_attempts):
        course = scene.courses[frame]
        if course.answer == (frame + 50) % 100 and course.segments <= MAX_SEGMENTS:
            return True
    return False


@given(scenes())
@settings(max_examples=60)
def test_every_question_is_concluded_once_and_a_verified_answer_is_right(scene: Scene):
    lane = lane_over(scene.engine, run_length=scene.run_length)
    results, cancelled, events = play(lane, scene)
    assert set(results) == {one.task_id for one in scene.tasks}
    shown = Counter((event.task_id, event.attempt, event.segment) for event in events)
    for one in scene.tasks:
        result = results[one.task_id]
        assert (result.halted_by == "cancelled") == (one.task_id in cancelled)
        num_shown = [count for (task_id, _, _), count in shown.items() if task_id == one.task_id]
        assert len(num_shown) == (result.total_segments if one.streamed else 0)
        assert one.deadline_s is not None or set(num_shown) <= {1}
        if result.verified:
            right_T = tokens(one.task_id + 50)
            assert result.answer_T.tolist() == right_T.tolist()
        elif result.halted_by == "max_segments":
            assert result.status == "unfinished"
            assert not holds_a_proof(scene, one)
    spent = sum(result.total_segments for result in results.values())
    computed = sum(map(len, scene.engine.steps))
    assert spent == computed or (spent < computed and scene.run_length > 1)


@given(scenes())
@settings(max_examples=60)
def test_closing_a_vote_early_never_changes_the_winner(scene: Scene):
    lane = lane_over(scene.engine, VOTING)
    for one in scene.tasks:
        lane.submit(ask(one.task_id, one.task_id, one.num_attempts))
    results, _ = run_out(lane)
    for one in scene.tasks:
        full = Ballot()
        for frame in frames_of(one.task_id, one.num_attempts):
            course = scene.courses[frame]
            if course.segments <= MAX_SEGMENTS:
                full.cast((one.task_id + course.answer - frame) % 100, 1.0)
            else:
                full.cast(one.task_id, -1.0)  # without a halt, the engine answers its question
        answer_T = results[one.task_id].answer_T
        assert full.rank(int(answer_T[0])) == full.rank(full.leader())
