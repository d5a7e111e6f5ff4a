"""Tasks tried as several attempts over one lane: copies under the puzzle's symmetries, each in a slot of its own.

The first proven answer wins; without proofs the attempts vote, until those still running cannot change the outcome.
TaskLane after a task's first rank behind the first attempts of all other tasks, so trying harder only takes slots that
would be idle. Every task ends exactly once. Shapes: T tokens, P rows of the puzzle table.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from operator import attrgetter

import numpy as np

from hrm_edge_runtime.batching import lane, scheduler, stats
from hrm_edge_runtime.batching.hypotheses import Hypotheses
from hrm_edge_runtime.batching.task import Attempt, Result, SegmentEvent, Task
from hrm_edge_runtime.contract.arrays import Float32, Int32
from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.engines.engine import Engine
from hrm_puzzles.puzzle import BLANK_IDENTIFIER, RIGHT, Ballot, NamedVariants, Puzzle, Symmetry

_PACE_MEMORY = 1 / 8  # weight of the newest interval in the mean time between two steps
_BY_NUMBER = attrgetter("number")
DRAWS = 4  # symmetries drawn for each variant wanted: a puzzle with few of them soon repeats itself


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskVariant:
    """A copy of a puzzle, its row of the puzzle table, and the way back for answers."""

    tokens_T: Int32
    puzzle_id: int
    turn_back: Callable[[Int32], Int32] = np.asarray


class TaskVariants:
    """Makes the variants of puzzles: always the same ones for the same puzzle, the puzzle itself first."""

    def __init__(self, puzzle: Puzzle, identifiers: Identifiers | None = None) -> None:
        self._puzzle = puzzle
        self._names = identifiers or Identifiers([BLANK_IDENTIFIER])
        self._named = puzzle if isinstance(puzzle, NamedVariants) else None
        self._drawn: list[Symmetry] = []

    def variants(self, tokens_T: Int32, puzzle_id: int, count: int) -> list[TaskVariant]:
        """Up to `count` different variants; fewer where the puzzle has fewer symmetries, or its task fewer names."""
        itself = TaskVariant(tokens_T=tokens_T, puzzle_id=puzzle_id)
        others = (
            self._transformed(itself, count)
            if self._named is None
            else self._by_name(itself, self._named)
        )
        return [itself, *islice(others, count - 1)]

    def _transformed(self, itself: TaskVariant, count: int) -> Iterator[TaskVariant]:
        seen = {itself.tokens_T.tobytes()}
        for number in range(DRAWS * (count - 1)):
            if number == len(self._drawn):
                self._drawn.append(self._puzzle.symmetry(np.random.default_rng(number)))
            symmetry = self._drawn[number]
            tokens_T = symmetry.apply(itself.tokens_T[None])[0]
            if tokens_T.tobytes() not in seen:
                seen.add(tokens_T.tobytes())
                yield TaskVariant(
                    tokens_T=tokens_T, puzzle_id=itself.puzzle_id, turn_back=_way_back(symmetry)
                )

    def _by_name(self, itself: TaskVariant, puzzle: NamedVariants) -> Iterator[TaskVariant]:
        task, asked = puzzle.variant_of(self._names[itself.puzzle_id])
        upright_BT = asked.invert(itself.tokens_T[None])
        for puzzle_id in self._names.rows_beginning(task):
            named, other = puzzle.variant_of(self._names[puzzle_id])
            if named == task and puzzle_id != itself.puzzle_id:
                tokens_T = other.apply(upright_BT)[0]
                yield TaskVariant(
                    tokens_T=tokens_T, puzzle_id=puzzle_id, turn_back=_way_back(other, then=asked)
                )


def _way_back(symmetry: Symmetry, then: Symmetry | None = None) -> Callable[[Int32], Int32]:
    def turn_back(answer_T: Int32) -> Int32:
        upright_BT = symmetry.invert(answer_T[None])
        return (then.apply(upright_BT) if then else upright_BT)[0]

    return turn_back


@dataclass(kw_only=True, eq=False)
class _Group:
    task: Task
    variants: list[TaskVariant]
    living: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    ended: list[Attempt] = field(default_factory=list[Attempt])


class TaskLane:
    """Tasks in, results out, over its own lane; at most `num_slots + queue_limit` tasks live at once."""

    def __init__(
        self,
        engine: Engine,
        puzzle: Puzzle,
        puzzle_table_PE: Float32,
        *,
        queue_limit: int,
        max_attempts: int = 1,
        identifiers: Identifiers | None = None,
        clock: Callable[[], float] = time.monotonic,
        run_length: int | None = None,
    ) -> None:
        self.engine = engine
        self.queue_limit = queue_limit
        self._puzzle = puzzle
        self.puzzle_table_PE = np.asarray(
            puzzle_table_PE
        )  # still memory-mapped, but its rows are plain arrays
        self._max_tasks = engine.num_slots + queue_limit
        self._max_attempts = max_attempts
        self._variants = TaskVariants(puzzle, identifiers)
        limit = self._max_tasks * max_attempts
        self._lane = lane.Lane(
            engine, puzzle, queue_limit=limit, clock=clock, run_length=run_length
        )
        self._attempt_ids = count()
        self._clock = clock
        self._interval_s = 0.0
        self._step_began_s: float | None = None
        self._groups: dict[int, _Group] = {}
        self._best_effort: dict[int, _Group] = {}
        self._streamed: dict[int, _Group] = {}
        self._results: list[Result] = []

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something: a task lives, or a result is still to be returned."""
        return bool(self._groups or self._results)

    def submit(self, task: Task) -> None:
        """Take a task with all its attempts or not at all; raises QueueFull, or ValueError for what cannot be tried."""
        if task.task_id in self._groups or not 1 <= task.num_attempts <= self._max_attempts:
            raise ValueError(
                f"task {task.task_id} with {task.num_attempts} attempts cannot be taken: give every task its own "
                f"id and 1 to {self._max_attempts} attempts."
            )
        if len(self._groups) >= self._max_tasks:
            raise scheduler.QueueFull(self.queue_limit)
        group = _Group(
            task=task, variants=[TaskVariant(tokens_T=task.tokens_T, puzzle_id=task.puzzle_id)]
        )
        if task.num_attempts > 1:
            self._lane.check_tokens(task.tokens_T)  # before a symmetry meets them
            group.variants = self._variants.variants(
                task.tokens_T, task.puzzle_id, task.num_attempts
            )
        first_guessing = math.inf if task.first_guessing is None else task.first_guessing
        for number, variant in enumerate(group.variants):
            attempt = Attempt(
                attempt_id=next(self._attempt_ids),
                tokens_T=variant.tokens_T,
                puzzle_vector_E=self.puzzle_table_PE[variant.puzzle_id],
                policy=task.policy,
                arrival_s=task.arrival_s,
                priority=task.priority - (number > 0),
                deadline_s=task.deadline_s,
                task_id=task.task_id,
                number=number,
            )
            if number >= first_guessing:
                num_symbols, rng = self._puzzle.geometry.num_symbols, np.random.default_rng(number)
                attempt.hypotheses = Hypotheses(
                    question_T=variant.tokens_T, num_symbols=num_symbols, rng=rng
                )
            self._lane.submit(attempt)  # refuses bad tokens before anything of the task is kept
            group.living[attempt.attempt_id] = attempt
        self._groups[task.task_id] = group
        if task.best_effort:
            self._best_effort[task.task_id] = group
        if task.streamed:
            self._streamed[task.task_id] = group

    def cancel(self, task_id: int) -> bool:
        """End a task; the next `step` returns its result and refills its slots. False where it is not here."""
        group = self._groups.get(task_id)
        if group is None:
            return False
        self._finish(group, self._drop_living(group, "cancelled")[0], None)
        return True

    def step(self) -> tuple[list[Result], list[SegmentEvent]]:
        """Run one segment, or all of a run; returns the tasks that ended since the last call, and streamed segments."""
        now = self._clock()
        if self._step_began_s is not None:
            weight = _PACE_MEMORY if self._interval_s else 1.0
            self._interval_s += (now - self._step_began_s - self._interval_s) * weight
        if self._best_effort:
            self._end_before_deadlines(now)
        events: list[SegmentEvent] = []
        self._run_segment(events)
        while self._lane.num_ahead:
            self._run_segment(events)
        self._step_began_s = (
            now if self._groups else None
        )  # at rest, the time to the next step says nothing
        results, self._results = self._results, []
        return results, events

    def _run_segment(self, events: list[SegmentEvent]) -> None:
        """One segment, and the end of every task that it settles: its other attempts run no further."""
        changed: dict[int, _Group] = {}
        for attempt in sorted(
            self._lane.step(), key=_BY_NUMBER
        ):  # of those that end together the first speaks
            group = self._groups[attempt.task_id]
            del group.living[attempt.attempt_id]
            group.ended.append(attempt)
            if attempt.number:
                self._turn_back(group, attempt)
            changed[group.task.task_id] = group
            if group.task.streamed and attempt.answer_T is not None:
                events.append(_event(group, attempt, attempt.answer_T))
        if self._streamed:
            events += self._events_of_the_living()
        for group in changed.values():
            if (choice := _choice(group.ended, len(group.living), self._puzzle)) is not None:
                if group.living:
                    self._drop_living(group, "outrun")
                self._finish(group, *choice)

    def snapshot(self) -> stats.LaneSnapshot:
        """The lane's figures; their queue counts attempts, their limit tasks."""
        return self._lane.snapshot(self.queue_limit)

    def _end_before_deadlines(self, now: float) -> None:
        """End the best-effort tasks whose deadline the next segment would miss, unless they have no answer yet."""
        next_end_s = now + max(self._interval_s, self._lane.counters.mean_step_s)
        for group in list(self._best_effort.values()):
            attempts = [*group.ended, *group.living.values()]
            if next_end_s > (group.task.deadline_s or math.inf) and any(
                one.segments for one in attempts
            ):
                for attempt in self._drop_living(group, "deadline"):
                    self._turn_back(group, attempt)
                choice = _choice(group.ended, 0, self._puzzle)
                assert choice is not None, "no attempt is left that could change it"
                self._finish(group, *choice)

    def _drop_living(self, group: _Group, outcome: stats.Outcome) -> list[Attempt]:
        dropped = [self._lane.drop(attempt_id, outcome) for attempt_id in group.living]
        group.living.clear()
        group.ended += dropped
        return dropped

    def _turn_back(self, group: _Group, attempt: Attempt) -> None:
        """Make an ended attempt's answer one to the puzzle as it was asked; where that cannot be, it has failed."""
        if attempt.number and attempt.answer_T is not None:
            attempt.answer_T = self._turned_back(group, attempt, attempt.answer_T)
            if attempt.answer_T is None:
                attempt.halted_by, attempt.verified = "failed", None

    def _turned_back(self, group: _Group, attempt: Attempt, answer_T: Int32) -> Int32 | None:
        if not attempt.number:
            return answer_T
        try:
            answer_T = group.variants[attempt.number].turn_back(answer_T)
            check_BT = self._puzzle.check_BT
            holds = (
                not attempt.verified
                or check_BT(group.task.tokens_T[None], answer_T[None])[0] == RIGHT
            )
        except Exception:  # a third party's symmetry, over an answer that may be anything
            return None
        return answer_T if holds else None

    def _events_of_the_living(self) -> Iterator[SegmentEvent]:
        for group in self._streamed.values():
            for attempt in group.living.values():
                answer_T = self._lane.answer_of(attempt) if attempt.segments else None
                if (
                    answer_T is not None
                    and (said_T := self._turned_back(group, attempt, answer_T)) is not None
                ):
                    yield _event(group, attempt, said_T)

    def _finish(self, group: _Group, attempt: Attempt, votes: int | None) -> None:
        """Report the end of a task whose attempts have all ended; this attempt answers it."""
        num_attempts, total_segments, num_voters, halted_by = 0, 0, 0, attempt.halted_by
        for one in group.ended:
            num_attempts += one.segments > 0
            total_segments += one.segments
            num_voters += one.answer_T is not None and one.halted_by != "outrun"
            if one.halted_by == "deadline" and not attempt.verified:
                halted_by = "deadline"  # some attempts were cut, so the deadline was missed
        assert halted_by is not None
        has_guessed = attempt.hypotheses is not None and attempt.hypotheses.num_tried
        said = "halted" if halted_by == "learned" and attempt.verified is None else "unfinished"
        self._results.append(
            Result(
                task_id=group.task.task_id,
                answer_T=attempt.answer_T,
                status="proven" if attempt.verified else said,
                how="hypotheses" if has_guessed else "symmetries" if attempt.number else "plain",
                verified=attempt.verified,
                segments=attempt.segments,
                halted_by=halted_by,
                margin=attempt.margin,
                queue_s=attempt.queue_s,
                compute_s=attempt.compute_s,
                num_attempts=num_attempts,
                total_segments=total_segments,
                votes=votes,
                vote_share=votes / num_voters if votes else None,
            )
        )
        for groups in (self._groups, self._best_effort, self._streamed):
            groups.pop(group.task.task_id, None)


def _event(group: _Group, attempt: Attempt, answer_T: Int32) -> SegmentEvent:
    return SegmentEvent(
        task_id=group.task.task_id,
        attempt=attempt.number,
        segment=attempt.segments,
        answer_T=answer_T,
        margin=attempt.margin,
        verified=attempt.verified,
    )


def _choice(
    ended: Sequence[Attempt], num_living: int, puzzle: Puzzle
) -> tuple[Attempt, int | None] | None:
    """The attempt that answers a task (a proven one, else the commonest), and its votes; None while that may change."""
    for attempt in ended:
        if attempt.verified:
            return attempt, None
    if num_living and puzzle.proof_exists:
        return None
    ballot, speakers = Ballot(), dict[Hashable, Attempt]()
    for attempt in ended:
        if attempt.answer_T is not None:
            grid = puzzle.decode(attempt.answer_T)
            candidate = (grid.shape, grid.tobytes())
            ballot.cast(candidate, attempt.q_halt)
            speakers.setdefault(candidate, attempt)
    if num_living and not ballot.is_decided(num_living):
        return None
    leader = ballot.leader()
    votes = None if puzzle.proof_exists or leader is None else ballot.votes(leader)
    return speakers.get(leader, ended[0]), votes
