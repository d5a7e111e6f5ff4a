"""When a puzzle stops: one pure rule, for one slot and for all slots at once.

Shapes: B slots. A margin above the threshold is the model's own wish to stop; a verdict is the puzzle's proof, where
one exists. `segment` counts the segments already run, from 1.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hrm_puzzles.puzzle import RIGHT, UNKNOWN

PolicyKind = Literal["learned", "verified", "fixed"]
HaltReason = Literal["proven", "learned", "max_segments"]

KINDS: tuple[PolicyKind, ...] = get_args(PolicyKind)
GOES_ON, PROVEN, LEARNED, MAX_SEGMENTS = range(4)
REASONS: tuple[HaltReason | None, ...] = (None, "proven", "learned", "max_segments")


@dataclass(frozen=True, kw_only=True)
class HaltingPolicy:
    """How long a puzzle may think: `learned`, `verified` (a proof stops it, a disproof lets it go on) or `fixed`.

    Refuses a kind it does not know, a threshold that is not finite, and fewer than one segment.
    """

    kind: PolicyKind = "learned"
    threshold: float = 0.0
    max_segments: int = 16

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"halting policy {self.kind!r} is not known: choose one of {', '.join(KINDS)}.")
        if not np.isfinite(self.threshold):
            raise ValueError(f"halting threshold {self.threshold} is not finite: give a margin, for example 0.0.")
        if self.max_segments < 1:
            raise ValueError(f"max_segments {self.max_segments} is below 1: a puzzle needs at least one segment.")


def decide(margin: float, segment: int, verified: bool | None, policy: HaltingPolicy) -> HaltReason | None:
    """Why a puzzle stops after this segment, or None where it goes on; `verified` is None where nothing is proven."""
    wants_to_stop = margin > policy.threshold
    if policy.kind == "verified" and verified:
        return "proven"
    if policy.kind == "learned" and wants_to_stop:
        return "learned"
    if policy.kind == "verified" and wants_to_stop and verified is None:
        return "learned"
    return "max_segments" if segment >= policy.max_segments else None


@dataclass(frozen=True, kw_only=True, eq=False)
class PolicyColumns:
    """The policies of B slots as columns: `kind_B` indexes `KINDS`."""

    kind_B: NDArray[np.int8]
    threshold_B: NDArray[np.float64]
    max_segments_B: NDArray[np.int32]


def columns_of(policy: HaltingPolicy, num_rows: int) -> PolicyColumns:
    """One policy, the same for every row."""
    return PolicyColumns(
        kind_B=np.full(num_rows, KINDS.index(policy.kind), np.int8),
        threshold_B=np.full(num_rows, policy.threshold, np.float64),
        max_segments_B=np.full(num_rows, policy.max_segments, np.int32),
    )


def decide_B(
    margin_B: NDArray[np.floating],
    segment_B: NDArray[np.integer],
    verdict_B: NDArray[np.int8],
    policies: PolicyColumns,
) -> NDArray[np.int8]:
    """`decide` for all slots at once: codes that index `REASONS`, 0 where a puzzle goes on."""
    learned_kind_B = policies.kind_B == KINDS.index("learned")
    verified_kind_B = policies.kind_B == KINDS.index("verified")
    may_stop_B = learned_kind_B | (verified_kind_B & (verdict_B == UNKNOWN))
    reason_B = np.zeros(len(margin_B), np.int8)
    reason_B[segment_B >= policies.max_segments_B] = MAX_SEGMENTS
    reason_B[may_stop_B & (margin_B > policies.threshold_B)] = LEARNED
    reason_B[verified_kind_B & (verdict_B == RIGHT)] = PROVEN
    return reason_B
