"""The solver loop of one model: expire, admit, one segment, check, halt, and refill before the very next step.

Shapes: B slots, T tokens. Single-threaded by design: the caller of `step` owns the lane, its scheduler and its engine.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.hypotheses import is_due, segments_to_next
from hrm_edge_runtime.batching.scheduler import Plan, Scheduler
from hrm_edge_runtime.batching.stats import (
    HALTED,
    MEMORY,
    NUM_TELLING,
    LaneCounters,
    LaneSnapshot,
    Outcome,
    SlotView,
)
from hrm_edge_runtime.batching.task import Attempt
from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.contract.halting import decide
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_puzzles.puzzle import RIGHT, UNKNOWN

NO_TOKEN = -1  # what an answer holds before the first segment, so that any first answer counts as changed


class Checker(Protocol):
    """What a lane needs of a puzzle: the range of its tokens, and proofs."""

    @property
    def vocab_size(self) -> int: ...

    def check_BT(self, inputs_BT: NDArray[Any], answers_BT: NDArray[Any]) -> NDArray[np.int8]: ...


class Lane:
    """The slots of one model with their engine; see `step`.

    The line is looked at once in `run_length` segments; by default the measured times choose it for an engine that runs
    ahead of the host, and it is 1 for any other. No answer and no number of segments depends on it.
    """

    def __init__(
        self,
        engine: Engine,
        puzzle: Checker,
        *,
        queue_limit: int,
        clock: Callable[[], float] = time.monotonic,
        run_length: int | None = None,
    ) -> None:
        self.engine = engine
        self._puzzle = puzzle
        self._vocab_size = puzzle.vocab_size
        self._clock = clock
        self.scheduler = Scheduler(engine.num_slots, queue_limit)
        self._tokens_BT: Int32 = np.zeros((engine.num_slots, engine.seq_len), np.int32)
        self._answers_BT: Int32 = np.zeros((engine.num_slots, engine.seq_len), np.int32)
        self.counters = LaneCounters()
        self._ended: list[Attempt] = []
        self._run_length = run_length or (None if engine.runs_ahead else 1)
        self._run: Iterator[StepOutput] | None = None
        self.num_ahead = 0
        """Segments of the run still to come. Before the last nobody is admitted, and no deadline ends anybody."""

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something: an attempt lives, or an end is still to be returned."""
        return bool(self.scheduler.running or self.scheduler.waiting or self._ended)

    def submit(self, attempt: Attempt) -> None:
        """Put an attempt in line; raises QueueFull, or ValueError for tokens the model does not know."""
        self.check_tokens(attempt.tokens_T)
        self.scheduler.submit(attempt)

    def check_tokens(self, tokens_T: Int32) -> None:
        has_shape = tokens_T.shape == (self.engine.seq_len,)
        if not has_shape or tokens_T.min() < 0 or tokens_T.max() >= self._vocab_size:
            raise ValueError(
                f"tokens of shape {tokens_T.shape} in {tokens_T.min()}..{tokens_T.max()} do not fit this model: "
                f"give {self.engine.seq_len} tokens in 0..{self._vocab_size - 1}."
            )

    def drop(self, attempt_id: int, outcome: Outcome) -> Attempt:
        """End an attempt that is here and return it at once; the next `step` refills its slot."""
        attempt = self.scheduler.cancel(attempt_id)
        assert attempt is not None, f"attempt {attempt_id} is not here"
        return self._end(attempt, outcome, self._clock())

    def answer_of(self, attempt: Attempt) -> Int32:
        return self._answers_BT[attempt.slot].copy()

    def step(self) -> list[Attempt]:
        """Run one segment over all running attempts; returns every attempt that ended since the last call."""
        started = self._clock()
        if is_first := not self.num_ahead:
            for attempt in self.scheduler.expire(started):
                self._ended.append(self._end(attempt, "deadline", started))
            if any(plan := self.scheduler.admit()):
                self._prepare(plan, started)
        if attempts := self.scheduler.dense:
            has_backlog, num_active = bool(self.scheduler.waiting), len(self.scheduler.running)
            before = self._clock()
            if is_first:
                self.num_ahead = 1 if self._run_length == 1 else self._next_run(attempts)
                self._run = self.engine.run(len(attempts), self.num_ahead) if self.num_ahead > 1 else None
            output = next(self._run) if self._run else self.engine.step(len(attempts))
            self.num_ahead -= 1
            after = self._clock()
            self._commit(output, attempts, after)
            self.counters.count_step(
                num_active=num_active,
                is_first=is_first,
                num_slots=self.scheduler.num_slots,
                backlog=has_backlog,
                step_s=after - before,
                host_s=(before - started) + (self._clock() - after),
            )
        ended, self._ended = self._ended, []
        return ended

    def snapshot(self, queue_limit: int | None = None) -> LaneSnapshot:
        """The lane at this moment; cheap enough to take after every step. `queue_limit` replaces the lane's own."""
        scheduler = self.scheduler
        slots: list[SlotView] = []
        for slot, (generation, attempt) in enumerate(zip(scheduler.generations, scheduler.slots, strict=True)):
            view = SlotView(slot=slot, generation=generation)
            if attempt is not None:
                view = replace(view, job_id=attempt.attempt_id, segments=attempt.segments, margin=attempt.margin)
            slots.append(view)
        counters = self.counters
        recent, most = counters.recent_segments, max(counters.segments, default=0)
        return LaneSnapshot(
            num_slots=scheduler.num_slots,
            num_active=len(scheduler.running),
            num_queued=len(scheduler.waiting),
            queue_limit=scheduler.queue_limit if queue_limit is None else queue_limit,
            slots=tuple(slots),
            completed=dict(counters.completed),
            segments_histogram=tuple(map(counters.segments.__getitem__, range(most + 1))),
            least_step_s=min(counters.full_steps_s, default=0.0),
            least_segments=min(recent) if len(recent) >= NUM_TELLING else 1,
            steps=counters.steps,
            slot_segments=counters.slot_segments,
            slot_segments_used=counters.slot_segments_used,
            slot_segments_offered=counters.slot_segments_offered,
            hypotheses=counters.hypotheses,
            step_seconds_total=counters.step_seconds_total,
            host_seconds_total=counters.host_seconds_total,
            mean_step_s=counters.mean_step_s,
            mean_segments=counters.mean_segments,
        )

    def _prepare(self, plan: Plan, now: float) -> None:
        admissions, moves = plan
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

    def _next_run(self, attempts: list[Attempt]) -> int:
        """How many segments to run: not beyond one that a hypothesis follows, which an engine ahead would not see."""
        length = self._run_length or self.counters.best_run_length()
        return min([length, *(segments_to_next(one.segments) for one in attempts if one.hypotheses is not None)])

    def _commit(self, output: StepOutput, attempts: list[Attempt], now: float) -> None:
        """Take over what a segment said, and end those that halt; they stay in the prefix until their run ends."""
        answers_BT, answer_BT = self._answers_BT[: len(attempts)], output.answer_BT
        changed = (answers_BT != answer_BT).any(axis=1).nonzero()[0].tolist()
        answers_BT[:] = answer_BT
        failed, gone = set[int](), set[int]()
        rows = zip(attempts, output.halt_margin_B.tolist(), output.q_halt_B.tolist(), strict=True)
        for slot, (attempt, margin, q_halt) in enumerate(rows):
            if attempt.halted_by is not None:
                gone.add(slot)
                continue
            attempt.segments, attempt.margin, attempt.q_halt = attempt.segments + 1, margin, q_halt
            if not math.isfinite(margin + q_halt):
                failed.add(slot)
        if answer_BT.min() < 0 or answer_BT.max() >= self._vocab_size:
            failed.update(((answer_BT < 0) | (answer_BT >= self._vocab_size)).any(axis=1).nonzero()[0].tolist())
        if silent := failed | gone:
            changed = [slot for slot in changed if slot not in silent]
        if changed:
            failed |= self._check(changed, attempts)
        for slot, attempt in enumerate(attempts):
            if slot in gone:
                continue
            outcome = "failed"
            if slot not in failed:
                outcome = decide(attempt.margin, attempt.segments, attempt.verified, attempt.policy)
            if outcome is not None:
                self.scheduler.release(attempt.attempt_id)
                self._ended.append(self._end(attempt, outcome, now))
            elif attempt.hypotheses is not None and output.logits_BTV is not None and is_due(attempt.segments):
                self.engine.retell(slot, attempt.hypotheses.next_T(output.logits_BTV[slot]))
                self.counters.hypotheses += 1

    def _check(self, slots: list[int], attempts: list[Attempt]) -> set[int]:
        """Renew what is proven of these slots; returns those whose check raises."""
        try:
            verdict_B = self._puzzle.check_BT(self._tokens_BT[slots], self._answers_BT[slots])
        except Exception:  # one bad answer may not take its neighbours along, whatever a third-party check does with it
            if len(slots) == 1:
                return set(slots)
            return {slot for one in slots for slot in self._check([one], attempts)}
        for slot, verdict in zip(slots, verdict_B.tolist(), strict=True):
            attempts[slot].verified = None if verdict == UNKNOWN else verdict == RIGHT
        return set()

    def _end(self, attempt: Attempt, outcome: Outcome, now: float) -> Attempt:
        """Write an attempt's end; its slot is empty already but still holds its answer."""
        if not self.scheduler.running:
            self.num_ahead = 0  # nobody needs what is left of the run
        attempt.halted_by = outcome
        admitted_s = now if attempt.slot is None else attempt.admitted_s
        attempt.queue_s, attempt.compute_s = admitted_s - attempt.arrival_s, now - admitted_s
        if outcome == "failed":
            attempt.verified = None
        elif attempt.segments:
            attempt.answer_T = self._answers_BT[attempt.slot].copy()
        counters = self.counters
        counters.completed[outcome] += 1
        if outcome in HALTED:
            weight = MEMORY if counters.segments else 1.0
            counters.mean_segments += (attempt.segments - counters.mean_segments) * weight
            counters.segments[attempt.segments] += 1
            counters.recent_segments.append(attempt.segments)
        return attempt


def run_all(lane: Lane, attempts: Iterable[Attempt]) -> Iterator[Attempt]:
    """Run attempts through a lane without other work and with places for `num_slots`; yields them as they end."""
    waiting = iter(attempts)
    while True:
        while len(lane.scheduler.waiting) < lane.engine.num_slots and (attempt := next(waiting, None)) is not None:
            lane.submit(attempt)
        if not lane.has_work:
            return
        yield from lane.step()
