"""When a puzzle stops: one pure rule, for one slot and for all slots at once.

A margin above the threshold means that the model would stop. A verdict is the puzzle's proof or
disproof of the answer, if it has one. `segment` counts the segments already run, from 1.

Shapes: B slots.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import RIGHT, UNKNOWN

Learned = Literal["learned"]
LEARNED: Learned = "learned"
PolicyKind = Literal[Learned, "verified", "fixed"]
HaltReason = Literal["proven", Learned, "max_segments"]


@dataclass(frozen=True, kw_only=True)
class HaltingPolicy:
    """How long a puzzle may think.

    `learned` stops when the model wants to. `verified` stops at a proof and ignores the model after
    a disproof. `fixed` runs all segments.
    """

    kind: PolicyKind = LEARNED
    threshold: float = 0.0
    max_segments: int = 16


def usual_kind(*, proof_exists: bool) -> PolicyKind:
    """Stop at a proof, or when the model wants to if no proof exists."""
    return "verified" if proof_exists else LEARNED


def decide(
    margin: float, segment: int, verified: bool | None, policy: HaltingPolicy
) -> HaltReason | None:
    """Why a puzzle stops after this segment, or None if it goes on.

    `verified` is None if the answer is neither proven nor disproven.
    """
    wants_to_stop = margin > policy.threshold
    if policy.kind == "verified" and verified:
        return "proven"
    if policy.kind == LEARNED and wants_to_stop:
        return LEARNED
    if policy.kind == "verified" and wants_to_stop and verified is None:
        return LEARNED
    if segment >= policy.max_segments:
        return "max_segments"
    return None


def stops_B(
    margin_B: NDArray[np.floating],
    segment_B: NDArray[np.integer] | int,
    verdict_B: NDArray[np.int8],
    policy: HaltingPolicy,
) -> NDArray[np.bool_]:
    """Which of B slots under one policy `decide` would stop."""
    is_last_B = np.broadcast_to(segment_B, margin_B.shape) >= policy.max_segments
    wants_to_stop_B = margin_B > policy.threshold
    if policy.kind == LEARNED:
        return is_last_B | wants_to_stop_B
    if policy.kind == "verified":
        is_unknown_B = verdict_B == UNKNOWN
        return is_last_B | (verdict_B == RIGHT) | (is_unknown_B & wants_to_stop_B)
    return is_last_B
