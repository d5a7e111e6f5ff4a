"""What a comparison may differ by at most: limits from one JSON file, and what breaks them.

    {"fp32": {"golden": {"every_segment": {"worst": {"logit_gap": 1e-4}}, "end": {"different_halts": 0}}, ...}, ...}

For each precision of the candidate there are limits against golden traces and against a live reference. They hold in
every segment or in the first, where no recurrence has made more of a difference, over the mean or over the worst row,
by the names in `measures.py`; and at the end: the share of puzzles that halt after another segment, the share by which
the mean number of segments grows, and percentage points of exact and proven solves lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from hrm_edge_runtime.parity.tally import How

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Measure = Literal[
    "logit_gap",
    "logit_drift",
    "halting_gap",
    "different_cells",
    "different_answers",
    "different_stops",
    "carry_drift",
    "carry_turn",
    "carry_growth",
]


class GateError(ValueError):
    """A file of gates that cannot be used; the text is one sentence with the remedy."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SegmentLimits(_Strict):
    """Limits for the mean over the rows of a segment, and for its worst row."""

    mean: dict[Measure, Limit] = {}
    worst: dict[Measure, Limit] = {}

    def by(self, how: How) -> dict[Measure, Limit]:
        return self.mean if how == "mean" else self.worst


class EndLimits(_Strict):
    """A share of puzzles, a share of the reference's mean segments, and percentage points of solves."""

    different_halts: Limit | None = None
    more_segments: Limit | None = None
    exact_loss: Limit | None = None
    proven_loss: Limit | None = None


class Gates(_Strict):
    """The limits of one comparison."""

    every_segment: SegmentLimits = SegmentLimits()
    first_segment: SegmentLimits = SegmentLimits()
    end: EndLimits = EndLimits()


class _Kinds(_Strict):
    golden: Gates
    live: Gates


_FILE = TypeAdapter(dict[str, _Kinds])
DEFAULT_FILE = Path(__file__).with_name("gates.json")


def read_gates(file: Path, precision: str, kind: Literal["golden", "live"]) -> Gates:
    """The gates of a precision; raises GateError for a file without them or with a name it does not know."""
    try:
        known = _FILE.validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else error
        raise GateError(f"{file} is no file of gates ({reason}); start from {DEFAULT_FILE}.") from error
    if precision not in known:
        raise GateError(f"{file} has no gates for {precision!r} but for {sorted(known)}; add them.")
    return getattr(known[precision], kind)


GOLDEN_FP32 = read_gates(DEFAULT_FILE, "fp32", "golden")
LOGIT_TOLERANCE = GOLDEN_FP32.first_segment.worst["logit_gap"]
"""For float32 sums in another order; a wrong operator is off by far more.

Later segments may differ by five times as much: the recurrence amplifies rounding, and another processor rounds in
another order. Traces recorded with AVX2 differ by 1.5e-4 after 12 segments with AVX-512, with the same answers.
"""
