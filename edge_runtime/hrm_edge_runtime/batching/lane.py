"""The solver loop of one model: expire, admit, one segment, check, halt, and refill before the very next step.

Shapes: B slots, T tokens. Single-threaded by design: whoever calls `step` owns the lane, its scheduler and its engine.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.counters import LaneCounters, LaneSnapshot, Outcome, SlotView
from hrm_edge_runtime.batching.halting import REASONS, decide_B
from hrm_edge_runtime.batching.rows import Rows, load_row, new_rows, policies_of
from hrm_edge_runtime.batching.scheduler import Departure, Job, Plan, Scheduler, Tenant
from hrm_edge_runtime.engines.engine import Engine, StepOutput
from hrm_puzzles.puzzle import RIGHT, UNKNOWN

FAILED = len(REASONS)  # the code after every halting reason


class Checker(Protocol):
    """What a lane asks of a puzzle: the range of its tokens, and proofs."""

    @property
    def vocab_size(self) -> int: ...

    def check_BT(self, inputs_BT: NDArray[Any], answers_BT: NDArray[Any]) -> NDArray[np.int8]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """The one end of a job.

    `answer_T` is the last segment's answer, None where no segment ran or the engine gave garbage ("failed").
    `verified` is None where nothing is proven either way. Times are seconds: from arrival to slot, from slot to end.
    """

    job_id: int
    answer_T: NDArray[np.int32] | None
    verified: bool | None
    segments: int
    halted_by: Outcome
    margin: float
    q_halt: float
    queue_s: float
    compute_s: float


class Lane:
    """The slots of one model with their engine; see `step`."""

    def __init__(
        self, engine: Engine, puzzle: Checker, *, queue_limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._puzzle = puzzle
        self._clock = clock
        self._scheduler = Scheduler(engine.num_slots, queue_limit)
        self._rows: Rows = new_rows(engine.num_slots, engine.seq_len)
        self._counters = LaneCounters()
        self._results: list[Result] = []

    @property
    def num_active(self) -> int:
        return self._scheduler.num_running

    @property
    def has_work(self) -> bool:
        """True while a call of `step` would do something: a puzzle lives, or a result waits to be handed out."""
        return bool(self._scheduler.num_running or self._scheduler.num_waiting or self._results)

    def submit(self, job: Job) -> None:
        """Put a job in line; raises QueueFull, or ValueError for tokens the model does not know."""
        tokens_T, vocab_size = job.tokens_T, self._puzzle.vocab_size
        if tokens_T.shape != (self._engine.seq_len,) or tokens_T.min() < 0 or tokens_T.max() >= vocab_size:
            raise ValueError(
                f"job {job.job_id} has tokens of shape {tokens_T.shape} in {tokens_T.min()}..{tokens_T.max()}: "
                f"give {self._engine.seq_len} tokens in 0..{vocab_size - 1}."
            )
        self._scheduler.submit(job)

    def cancel(self, job_id: int) -> bool:
        """End a job wherever it stands; the next `step` reports it and refills its slot. False where it is unknown."""
        departure = self._scheduler.cancel(job_id)
        if departure is not None:
            self._depart(departure, "cancelled", self._clock())
        return departure is not None

    def step(self) -> list[Result]:
        """Run one segment over all live puzzles and hand out every result since the last call."""
        started = self._clock()
        for departure in self._scheduler.expire(started):
            self._depart(departure, "deadline", started)
        self._prepare(self._scheduler.admit(), started)
        if self._scheduler.num_running:
            self._segment(started)
        results, self._results = self._results, []
        return results

    def snapshot(self) -> LaneSnapshot:
        """The lane as it stands; cheap enough to take after every step."""
        counters = self._counters
        return LaneSnapshot(
            num_slots=self._scheduler.num_slots,
            num_active=self._scheduler.num_running,
            num_queued=self._scheduler.num_waiting,
            queue_limit=self._scheduler.queue_limit,
            slots=tuple(self._view(slot, tenant) for slot, tenant in enumerate(self._scheduler.tenants())),
            steps=counters.steps,
            slot_segments=counters.slot_segments,
            slot_segments_used=counters.slot_segments_used,
            slot_segments_offered=counters.slot_segments_offered,
            completed=dict(counters.completed),
            segments_histogram=counters.histogram(),
            step_seconds_total=counters.step_seconds_total,
            host_seconds_total=counters.host_seconds_total,
            mean_step_s=counters.mean_step_s,
            mean_segments=counters.mean_segments,
        )

    def _segment(self, started: float) -> None:
        num_active, backlog = self._scheduler.num_running, self._scheduler.num_waiting > 0
        before = self._clock()
        output = self._engine.step(num_active)
        after = self._clock()
        self._commit(output, self._rows[:num_active], after)
        host_s = (before - started) + (self._clock() - after)
        self._counters.count_step(
            num_active=num_active,
            num_slots=self._scheduler.num_slots,
            backlog=backlog,
            step_s=after - before,
            host_s=host_s,
        )

    def _prepare(self, plan: Plan, now: float) -> None:
        for tenant in plan.admissions:
            load_row(self._rows[tenant.slot], tenant.job, now)
            self._engine.load(tenant.slot, tenant.job.tokens_T, tenant.job.puzzle_vector_E)
        for move in plan.moves:
            self._rows[move.target] = self._rows[move.source]
            self._engine.move(move.source, move.target)

    def _commit(self, output: StepOutput, rows: Rows, now: float) -> None:
        sound_B = self._sound_B(output)
        changed_B = (output.answer_BT != rows["answer"]).any(axis=1)
        rows["answer"] = output.answer_BT
        rows["margin"] = output.halt_margin_B
        rows["q_halt"] = output.q_halt_B
        rows["segment"] += 1
        sound_B &= self._check(rows, changed_B & sound_B)
        reason_B = decide_B(rows["margin"], rows["segment"], rows["verdict"], policies_of(rows))
        reason_B[~sound_B] = FAILED
        for slot in np.flatnonzero(reason_B).tolist():
            outcome = REASONS[reason_B[slot]] if reason_B[slot] < FAILED else "failed"
            assert outcome is not None  # flatnonzero left out the code of "goes on"
            self._finish(self._scheduler.release(slot), slot, outcome, now)

    def _sound_B(self, output: StepOutput) -> NDArray[np.bool_]:
        in_range_B = ((output.answer_BT >= 0) & (output.answer_BT < self._puzzle.vocab_size)).all(axis=1)
        return in_range_B & np.isfinite(output.halt_margin_B) & np.isfinite(output.q_halt_B)

    def _check(self, rows: Rows, due_B: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Renew the verdicts of the rows that are due; false for a row whose check raises."""
        checked_B = np.ones(len(rows), np.bool_)
        if not due_B.any():
            return checked_B
        try:
            rows["verdict"][due_B] = self._puzzle.check_BT(rows["tokens"][due_B], rows["answer"][due_B])
        except Exception:  # one bad answer may not take its neighbours along, whatever a third-party check does with it
            for slot in np.flatnonzero(due_B).tolist():
                checked_B[slot] = self._check_alone(rows[slot : slot + 1])
        return checked_B

    def _check_alone(self, row: Rows) -> bool:
        try:
            row["verdict"] = self._puzzle.check_BT(row["tokens"], row["answer"])
        except Exception:
            return False
        return True

    def _depart(self, departure: Departure, outcome: Outcome, now: float) -> None:
        if departure.slot is not None:
            self._finish(departure.job, departure.slot, outcome, now)
            return
        self._counters.count_outcome(outcome, 0)
        self._results.append(_unseated(departure.job, outcome, now))

    def _finish(self, job: Job, slot: int, outcome: Outcome, now: float) -> None:
        row = self._rows[slot]
        segments, verdict = int(row["segment"]), int(row["verdict"])
        self._counters.count_outcome(outcome, segments)
        admitted_s = float(row["admitted_s"])
        result = Result(
            job_id=job.job_id,
            answer_T=row["answer"].copy() if segments and outcome != "failed" else None,
            verified=None if verdict == UNKNOWN or outcome == "failed" else verdict == RIGHT,
            segments=segments,
            halted_by=outcome,
            margin=float(row["margin"]),
            q_halt=float(row["q_halt"]),
            queue_s=admitted_s - job.arrival_s,
            compute_s=now - admitted_s,
        )
        self._results.append(result)

    def _view(self, slot: int, tenant: Tenant | None) -> SlotView:
        generation = self._scheduler.generation(slot)
        if tenant is None:
            return SlotView(slot=slot, generation=generation)
        row = self._rows[slot]
        return SlotView(
            slot=slot,
            generation=generation,
            job_id=tenant.job.job_id,
            segments=int(row["segment"]),
            margin=float(row["margin"]),
        )


def _unseated(job: Job, outcome: Outcome, now: float) -> Result:
    return Result(
        job_id=job.job_id,
        answer_T=None,
        verified=None,
        segments=0,
        halted_by=outcome,
        margin=0.0,
        q_halt=0.0,
        queue_s=now - job.arrival_s,
        compute_s=0.0,
    )
