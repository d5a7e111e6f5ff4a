"""What a lane counts, and its snapshot. Shapes: N recent puzzles, L lengths of a run."""

from collections import Counter, deque
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Literal, get_args

import numpy as np

from hrm_edge_runtime.contract.halting import HaltReason

Outcome = Literal[HaltReason, "cancelled", "superseded", "deadline", "failed"]
"""How an attempt ends; superseded if another attempt at its puzzle settles the answer first."""
Status = Literal["proven", "halted", "unfinished"]
"""What is known of an answer: it is proven, the model halted on it, or neither."""
HALTED: frozenset[Outcome] = frozenset(get_args(HaltReason))

# Weight of the newest value in the running means, over about the last thirty steps or puzzles.
MEMORY = 1 / 32
# maximum segments per run; bounds how long an arrival waits until the lane checks its queue
MAX_RUN = 16
_NUM_RECENT = 256  # number of recent steps and puzzles in the minima
NUM_TELLING = 32  # halted puzzles before the minimum number of segments is used


@dataclass(frozen=True, kw_only=True)
class SlotView:
    """One slot: `job_id` is None if it is free; `margin` belongs to the last segment that ran."""

    slot: int
    generation: int
    job_id: int | None = None
    segments: int = 0
    margin: float = 0.0


@dataclass(kw_only=True)
class LaneTotals:
    """What a lane has counted over its life, and its running means.

    - `slot_segments` counts the rows of all steps. `slot_segments_used` and `slot_segments_offered`
      count only steps that left a puzzle waiting, so their ratio is the occupancy under a backlog.
    - `step_seconds_total` is the engine's time; `host_seconds_total` is the rest of `Lane.step`.
    """

    steps: int
    slot_segments: int
    slot_segments_used: int
    slot_segments_offered: int
    hypotheses: int
    step_seconds_total: float
    host_seconds_total: float
    mean_step_s: float
    mean_segments: float


TOTALS = tuple(one.name for one in fields(LaneTotals))  # names


@dataclass(kw_only=True)
class LaneSnapshot(LaneTotals):
    """The state of a lane at one moment; it may be kept and sent to another process.

    - `segments_histogram[n]` counts the puzzles that halted after n segments.
    - `least_step_s` is the shortest recent step over all slots, 0 before the first.
    - `least_segments` is the smallest number of segments among the recent puzzles.
    """

    num_slots: int
    num_active: int
    num_queued: int
    queue_limit: int
    slots: tuple[SlotView, ...]
    completed: dict[Outcome, int]
    segments_histogram: tuple[int, ...]
    least_step_s: float
    least_segments: int

    @property
    def occupancy(self) -> float:
        """Share of the offered rows that did work; 1 if no puzzle ever had to wait."""
        if not self.slot_segments_offered:
            return 1.0
        return self.slot_segments_used / self.slot_segments_offered

    @property
    def expected_wait_s(self) -> float:
        """Expected wait for a slot of a puzzle that joins the queue now, at the recent pace."""
        ahead = self.num_queued + self.num_active - self.num_slots + 1
        return max(0, ahead) * self.mean_segments * self.mean_step_s / self.num_slots

    def least_wait_s(self, num_ahead: int) -> float:
        """Lower bound on the wait behind `num_ahead` puzzles.

        It assumes that every slot frees up now and that every puzzle is as fast as the fastest
        recent one.
        """
        rounds = max(0, num_ahead - self.num_slots) // self.num_slots
        return rounds * self.least_segments * self.least_step_s


@dataclass(kw_only=True)
class LaneCounters(LaneTotals):
    """The counters behind a snapshot; only the lane writes them."""

    mean_first_s: float = 0.0
    mean_host_s: float = 0.0
    _run_length: int = 1
    _choose_at: int = 0
    completed: Counter[Outcome] = field(default_factory=Counter[Outcome])
    segments: Counter[int] = field(default_factory=Counter[int])
    full_steps_s: deque[float] = field(default_factory=partial(deque[float], maxlen=_NUM_RECENT))
    recent_segments: deque[int] = field(default_factory=partial(deque[int], maxlen=_NUM_RECENT))

    def count_step(
        self,
        *,
        num_active: int,
        num_slots: int,
        is_first: bool,
        has_backlog: bool,
        step_s: float,
        host_s: float,
    ) -> None:
        """Count a segment, which took the engine `step_s` and the host `host_s`.

        Only the first segment of a run has the engine's whole time: a later one may have begun
        before the host asked.
        """
        weight = MEMORY if self.steps else 1.0
        self.mean_step_s += (step_s - self.mean_step_s) * weight
        self.mean_host_s += (host_s - self.mean_host_s) * weight
        if is_first:
            self.mean_first_s += (step_s - self.mean_first_s) * weight
        if num_active == num_slots:
            self.full_steps_s.append(step_s)
        self.steps += 1
        self.slot_segments += num_active
        if has_backlog:
            self.slot_segments_used += num_active
            self.slot_segments_offered += num_slots
        self.step_seconds_total += step_s
        self.host_seconds_total += host_s

    def count_end(self, outcome: Outcome, segments: int) -> None:
        """Count an attempt that ended after this number of segments."""
        self.completed[outcome] += 1
        if outcome in HALTED:
            weight = MEMORY if self.segments else 1.0
            self.mean_segments += (segments - self.mean_segments) * weight
            self.segments[segments] += 1
            self.recent_segments.append(segments)

    def best_run_length(self) -> int:
        """The run length with which recent puzzles would have held their slots most briefly.

        A puzzle that halts within a run keeps its slot until the run ends. Between two runs the
        engine idles for as long as the host takes: about twice the time measured here, which
        does not include messages.
        """
        if self.steps >= self._choose_at and len(self.recent_segments) >= NUM_TELLING:
            self._choose_at = self.steps + _NUM_RECENT
            first_s = 2 * self.mean_host_s + self.mean_first_s
            further_s = max(self.mean_first_s, self.mean_host_s)
            length_L = np.arange(1, MAX_RUN + 1)
            segments_N1 = np.array(self.recent_segments)[:, None]
            runs_L = np.ceil(segments_N1 / length_L).mean(axis=0)
            held_L = runs_L * (first_s + (length_L - 1) * further_s)
            self._run_length = 1 + int(held_L.argmin())
        return self._run_length
