"""What the host remembers of each slot beside the engine's own state.

Shapes: B slots, T tokens. Token rows are arrays, so that a check sees all slots at once; the rest is a handful of
numbers, which at the few slots of an edge device cost least as plain attributes.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.scheduler import Job
from hrm_edge_runtime.engines.engine import Int32, StepOutput
from hrm_puzzles.puzzle import UNKNOWN

Slots = NDArray[np.intp]
NO_TOKEN = -1  # what an answer holds before the first segment, so that any first answer counts as changed


@dataclass(kw_only=True, slots=True, eq=False)
class Seat:
    """A puzzle in its slot: the segments it has run, and what the last one said."""

    job: Job
    admitted_s: float
    segments: int = 0
    verdict: int = UNKNOWN
    margin: float = 0.0
    q_halt: float = 0.0

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.margin + self.q_halt)  # they are float32 and cannot overflow here


class Seats:
    """One seat for each slot. What stands in a slot without a tenant means nothing."""

    def __init__(self, num_slots: int, seq_len: int) -> None:
        self.tokens_BT: Int32 = np.zeros((num_slots, seq_len), np.int32)
        self.answers_BT: Int32 = np.zeros((num_slots, seq_len), np.int32)
        self._seats: list[Seat | None] = [None] * num_slots

    def __getitem__(self, slot: int) -> Seat:
        seat = self._seats[slot]
        assert seat is not None, f"slot {slot} was never loaded"
        return seat

    def load(self, slot: int, job: Job, now: float) -> None:
        self._seats[slot] = Seat(job=job, admitted_s=now)
        self.tokens_BT[slot] = job.tokens_T
        self.answers_BT[slot] = NO_TOKEN

    def move(self, source: int, target: int) -> None:
        self._seats[target] = self._seats[source]
        self.tokens_BT[target] = self.tokens_BT[source]
        self.answers_BT[target] = self.answers_BT[source]

    def take(self, output: StepOutput) -> Slots:
        """Keep what a segment said of the first rows; gives the slots whose answer is another than before."""
        num_active = len(output.answer_BT)
        changed_B = (self.answers_BT[:num_active] != output.answer_BT).any(axis=1)
        self.answers_BT[:num_active] = output.answer_BT
        for slot, said in enumerate(zip(output.halt_margin_B.tolist(), output.q_halt_B.tolist(), strict=True)):
            seat = self[slot]
            seat.segments += 1
            seat.margin, seat.q_halt = said
        return changed_B.nonzero()[0]
