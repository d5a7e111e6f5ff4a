"""The one end of every job.

Shapes: T tokens.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.batching.scheduler import Attempt
from hrm_edge_runtime.batching.seats import Seat
from hrm_edge_runtime.batching.stats import Outcome
from hrm_puzzles.puzzle import RIGHT, UNKNOWN


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """How a job ended.

    `answer_T` is the last segment's answer, None where no segment ran or the engine gave garbage ("failed").
    `verified` is None where nothing is proven either way. Times are seconds: from arrival to slot, from slot to end.
    """

    attempt_id: int
    answer_T: NDArray[np.int32] | None
    verified: bool | None
    segments: int
    halted_by: Outcome
    margin: float
    q_halt: float
    queue_s: float
    compute_s: float


def result_of(seat: Seat, answer_T: NDArray[np.int32], outcome: Outcome, now: float) -> Result:
    """The result of a job that had a slot; `answer_T` is copied, since the slot goes on to its next puzzle."""
    has_answer = seat.segments > 0 and outcome != "failed"
    return Result(
        attempt_id=seat.job.attempt_id,
        answer_T=answer_T.copy() if has_answer else None,
        verified=seat.verdict == RIGHT if has_answer and seat.verdict != UNKNOWN else None,
        segments=seat.segments,
        halted_by=outcome,
        margin=seat.margin,
        q_halt=seat.q_halt,
        queue_s=seat.admitted_s - seat.job.arrival_s,
        compute_s=now - seat.admitted_s,
    )


def result_without_slot(job: Attempt, outcome: Outcome, now: float) -> Result:
    """The result of a job that never left the line."""
    return Result(
        attempt_id=job.attempt_id,
        answer_T=None,
        verified=None,
        segments=0,
        halted_by=outcome,
        margin=0.0,
        q_halt=0.0,
        queue_s=now - job.arrival_s,
        compute_s=0.0,
    )
