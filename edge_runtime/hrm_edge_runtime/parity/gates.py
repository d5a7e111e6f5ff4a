"""What a comparison may differ by at most: limits from one JSON file, and where a report breaks them.

    {"fp32": {"golden": {"every_segment": {"worst": {"logit_gap": 1e-4}}, "end": {"different_halts": 0}}, ...}, ...}

For each precision there are limits against golden traces and against a live reference: in every segment or in the
first, over the mean or the worst row, by the names in `measures.py`; and at the end, see `EndLimits`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from hrm_edge_runtime.parity.measures import How, Measure
from hrm_edge_runtime.parity.report import ParityReport

Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Kind = Literal["golden", "live"]
DEFAULT_FILE = Path(__file__).with_name("gates.json")
ENOUGH_PUZZLES = 2000
"""From here on a measured loss counts as it is; with fewer only one that the confidence interval leaves no doubt of."""


class SegmentLimits(BaseModel, extra="forbid", frozen=True):
    """Limits for the mean over the rows of a segment, and for its worst row."""

    mean: dict[Measure, Limit] = {}
    worst: dict[Measure, Limit] = {}

    def each(self) -> Iterator[tuple[How, Measure, float]]:
        """Every limit, with what it is judged by and which measure it is for."""
        by: dict[How, dict[Measure, Limit]] = {"worst": self.worst, "mean": self.mean}
        return ((how, name, limit) for how, limits in by.items() for name, limit in limits.items())


class EndLimits(BaseModel, extra="forbid", frozen=True):
    """A share of puzzles, a share of the reference's mean segments, and percentage points of solves."""

    different_halts: Limit | None = None
    more_segments: Limit | None = None
    exact_loss: Limit | None = None
    proven_loss: Limit | None = None


class Gates(BaseModel, extra="forbid", frozen=True):
    """The limits of one comparison."""

    every_segment: SegmentLimits = SegmentLimits()
    first_segment: SegmentLimits = SegmentLimits()
    end: EndLimits = EndLimits()


class _PrecisionGates(BaseModel, extra="forbid", frozen=True):
    golden: Gates
    live: Gates


def read_gates(file: Path, precision: str, kind: Kind) -> Gates:
    """The gates of a precision; raises ValueError for a file without them or with a name it does not know."""
    try:
        known = TypeAdapter(dict[str, _PrecisionGates]).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else error
        raise ValueError(f"{file} is no file of gates ({reason}); start from {DEFAULT_FILE}.") from error
    if precision not in known:
        raise ValueError(f"{file} has no gates for {precision!r} but for {sorted(known)}; add them.")
    return getattr(known[precision], kind)


GOLDEN_FP32 = read_gates(DEFAULT_FILE, "fp32", "golden")
LOGIT_TOLERANCE = GOLDEN_FP32.first_segment.worst["logit_gap"]
"""For float32 sums in another order; a wrong operator is off by far more.

Later segments may differ by five times as much: traces recorded with AVX2 differ by 1.5e-4 after 12 segments with
AVX-512, with the same answers.
"""


@dataclass(frozen=True, kw_only=True)
class Break:
    """A limit that does not hold; `segment` counts from 1 and is None for what is judged at the end."""

    gate: str
    value: float
    limit: float
    segment: int | None = None
    puzzle: int | None = None
    puzzle_id: int | None = None

    def __str__(self) -> str:
        where = "at the end" if self.segment is None else f"in segment {self.segment}"
        whose = "" if self.puzzle is None else f", puzzle {self.puzzle} (row {self.puzzle_id} of the puzzle table)"
        return f"{self.gate} {where}{whose}: {self.value:.4g} where {self.limit:g} is allowed"


def passes(report: ParityReport, gates: Gates = GOLDEN_FP32) -> bool:
    return not breaks(report, gates)


def breaks(report: ParityReport, gates: Gates) -> list[Break]:
    """Every limit that does not hold, each where it first breaks; the earliest segment comes first, the end last."""
    found = [
        *_segment_breaks(report, gates.first_segment, last=1),
        *_segment_breaks(report, gates.every_segment, last=report.num_segments),
    ]
    return [*sorted(found, key=lambda one: one.segment or 0), *_end_breaks(report, gates.end)]


def not_judged(report: ParityReport, gates: Gates) -> list[str]:
    """The measures with a gate that could not be taken, because an engine keeps its carry to itself."""
    limits = (*gates.first_segment.each(), *gates.every_segment.each())
    return sorted({name for _, name, _ in limits} - set(report.columns))


def _segment_breaks(report: ParityReport, limits: SegmentLimits, last: int) -> Iterator[Break]:
    for how, name, limit in limits.each():
        if name not in report.columns:
            continue  # see `not_judged`
        column = report.columns[name]
        value_S = column.by(how)[:last]
        broken_S = np.flatnonzero((value_S > limit) & (column.count_S[:last] > 0))
        if len(broken_S):
            first = int(broken_S[0])
            yield Break(
                gate=f"{how} {name}",
                value=float(value_S[first]),
                limit=limit,
                segment=first + 1,
                puzzle=int(column.question_S[first]),
                puzzle_id=int(column.puzzle_id_S[first]),
            )


def _end_breaks(report: ParityReport, limits: EndLimits) -> Iterator[Break]:
    for name, share, limit in (
        ("share of different_halts", report.num_different_halts / report.num_puzzles, limits.different_halts),
        ("share of more_segments", report.more_segments, limits.more_segments),
    ):
        if limit is not None and share > limit:
            yield Break(gate=name, value=share, limit=limit)
    for name, counts, limit in (
        ("exact_loss", report.exact, limits.exact_loss),
        ("proven_loss", report.proven, limits.proven_loss),
    ):
        if counts is not None and limit is not None:
            is_certain = counts.interval_points[0] > limit
            if is_certain or (counts.num_puzzles >= ENOUGH_PUZZLES and counts.loss_points > limit):
                yield Break(gate=f"points of {name}", value=counts.loss_points, limit=limit)
