"""The laws of attempts: one answer per question, no work past it, no false proof, no vain vote."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from attempt_tools import Course, NamedTens, Seer, Shift, Tens, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_edge_runtime.batching.scheduler import QueueFull
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


def ask(task_id: int, value: int, num_attempts: int = 1, **more: object) -> Task:
    fields = {"policy": VERIFIED, "arrival_s": 0.0, **more}
    return Task(task_id=task_id, tokens_T=tokens(value), num_attempts=num_attempts, **fields)


def attempts_over(
    engine: Seer, *, proof_exists: bool = True, queue_limit: int = 50, max_attempts: int = 10
) -> TaskLane:
    puzzle = Tens(proof_exists=proof_exists)
    return TaskLane(
        engine,
        puzzle,
        TABLE,
        queue_limit=queue_limit,
        max_attempts=max_attempts,
        clock=lambda: float(len(engine.steps)),
    )


def run_out(attempts: TaskLane) -> tuple[dict[int, Result], list[SegmentEvent]]:
    results: dict[int, Result] = {}
    events: list[SegmentEvent] = []
    while attempts.has_work:
        ended, seen = attempts.step()
        for result in ended:
            assert result.task_id not in results, "a task ended twice"
            results[result.task_id] = result
        events += seen
    return results, events


def course_of(question: int, segments: int, answer: int) -> dict[int, Course]:
    return {question: Course(segments=segments, answer=answer % 100)}


def frames_of(value: int, count: int, *, proof_exists: bool = True) -> list[int]:
    variants = TaskVariants(Tens(proof_exists=proof_exists)).variants(tokens(value), 0, count)
    return [int(variant.tokens_T[0]) for variant in variants]


def test_the_first_proven_answer_wins_turned_back_and_stops_the_others_at_once() -> None:
    first, second, third = frames_of(3, 3)
    courses = {first: NEVER, **course_of(second, 2, second + 50), **course_of(third, 4, third + 50)}
    engine = Seer(courses, num_slots=3)
    attempts = attempts_over(engine)
    attempts.submit(ask(7, 3, 3))
    result = run_out(attempts)[0][7]
    assert result.answer_T is not None
    assert result.answer_T.tolist() == [53, 53, 53]
    assert (result.status, result.verified, result.halted_by, result.votes) == (
        "proven",
        True,
        "proven",
        None,
    )
    assert (result.num_attempts, result.total_segments) == (3, 6)
    assert len(engine.steps) == 2


def test_without_any_proof_all_attempts_run_out_and_the_answer_is_disproven() -> None:
    engine = Seer(dict.fromkeys(range(100), NEVER), num_slots=2)
    attempts = attempts_over(engine)
    attempts.submit(ask(1, 3, 4))
    result = run_out(attempts)[0][1]
    assert (result.status, result.verified, result.halted_by) == (
        "unfinished",
        False,
        "max_segments",
    )
    assert (result.num_attempts, result.total_segments) == (4, 4 * MAX_SEGMENTS)


def test_a_vote_is_closed_when_those_to_come_cannot_change_it() -> None:
    variants = frames_of(3, 5, proof_exists=False)
    courses: dict[int, Course] = {}
    for number, variant in enumerate(variants):
        courses[variant] = Course(segments=1 if number < 3 else 4, answer=variant)
    engine = Seer(courses, num_slots=5)
    attempts = attempts_over(engine, proof_exists=False)
    attempts.submit(ask(1, 3, 5))
    result = run_out(attempts)[0][1]
    assert (result.votes, result.vote_share, result.verified, result.total_segments) == (
        3,
        1.0,
        None,
        5,
    )
    assert result.status == "halted"  # the model's word, and no more
    assert len(engine.steps) == 1


def test_first_attempts_of_others_go_before_further_attempts() -> None:
    engine = Seer(dict.fromkeys(range(100), Course(segments=1, answer=0)), num_slots=1)
    attempts = attempts_over(engine)
    attempts.submit(ask(1, 3, 4))
    attempts.submit(ask(2, 4))
    attempts.submit(ask(3, 5))
    run_out(attempts)
    order = list(dict.fromkeys(row[0] for row in engine.steps))
    assert order[:3] == [3, 4, 5]


def test_a_deadline_ends_a_question_with_what_it_has() -> None:
    engine = Seer(dict.fromkeys(range(100), NEVER), num_slots=1)
    attempts = attempts_over(engine)
    attempts.submit(ask(1, 3, 3, deadline_s=2.0))
    result = run_out(attempts)[0][1]
    assert (result.halted_by, result.num_attempts, result.total_segments) == ("deadline", 1, 2)


def test_a_full_queue_counts_questions_and_refuses_one_as_a_whole() -> None:
    attempts = attempts_over(Seer(dict.fromkeys(range(100), NEVER), num_slots=1), queue_limit=1)
    attempts.submit(ask(1, 1, 10))
    attempts.submit(ask(2, 2, 10))
    with pytest.raises(QueueFull):
        attempts.submit(ask(3, 3))
    with pytest.raises(ValueError, match="1 to 10 attempts"):
        attempts.submit(ask(4, 3, 11))
    assert set(run_out(attempts)[0]) == {1, 2}


def test_a_watched_question_shows_every_segment_of_every_attempt_turned_back() -> None:
    first, second = frames_of(3, 2)
    engine = Seer({first: NEVER, **course_of(second, 3, second + 50)}, num_slots=2)
    attempts = attempts_over(engine)
    attempts.submit(ask(1, 3, 2, streamed=True))
    events = run_out(attempts)[1]
    events.sort(key=lambda one: (one.attempt, one.segment))
    seen = [(one.attempt, one.segment, int(one.answer_T[0]), one.verified) for one in events]
    assert seen == [
        (0, 1, 3, False),
        (0, 2, 3, False),
        (0, 3, 3, False),
        (1, 1, 3, False),
        (1, 2, 3, False),
        (1, 3, 53, True),
    ]


class CrookedTens(Tens):
    """A symmetry whose way back is wrong: proofs of its variants do not hold for the question."""

    def symmetry(self, rng: np.random.Generator) -> Shift:
        shift = super().symmetry(rng)
        object.__setattr__(shift, "invert", lambda tokens_BT: tokens_BT)
        return shift


def test_a_proof_that_does_not_hold_for_the_question_is_no_proof() -> None:
    courses = {3: NEVER}
    for variant in range(10, 100):
        courses |= course_of(variant, 1, variant + 50)
    engine = Seer(courses, num_slots=2)
    attempts = TaskLane(
        engine, CrookedTens(proof_exists=True), TABLE, queue_limit=1, max_attempts=2
    )
    attempts.submit(ask(1, 3, 2))
    result = run_out(attempts)[0][1]
    assert (result.verified, result.total_segments) == (False, 1 + MAX_SEGMENTS)


def test_frames_differ_and_a_puzzle_with_few_symmetries_gives_what_it_has() -> None:
    values = frames_of(3, 50)
    assert values[0] == 3
    assert sorted(values) == list(range(3, 100, 10))
    assert frames_of(3, 5) == values[:5]


def test_named_variants_of_a_task_are_its_frames() -> None:
    framer = TaskVariants(
        NamedTens(proof_exists=False), Identifiers(["a", "b+20", "a+30", "a+50", "b"])
    )
    asked, *others = framer.variants(tokens(34), 2, 9)  # "a+30": the task's own question is 4
    assert (asked.puzzle_id, asked.tokens_T[0]) == (2, 34)
    assert [(one.puzzle_id, one.tokens_T[0]) for one in others] == [(0, 4), (3, 54)]
    for variant in others:
        assert variant.turn_back(variant.tokens_T)[0] == 34


def test_arc_variants_are_frames_that_turn_answers_back() -> None:
    puzzle = registry.get("arc")
    variant = Variant(turn=1, colours=(0, 2, 1, 3, 4, 5, 6, 7, 8, 9))
    framer = TaskVariants(puzzle, Identifiers(["<blank>", "task", variant.name("task"), "other"]))
    grid = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    variants = framer.variants(puzzle.encode(grid), 1, 4)
    assert [variant.puzzle_id for variant in variants] == [1, 2]
    assert np.array_equal(grid_at(variants[1].tokens_T, 30), variant.apply(grid))
    answer_T = variants[1].turn_back(canvas_T(variant.apply(grid.T), 30))
    assert np.array_equal(puzzle.decode(answer_T), grid.T)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[dict[int, Course], list[Task], list[tuple[int, int]], int]:
    """Courses of all variants, questions, cancels as (step, task) pairs, and a number of slots."""
    answers = st.sampled_from([0, 1, 2, 50])  # added to the question: 50 is right
    courses: dict[int, Course] = {}
    for value in range(100):
        segments = draw(st.integers(1, MAX_SEGMENTS + 1))
        courses |= course_of(value, segments, value + draw(answers))
    patience = st.none() | st.integers(1, 12).map(float)
    asks: list[Task] = []
    for number in range(draw(st.integers(1, 6))):
        num_attempts = draw(st.integers(1, 6))
        deadline_s = draw(patience)
        streamed = draw(st.booleans())
        asks.append(ask(number, number, num_attempts, deadline_s=deadline_s, streamed=streamed))
    cancels = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=3))
    return courses, asks, cancels, draw(st.integers(1, 5))


def play(
    attempts: TaskLane, engine: Seer, asks: Sequence[Task], cancels: Sequence[tuple[int, int]]
) -> tuple[dict[int, Result], set[int]]:
    """Run a scene to its end, holding the engine to "no work for a question that is concluded"."""
    results: dict[int, Result] = {}
    cancelled: set[int] = set()
    for one in asks:
        attempts.submit(one)
    for number in range(200):
        for at, task_id in cancels:
            if at == number and attempts.cancel(task_id):
                cancelled.add(task_id)
        over = set(results) | cancelled
        num_steps = len(engine.steps)
        ended, _ = attempts.step()
        for row in engine.steps[num_steps:]:
            assert not {value % 10 for value in row} & over, "work past the answer"
        for result in ended:
            assert result.task_id not in results, "a task ended twice"
            results[result.task_id] = result
        if not attempts.has_work:
            return results, cancelled
    raise AssertionError("it never ended")


@given(scenes())
@settings(max_examples=60, deadline=None)
def test_every_question_is_concluded_once_and_a_verified_answer_is_right(scene: tuple) -> None:
    courses, asks, cancels, num_slots = scene
    engine = Seer(courses, num_slots=num_slots)
    results, cancelled = play(attempts_over(engine), engine, asks, cancels)
    assert set(results) == {one.task_id for one in asks}
    for one in asks:
        result = results[one.task_id]
        assert (result.halted_by == "cancelled") == (one.task_id in cancelled)
        if result.verified:
            assert result.answer_T is not None
            assert result.answer_T.tolist() == tokens(one.task_id + 50).tolist()
        elif result.halted_by == "max_segments":
            for variant in frames_of(one.task_id, one.num_attempts):
                course = courses[variant]
                is_right = course.answer == (variant + 50) % 100
                assert not is_right or course.segments > MAX_SEGMENTS
    spent = sum(result.total_segments for result in results.values())
    assert spent == sum(map(len, engine.steps))


@given(scenes())
@settings(max_examples=60, deadline=None)
def test_closing_a_vote_early_never_changes_the_winner(scene: tuple) -> None:
    courses, asks, _, num_slots = scene
    engine = Seer(courses, num_slots=num_slots)
    asks = [ask(one.task_id, one.task_id, one.num_attempts) for one in asks]
    results, _ = play(attempts_over(engine, proof_exists=False), engine, asks, [])
    for one in asks:
        full = Ballot()
        for variant in frames_of(one.task_id, one.num_attempts, proof_exists=False):
            halts = courses[variant].segments <= MAX_SEGMENTS
            answer = courses[variant].answer - variant if halts else 0
            full.cast((one.task_id + answer) % 100, 1.0 if halts else -1.0)
        answer_T = results[one.task_id].answer_T
        assert answer_T is not None
        assert full.rank(int(answer_T[0])) == full.rank(full.leader())
