"""Five ways to serve the same puzzles, all through the same lane and the same engine.

They differ in three things only: how many slots they use, whether a free slot is refilled while others still think, and
whether rows that have halted are still computed. So any difference in the figures is the policy's own.

    refill            B slots, refilled before the very next step                   (what the server does)
    fixed             B slots, a new batch when the old one is done, always every segment
    slowest           B slots, a new batch when the slowest has halted; halted rows are computed until then
    compaction        B slots, a new batch when the slowest has halted; halted rows are dropped from the step
    one-at-a-time     1 slot, early exit
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hrm_edge_runtime.batching.lane import Checker, Lane, Result
from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.engine import Engine, Float32, Int32, StepOutput

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """`batches` waits for a whole batch before the next; `burns` computes halted rows until their batch ends."""

    name: str
    single: bool = False
    batches: bool = True
    burns: bool = False
    early_exit: bool = True

    def width(self, num_slots: int) -> int:
        return 1 if self.single else num_slots


POLICIES: tuple[Policy, ...] = (
    Policy(name="refill", batches=False),
    Policy(name="fixed", early_exit=False),
    Policy(name="slowest", burns=True),
    Policy(name="compaction"),
    Policy(name="one-at-a-time", single=True),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """What one policy did: `rows_*` count slot-segments, "backlog" means while puzzles were still waiting."""

    policy: Policy
    width: int
    results: Sequence[Result]
    wall_s: float
    steps: int
    step_s: float
    host_s: float
    rows_used: int
    rows_offered: int
    backlog_rows_used: int
    backlog_rows_offered: int


class Meter:
    """An engine coat that counts rows and time, and computes halted rows where the policy burns them."""

    def __init__(self, engine: Engine, *, width: int, burns: bool) -> None:
        self.num_slots = width
        self.seq_len = engine.seq_len
        self.backlog = False
        self.steps = self.rows_used = self.rows_offered = self.backlog_rows_used = self.backlog_rows_offered = 0
        self._engine = engine
        self._burns = burns
        self._batch_width = 0

    def new_batch(self) -> None:
        self._batch_width = 0

    def load(self, slot: int, tokens_T: Int32, puzzle_vector_E: Float32) -> None:
        self._batch_width = max(self._batch_width, slot + 1)
        self._engine.load(slot, tokens_T, puzzle_vector_E)

    def move(self, source: int, target: int) -> None:
        self._engine.move(source, target)

    def step(self, num_active: int) -> StepOutput:
        self.steps += 1
        self.rows_used += num_active
        self.rows_offered += self.num_slots
        if self.backlog:
            self.backlog_rows_used += num_active
            self.backlog_rows_offered += self.num_slots
        if not self._burns:
            return self._engine.step(num_active)
        output = self._engine.step(self._batch_width)
        return StepOutput(
            answer_BT=output.answer_BT[:num_active],
            halt_margin_B=output.halt_margin_B[:num_active],
            q_halt_B=output.q_halt_B[:num_active],
        )

    def close(self) -> None:
        """The engine belongs to whoever made it."""


def serve(
    policy: Policy, engine: Engine, puzzle: Checker, jobs: Sequence[Attempt], *, clock: Clock = time.perf_counter
) -> Run:
    """Serve all jobs, present from the start, under a policy; every policy sees them in the same order."""
    width = policy.width(engine.num_slots)
    meter = Meter(engine, width=width, burns=policy.burns)
    lane = Lane(meter, puzzle, queue_limit=len(jobs), clock=clock)
    waiting = deque(jobs if policy.early_exit else [_without_early_exit(job) for job in jobs])
    results: list[Result] = []
    began = clock()
    while waiting or lane.has_work:
        _submit(policy, lane, meter, waiting)
        meter.backlog = bool(waiting) or lane.num_queued > width - lane.num_active
        results += lane.step()
    wall_s = clock() - began
    seen = lane.snapshot()
    return Run(
        policy=policy,
        width=width,
        results=results,
        wall_s=wall_s,
        steps=meter.steps,
        step_s=seen.step_seconds_total,
        host_s=seen.host_seconds_total,
        rows_used=meter.rows_used,
        rows_offered=meter.rows_offered,
        backlog_rows_used=meter.backlog_rows_used,
        backlog_rows_offered=meter.backlog_rows_offered,
    )


def _submit(policy: Policy, lane: Lane, meter: Meter, waiting: deque[Attempt]) -> None:
    if policy.batches and lane.num_active:
        return
    meter.new_batch()
    for _ in range(min(len(waiting), meter.num_slots if policy.batches else len(waiting))):
        lane.submit(waiting.popleft())


def _without_early_exit(job: Attempt) -> Attempt:
    return replace(job, policy=replace(job.policy, kind="fixed"))
