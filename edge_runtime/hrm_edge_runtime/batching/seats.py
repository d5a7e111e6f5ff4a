"""What the host remembers of each slot beside the engine's own state.

Shapes: B slots, T tokens. Token rows are arrays, so that a check sees all slots at once; the rest is a handful of
numbers, which at the few slots of an edge device cost least as plain attributes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.engines.engine import Int32, StepOutput
from hrm_puzzles.puzzle import UNKNOWN

Slots = NDArray[np.intp]
NO_TOKEN = -1  # what an answer holds before the first segment, so that any first answer counts as changed


@dataclass(kw_only=True, slots=True, eq=False)
class Seat:
    """A puzzle in its slot: the segments it has run, and what the last one said."""

    job: Attempt
    admitted_s: float
    segments: int = 0
    verdict: int = UNKNOWN
    margin: float = 0.0
    q_halt: float = 0.0


class Seats:
    """One seat for each slot that ever had a tenant, lowest first. What stands in a slot without one means nothing."""

    def __init__(self, num_slots: int, seq_len: int) -> None:
        self.tokens_BT: Int32 = np.zeros((num_slots, seq_len), np.int32)
        self.answers_BT: Int32 = np.zeros((num_slots, seq_len), np.int32)
        self._seats: list[Seat] = []

    def __getitem__(self, slot: int) -> Seat:
        return self._seats[slot]

    def load(self, slot: int, job: Attempt, now: float) -> None:
        assert slot <= len(self._seats), f"slot {slot} is loaded before those below it"
        self._seats[slot : slot + 1] = [Seat(job=job, admitted_s=now)]
        self.tokens_BT[slot] = job.tokens_T
        self.answers_BT[slot] = NO_TOKEN

    def move(self, source: int, target: int) -> None:
        self._seats[target] = self._seats[source]
        self.tokens_BT[target] = self.tokens_BT[source]
        self.answers_BT[target] = self.answers_BT[source]

    def take(self, output: StepOutput) -> tuple[list[Seat], Slots]:
        """Keep what a segment said of the first rows; gives their seats, and the slots whose answer has changed."""
        num_active = len(output.answer_BT)
        changed_B = (self.answers_BT[:num_active] != output.answer_BT).any(axis=1)
        self.answers_BT[:num_active] = output.answer_BT
        seats = self._seats[:num_active]
        for seat, margin, q_halt in zip(seats, output.halt_margin_B.tolist(), output.q_halt_B.tolist(), strict=True):
            seat.segments, seat.margin, seat.q_halt = seat.segments + 1, margin, q_halt
        return seats, changed_B.nonzero()[0]
