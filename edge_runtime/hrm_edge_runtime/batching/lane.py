"""The solver loop of one model: admit, run, commit, report. Read `Lane.step`.

Shapes: B slots, T tokens, V vocabulary. Single-threaded by design: the caller of `step` owns the
lane, its scheduler and its engine.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

import numpy as np

from hrm_edge_runtime.batching.scheduler import Scheduler
from hrm_edge_runtime.batching.stats import (
    NUM_TELLING,
    LaneCounters,
    LaneSnapshot,
    LaneTotals,
    Outcome,
    SlotView,
)
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.batching.variants import is_due, segments_to_next
from hrm_edge_runtime.contract.halting import decide
from hrm_edge_runtime.engines.engine import Engine, Int32, StepOutput
from hrm_puzzles.puzzle import RIGHT, UNKNOWN, Puzzle

NO_TOKEN = -1  # fills the answer of a new attempt, so that its first answer counts as changed


class Lane:
    """The slots of one model with their engine; see `step`.

    Beside tasks in slots, `queue_limit` tasks may wait. A task has up to `max_attempts` attempts.
    The lane checks its queue every `run_length` segments. The default is 1. For an engine that runs
    ahead of the host, measured times determine it. Answers and numbers of segments do not depend on
    it.
    """

    def __init__(
        self,
        engine: Engine,
        puzzle: Puzzle,
        *,
        queue_limit: int,
        max_attempts: int = 1,
        clock: Callable[[], float] = time.monotonic,
        run_length: int | None = None,
    ) -> None:
        self.engine = engine
        self.queue_limit = queue_limit
        max_alive = (engine.num_slots + queue_limit) * max_attempts
        self.scheduler = Scheduler(engine.num_slots, max_alive - engine.num_slots)
        self.counters = LaneCounters()
        self.num_ahead = 0
        """Segments left in this run. Until the run ends, no attempt is admitted or expired."""
        if run_length is None and not engine.runs_ahead:
            run_length = 1
        self._run_length = run_length
        self._outputs: Iterator[StepOutput] = iter(())
        self._puzzle = puzzle
        self._vocab_size = puzzle.vocab_size
        self._clock = clock
        self._tokens_BT: Int32 = np.zeros((engine.num_slots, engine.seq_len), np.int32)
        self._answers_BT = np.zeros_like(self._tokens_BT)

    @property
    def has_work(self) -> bool:
        """Whether `step` has an attempt to run."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    def submit(self, attempt: Attempt) -> None:
        """Queue an attempt; raises ValueError if it is full or the tokens do not fit."""
        self.check_tokens(attempt.tokens_T)
        self.scheduler.submit(attempt)

    def check_tokens(self, tokens_T: Int32) -> None:
        """Raise ValueError unless the tokens have the model's length and vocabulary."""
        has_shape = tokens_T.shape == (self.engine.seq_len,)
        if not has_shape or tokens_T.min() < 0 or tokens_T.max() >= self._vocab_size:
            found = f"tokens of shape {tokens_T.shape} in {tokens_T.min()}..{tokens_T.max()}"
            remedy = f"give {self.engine.seq_len} tokens in 0..{self._vocab_size - 1}"
            raise ValueError(f"{found} do not fit this model: {remedy}.")

    def drop(self, attempt_id: int, outcome: Outcome) -> Attempt:
        """End a live attempt immediately and return it; the next `step` refills its slot."""
        attempt = self.scheduler.cancel(attempt_id)
        assert attempt is not None, f"attempt {attempt_id} is not here"
        self._end(attempt, outcome, self._clock())
        return attempt

    def answer_of(self, attempt: Attempt) -> Int32:
        return self._answers_BT[attempt.slot].copy()

    def step(self) -> list[Attempt]:
        """Run one segment over all slots in use; returns the attempts that have ended."""
        began_s = self._clock()
        is_first = self.num_ahead == 0
        ended: list[Attempt] = []
        if is_first:
            ended += self._admit(began_s)
        num_active = len(self.scheduler.running)
        if num_active == 0:
            return ended
        launched_s = self._clock()
        if self._run_length == 1:
            output = self.engine.step(num_active)
        else:
            output = self._next_output()
        fetched_s = self._clock()
        ended += self._commit(output, fetched_s)
        step_s = fetched_s - launched_s
        self.counters.count_step(
            num_active=num_active,
            num_slots=self.scheduler.num_slots,
            is_first=is_first,
            has_backlog=bool(self.scheduler.waiting),
            step_s=step_s,
            host_s=self._clock() - began_s - step_s,
        )
        return ended

    def snapshot(self) -> LaneSnapshot:
        """A snapshot of the lane, cheap enough to take after every step.

        `num_queued` counts attempts, `queue_limit` tasks.
        """
        scheduler = self.scheduler
        slots: list[SlotView] = []
        for slot, generation in enumerate(scheduler.generations):
            attempt = scheduler.slots[slot]
            if attempt is None:
                view = SlotView(slot=slot, generation=generation)
            else:
                view = SlotView(
                    slot=slot,
                    generation=generation,
                    job_id=attempt.attempt_id,
                    segments=attempt.segments,
                    margin=attempt.margin,
                )
            slots.append(view)
        counters = self.counters
        most_segments = max(counters.segments, default=0)
        least_segments = 1
        if len(counters.recent_segments) >= NUM_TELLING:
            least_segments = min(counters.recent_segments)
        totals: dict[str, Any] = {}
        for one in fields(LaneTotals):
            totals[one.name] = getattr(counters, one.name)
        return LaneSnapshot(
            **totals,
            num_slots=scheduler.num_slots,
            num_active=len(scheduler.running),
            num_queued=len(scheduler.waiting),
            queue_limit=self.queue_limit,
            slots=tuple(slots),
            completed=dict(counters.completed),
            segments_histogram=tuple(map(counters.segments.__getitem__, range(most_segments + 1))),
            least_step_s=min(counters.full_steps_s, default=0.0),
            least_segments=least_segments,
        )

    def _admit(self, now: float) -> list[Attempt]:
        """Load waiting attempts into free slots; returns those whose deadline has passed."""
        scheduler = self.scheduler
        expired = scheduler.expire(now)
        for attempt in expired:
            self._end(attempt, "deadline", now)
        admissions, moves = scheduler.admit()
        for attempt in admissions:
            slot = attempt.slot
            assert slot is not None
            attempt.admitted_s = now
            self._tokens_BT[slot] = attempt.tokens_T
            self._answers_BT[slot] = NO_TOKEN
            self.engine.load(slot, attempt.tokens_T, attempt.puzzle_vector_E)
        for source, target in moves:
            self._tokens_BT[target] = self._tokens_BT[source]
            self._answers_BT[target] = self._answers_BT[source]
            self.engine.move(source, target)
        return expired

    def _next_output(self) -> StepOutput:
        """The next segment over the dense prefix, of a run that the engine starts if none is.

        A run ends when a hypothesis changes an attempt's tokens.
        """
        if self.num_ahead == 0:
            length = self._run_length or self.counters.best_run_length()
            for attempt in self.scheduler.dense:
                if attempt.hypotheses is not None:
                    length = min(length, segments_to_next(attempt.segments))
            self.num_ahead = length
            self._outputs = self.engine.run(len(self.scheduler.dense), length)
        self.num_ahead -= 1
        return next(self._outputs)

    def _commit(self, output: StepOutput, now: float) -> list[Attempt]:
        """Store a segment's outputs; ends and returns the attempts that halt.

        A row of an ended attempt is computed until the run ends, and its outputs are ignored.
        """
        attempts = self.scheduler.dense
        halted: list[Attempt] = []
        failed = self._store(output)
        for slot, attempt in enumerate(attempts):
            if attempt.halted_by is not None:  # earlier in this run
                continue
            if slot in failed:
                outcome = "failed"
            else:
                outcome = decide(attempt.margin, attempt.segments, attempt.verified, attempt.policy)
            if outcome is not None:
                self.scheduler.release(attempt.attempt_id)
                self._end(attempt, outcome, now)
                halted.append(attempt)
            elif (
                attempt.hypotheses is not None
                and output.logits_BTV is not None
                and is_due(attempt.segments)
            ):
                tokens_T = attempt.hypotheses.next_T(output.logits_BTV[slot])
                self.engine.replace_tokens(slot, tokens_T)
                self.counters.hypotheses += 1
        return halted

    def _store(self, output: StepOutput) -> set[int]:
        """Store the outputs and check the answers that changed; returns the slots that failed."""
        attempts = self.scheduler.dense
        answer_BT = output.answer_BT
        stored_BT = self._answers_BT[: len(attempts)]
        changed_B = (stored_BT != answer_BT).any(axis=1)
        stored_BT[:] = answer_BT
        failed: set[int] = set()
        if answer_BT.min() < 0 or answer_BT.max() >= self._vocab_size:
            is_outside_BT = (answer_BT < 0) | (answer_BT >= self._vocab_size)
            failed.update(is_outside_BT.any(axis=1).nonzero()[0].tolist())
        unchecked: list[int] = []
        rows = zip(
            attempts,
            changed_B.tolist(),
            output.halt_margin_B.tolist(),
            output.q_halt_B.tolist(),
            strict=True,
        )
        for slot, (attempt, has_changed, margin, q_halt) in enumerate(rows):
            if attempt.halted_by is not None:
                continue
            attempt.segments += 1
            attempt.margin = margin
            attempt.q_halt = q_halt
            if not math.isfinite(margin + q_halt):
                failed.add(slot)
            elif has_changed and slot not in failed:
                unchecked.append(slot)
        if unchecked:
            failed |= self._check(unchecked)
        return failed

    def _check(self, slots: list[int]) -> set[int]:
        """Check the answers of these slots; returns the slots whose check raises."""
        attempts = self.scheduler.dense
        try:
            verdict_B = self._puzzle.check_BT(self._tokens_BT[slots], self._answers_BT[slots])
        except (
            Exception
        ):  # a third party's check may raise on a bad answer; other slots must not fail
            if len(slots) == 1:
                return set(slots)
            failed: set[int] = set()
            for slot in slots:
                failed |= self._check([slot])
            return failed
        for slot, verdict in zip(slots, verdict_B.tolist(), strict=True):
            attempts[slot].verified = None if verdict == UNKNOWN else verdict == RIGHT
        return set()

    def _end(self, attempt: Attempt, outcome: Outcome, now: float) -> None:
        """Record how an attempt ended; its slot is free already but still holds its answer."""
        if not self.scheduler.running:
            self.num_ahead = 0  # nobody needs what the rest of the run would compute
        attempt.halted_by = outcome
        admitted_s = now if attempt.slot is None else attempt.admitted_s
        attempt.queue_s = admitted_s - attempt.arrival_s
        attempt.compute_s = now - admitted_s
        if outcome == "failed":
            attempt.verified = None
        elif attempt.segments:
            attempt.answer_T = self._answers_BT[attempt.slot].copy()
        self.counters.count_end(outcome, attempt.segments)


def run_all(lane: Lane, attempts: Iterable[Attempt]) -> Iterator[Attempt]:
    """Run attempts through an empty lane and yield them as they end.

    The lane's queue must hold `num_slots` attempts.
    """
    waiting = iter(attempts)
    while True:
        num_free = max(0, lane.engine.num_slots - len(lane.scheduler.waiting))
        for attempt in islice(waiting, num_free):
            lane.submit(attempt)
        if not lane.has_work:
            return
        yield from lane.step()
