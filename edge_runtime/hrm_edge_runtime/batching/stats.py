"""What a lane counts, and the picture of itself that it shows. Shapes: N recent puzzles, L lengths of a run."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hrm_edge_runtime.contract.halting import HaltReason

Outcome = Literal[HaltReason, "cancelled", "outrun", "deadline", "failed"]
"""How a job ends; one is outrun where another attempt at its question settled the answer first."""
Status = Literal["proven", "halted", "unfinished"]
"""What is known of an answer: a proof, the model's own word that it is done, or nothing."""
HALTED: frozenset[Outcome] = frozenset(("proven", "learned", "max_segments"))

MEMORY = 1 / 32  # weight of the newest value in the running means: about the last thirty steps or puzzles
MAX_RUN = 16  # segments of a run: an arrival never waits longer for its slot to be looked at
_NUM_RECENT = 256  # steps and puzzles that the least values are taken of
NUM_TELLING = 32  # puzzles that must have been seen before the quickest of them says anything of those to come


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot: `job_id` is None where it is free; `margin` belongs to the last segment run."""

    slot: int
    generation: int
    job_id: int | None = None
    segments: int = 0
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LaneSnapshot:
    """A lane at one moment, safe to keep and to send away.

    `slot_segments_used` of `slot_segments_offered` rows did work in the steps that left somebody waiting, so their
    ratio is the occupancy under a backlog; `slot_segments` counts the rows of all steps. `segments_histogram[n]` counts
    puzzles that halted after n segments. Times are seconds over the lane's whole life; `step_seconds_total` is the
    engine's, `host_seconds_total` everything else in `Lane.step`. `least_step_s` is the shortest of the recent steps
    over all slots, 0 before there was one; `least_segments` what the quickest of the recent puzzles took.
    """

    num_slots: int
    num_active: int
    num_queued: int
    queue_limit: int
    slots: tuple[SlotView, ...]
    steps: int
    slot_segments: int
    slot_segments_used: int
    slot_segments_offered: int
    hypotheses: int
    completed: dict[Outcome, int]
    segments_histogram: tuple[int, ...]
    step_seconds_total: float
    host_seconds_total: float
    mean_step_s: float
    mean_segments: float
    least_step_s: float
    least_segments: int

    @property
    def occupancy(self) -> float:
        """Share of the offered rows that did work; 1 where nobody ever had to wait."""
        return self.slot_segments_used / self.slot_segments_offered if self.slot_segments_offered else 1.0

    @property
    def expected_wait_s(self) -> float:
        """How long a puzzle that joins the queue now should wait for its slot, at the recent pace."""
        ahead = self.num_queued + self.num_active - self.num_slots + 1
        return max(0, ahead) * self.mean_segments * self.mean_step_s / self.num_slots

    def least_wait_s(self, num_ahead: int) -> float:
        """The least time until one with so many ahead has a slot, if all come free now and each is as quick as any."""
        rounds = max(0, num_ahead - self.num_slots) // self.num_slots
        return rounds * self.least_segments * self.least_step_s


@dataclass(kw_only=True)
class LaneCounters:
    """The running totals behind a snapshot; only the lane writes them."""

    steps: int = 0
    slot_segments: int = 0
    slot_segments_used: int = 0
    slot_segments_offered: int = 0
    hypotheses: int = 0
    step_seconds_total: float = 0.0
    host_seconds_total: float = 0.0
    mean_step_s: float = 0.0
    mean_segments: float = 0.0
    mean_first_s: float = 0.0
    mean_host_s: float = 0.0
    _run_length: int = 1
    _choose_at: int = 0
    completed: Counter[Outcome] = field(default_factory=Counter[Outcome])
    segments: Counter[int] = field(default_factory=Counter[int])
    full_steps_s: deque[float] = field(default_factory=lambda: deque[float](maxlen=_NUM_RECENT))
    recent_segments: deque[int] = field(default_factory=lambda: deque[int](maxlen=_NUM_RECENT))

    def count_step(
        self, *, num_active: int, num_slots: int, is_first: bool, backlog: bool, step_s: float, host_s: float
    ) -> None:
        """Count a segment; `is_first` of its run, whose time is the engine's alone: none of it passed before."""
        self.mean_step_s += (step_s - self.mean_step_s) * (MEMORY if self.steps else 1.0)
        self.mean_host_s += (host_s - self.mean_host_s) * (MEMORY if self.steps else 1.0)
        if is_first:
            self.mean_first_s += (step_s - self.mean_first_s) * (MEMORY if self.steps else 1.0)
        self.steps += 1
        self.slot_segments += num_active
        self.slot_segments_used += num_active if backlog else 0
        self.slot_segments_offered += num_slots if backlog else 0
        self.step_seconds_total += step_s
        self.host_seconds_total += host_s
        if num_active == num_slots:
            self.full_steps_s.append(step_s)

    def best_run_length(self) -> int:
        """The segments between two looks at the line with which recent puzzles would have held a slot the least time.

        Whoever halts within a run keeps its slot to the end of it; a look leaves the engine idle for as long as the
        host takes, about twice what is seen of it here, since messages come on top.
        """
        if self.steps >= self._choose_at and len(self.recent_segments) >= NUM_TELLING:
            self._choose_at = self.steps + _NUM_RECENT
            look_s, further_s = 2 * self.mean_host_s + self.mean_first_s, max(self.mean_first_s, self.mean_host_s)
            length_L, segments_N1 = np.arange(1, MAX_RUN + 1), np.array(self.recent_segments)[:, None]
            runs_L = np.ceil(segments_N1 / length_L).mean(axis=0)
            self._run_length = 1 + int((runs_L * (look_s + (length_L - 1) * further_s)).argmin())
        return self._run_length
