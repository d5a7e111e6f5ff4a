"""The lane of tasks: one attempt per variant of a task's puzzle, each in a slot of its own.

The first proven answer wins. Without proofs the attempts vote until the attempts still running
cannot change the winner. The attempts of a task after its first rank behind the first attempts of
all other tasks, so trying harder only takes slots that would be idle. Every task ends exactly once.
Shapes: T tokens, P rows of the puzzle table, E puzzle-vector size.
"""

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

import numpy as np

from hrm_edge_runtime.batching import lane, stats
from hrm_edge_runtime.batching.task import Attempt, How, Result, SegmentEvent, Task
from hrm_edge_runtime.batching.variants import Hypotheses, TaskVariant, TaskVariants
from hrm_edge_runtime.contract.bundle import Identifiers
from hrm_edge_runtime.contract.halting import LEARNED
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32
from hrm_puzzles.puzzle import RIGHT, Ballot, Puzzle

_PACE_MEMORY = 1 / 8  # weight of the newest interval in the mean time between two steps


@dataclass(kw_only=True, eq=False)
class _Group:
    """A live task with its attempts."""

    task: Task
    variants: list[TaskVariant]
    living: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    ended: list[Attempt] = field(default_factory=list[Attempt])


class TaskLane:
    """Turns tasks into results over its own lane; at most `num_slots + queue_limit` are alive."""

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
        # still memory-mapped, but its rows are plain arrays
        self.puzzle_table_PE = np.asarray(puzzle_table_PE)
        self._puzzle = puzzle
        self._max_tasks = engine.num_slots + queue_limit
        self._max_attempts = max_attempts
        self._variants = TaskVariants(puzzle, identifiers)
        self._lane = lane.Lane(
            engine,
            puzzle,
            queue_limit=queue_limit,
            max_attempts=max_attempts,
            clock=clock,
            run_length=run_length,
        )
        self.snapshot = self._lane.snapshot
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
        """Whether `step` has something to do: a task to run, or a result to return."""
        return bool(self._groups or self._results)

    def submit(self, task: Task) -> None:
        """Take a task with all its attempts; raises ValueError if it cannot."""
        if task.task_id in self._groups or not 1 <= task.num_attempts <= self._max_attempts:
            raise ValueError(
                f"the lane does not take task {task.task_id} with {task.num_attempts} attempts: "
                f"give every task its own id and 1 to {self._max_attempts} attempts."
            )
        if len(self._groups) >= self._max_tasks:
            limit = f"the queue already holds its limit of {self.queue_limit} puzzles"
            raise ValueError(f"{limit}: retry when some have ended.")
        variants = [TaskVariant(tokens_T=task.tokens_T, puzzle_id=task.puzzle_id)]
        if task.num_attempts > 1:
            self._lane.check_tokens(task.tokens_T)  # validate tokens before transforming them
            variants = self._variants.variants(task.tokens_T, task.puzzle_id, task.num_attempts)
        group = _Group(task=task, variants=variants)
        for number, variant in enumerate(variants):
            attempt = self._new_attempt(task, number, variant)
            self._lane.submit(attempt)  # rejects bad tokens before anything of the task is stored
            group.living[attempt.attempt_id] = attempt
        self._groups[task.task_id] = group
        if task.best_effort:
            self._best_effort[task.task_id] = group
        if task.streamed:
            self._streamed[task.task_id] = group

    def cancel(self, task_id: int) -> bool:
        """End a task, whose result the next `step` returns; False if it is not alive."""
        group = self._groups.get(task_id)
        if group is None:
            return False
        dropped = self._drop_living(group, "cancelled")
        self._finish(group, dropped[0], None)
        return True

    def step(self) -> tuple[list[Result], list[SegmentEvent]]:
        """Run one segment, or a whole run; returns the results and the events of streamed tasks."""
        now = self._clock()
        if self._step_began_s is not None:
            weight = _PACE_MEMORY if self._interval_s else 1.0
            interval_s = now - self._step_began_s
            self._interval_s += (interval_s - self._interval_s) * weight
        if self._best_effort:
            self._end_before_deadlines(now)
        events: list[SegmentEvent] = []
        self._run_segment(events)
        while self._lane.num_ahead:
            self._run_segment(events)
        # an idle lane's next interval says nothing about its pace
        self._step_began_s = now if self._groups else None
        results = self._results
        self._results = []
        return results, events

    def _new_attempt(self, task: Task, number: int, variant: TaskVariant) -> Attempt:
        hypotheses = None
        if task.guesses:
            hypotheses = Hypotheses(
                question_T=variant.tokens_T,
                num_symbols=self._puzzle.geometry.num_symbols,
                rng=np.random.default_rng(number),
            )
        priority = task.priority
        if number > 0:
            priority -= 1  # behind the first attempts of all tasks of this priority
        return Attempt(
            attempt_id=next(self._attempt_ids),
            tokens_T=variant.tokens_T,
            puzzle_vector_E=self.puzzle_table_PE[variant.puzzle_id],
            policy=task.policy,
            arrival_s=task.arrival_s,
            priority=priority,
            deadline_s=task.deadline_s,
            task_id=task.task_id,
            number=number,
            hypotheses=hypotheses,
        )

    def _run_segment(self, events: list[SegmentEvent]) -> None:
        """Run one segment; finish every task that it decides and drop the task's other attempts."""
        changed: dict[int, _Group] = {}
        # if several attempts of a task end together, the first one answers it
        for attempt in sorted(self._lane.step(), key=attrgetter("number")):
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
            choice = _choice(group.ended, len(group.living), self._puzzle)
            if choice is None:
                continue
            if group.living:
                self._drop_living(group, "superseded")
            self._finish(group, *choice)

    def _end_before_deadlines(self, now: float) -> None:
        """End best-effort tasks with an answer if the next segment would miss their deadline."""
        next_end_s = now + max(self._interval_s, self._lane.counters.mean_step_s)
        for group in list(self._best_effort.values()):
            deadline_s = group.task.deadline_s
            attempts = [*group.ended, *group.living.values()]
            has_answer = any(attempt.segments for attempt in attempts)
            if deadline_s is None or next_end_s <= deadline_s or not has_answer:
                continue
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
        """Transform an ended attempt's answer back; the attempt fails if that is impossible."""
        if attempt.answer_T is None:
            return
        attempt.answer_T = self._turned_back(group, attempt, attempt.answer_T)
        if attempt.answer_T is None:
            attempt.halted_by = "failed"
            attempt.verified = None

    def _turned_back(self, group: _Group, attempt: Attempt, answer_T: Int32) -> Int32 | None:
        """The answer to the task's puzzle; None if a proof of the variant does not hold for it."""
        if attempt.number == 0:
            return answer_T
        try:
            turned_T = group.variants[attempt.number].turn_back(answer_T)
            if not attempt.verified:
                return turned_T
            verdict_B = self._puzzle.check_BT(group.task.tokens_T[None], turned_T[None])
        except Exception:  # a third party's symmetry or check may raise on any answer
            return None
        return turned_T if verdict_B[0] == RIGHT else None

    def _events_of_the_living(self) -> Iterator[SegmentEvent]:
        for group in self._streamed.values():
            for attempt in group.living.values():
                if not attempt.segments:
                    continue
                answer_T = self._lane.answer_of(attempt)
                turned_T = self._turned_back(group, attempt, answer_T)
                if turned_T is not None:
                    yield _event(group, attempt, turned_T)

    def _finish(self, group: _Group, attempt: Attempt, votes: int | None) -> None:
        """Report the end of a task whose attempts have all ended; `attempt` answers it."""
        task_id = group.task.task_id
        self._results.append(_result(group, attempt, votes))
        del self._groups[task_id]
        self._best_effort.pop(task_id, None)
        self._streamed.pop(task_id, None)


def _event(group: _Group, attempt: Attempt, answer_T: Int32) -> SegmentEvent:
    return SegmentEvent(
        task_id=group.task.task_id,
        attempt=attempt.number,
        segment=attempt.segments,
        answer_T=answer_T,
        margin=attempt.margin,
        verified=attempt.verified,
    )


def _result(group: _Group, attempt: Attempt, votes: int | None) -> Result:
    """The result of a task that `attempt` answers, with the cost of all its attempts."""
    num_attempts = 0
    total_segments = 0
    num_voters = 0
    halted_by = attempt.halted_by
    for ended in group.ended:
        num_attempts += ended.segments > 0
        total_segments += ended.segments
        num_voters += ended.answer_T is not None and ended.halted_by != "superseded"
        if ended.halted_by == "deadline" and not attempt.verified:
            halted_by = "deadline"  # some attempts were cut off, so the task missed its deadline
    assert halted_by is not None
    status: stats.Status = "unfinished"
    if attempt.verified:
        status = "proven"
    elif attempt.verified is None and halted_by == LEARNED:
        status = "halted"
    how: How = "plain"
    if attempt.hypotheses is not None and attempt.hypotheses.num_tried:
        how = "hypotheses"
    elif attempt.number:
        how = "symmetries"
    return Result(
        task_id=group.task.task_id,
        answer_T=attempt.answer_T,
        status=status,
        how=how,
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


def _choice(
    ended: Sequence[Attempt], num_living: int, puzzle: Puzzle
) -> tuple[Attempt, int | None] | None:
    """The attempt that answers a task, with its votes: a proven one, else the most common answer.

    None while the attempts still alive can change it. Votes are None if answers can be proven.
    """
    for attempt in ended:
        if attempt.verified:
            return attempt, None
    if num_living and puzzle.proof_exists:
        return None
    ballot = Ballot()
    speakers: dict[Hashable, Attempt] = {}
    for attempt in ended:
        if attempt.answer_T is not None:
            grid = puzzle.decode(attempt.answer_T)
            candidate = (grid.shape, grid.tobytes())
            ballot.cast(candidate, attempt.q_halt)
            speakers.setdefault(candidate, attempt)
    if num_living and not ballot.is_decided(num_living):
        return None
    leader = ballot.leader()
    if leader is None:
        return ended[0], None
    votes = None if puzzle.proof_exists else ballot.votes(leader)
    return speakers[leader], votes
