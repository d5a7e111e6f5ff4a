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


@dataclass(frozen=True, kw_only=True)
class HaltingPolicy:
    """How long a puzzle may think: `learned`, `verified` (a proof stops it, a disproof lets it go on) or `fixed`."""

    kind: PolicyKind = "learned"
    threshold: float = 0.0
    max_segments: int = 16

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(
                f"halting policy {self.kind!r} is not known: choose one of {', '.join(KINDS)}."
            )
        if not np.isfinite(self.threshold):
            raise ValueError(
                f"halting threshold {self.threshold} is not finite: give a margin, for example 0.0."
            )
        if self.max_segments < 1:
            raise ValueError(
                f"max_segments {self.max_segments} is below 1: a puzzle needs at least one segment."
            )


def decide(
    margin: float, segment: int, verified: bool | None, policy: HaltingPolicy
) -> HaltReason | None:
    """Why a puzzle stops after this segment, or None where it goes on; `verified` is None where nothing is proven."""
    wants_to_stop = margin > policy.threshold
    if policy.kind == "verified" and verified:
        return "proven"
    if policy.kind == "learned" and wants_to_stop:
        return "learned"
    if policy.kind == "verified" and wants_to_stop and verified is None:
        return "learned"
    return "max_segments" if segment >= policy.max_segments else None


def stops_B(
    margin_B: NDArray[np.floating],
    segment_B: NDArray[np.integer] | int,
    verdict_B: NDArray[np.int8],
    policy: HaltingPolicy,
) -> NDArray[np.bool_]:
    """Which of B slots under one policy `decide` would stop."""
    stops_B = np.broadcast_to(segment_B, margin_B.shape) >= policy.max_segments
    if policy.kind == "learned":
        stops_B = stops_B | (margin_B > policy.threshold)
    elif policy.kind == "verified":
        stops_B = (
            stops_B
            | (verdict_B == RIGHT)
            | ((verdict_B == UNKNOWN) & (margin_B > policy.threshold))
        )
    return stops_B
