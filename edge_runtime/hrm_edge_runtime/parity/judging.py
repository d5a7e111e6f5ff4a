"""What breaks a comparison's gates, where it first breaks.

Shapes: S segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hrm_edge_runtime.parity.gates import EndLimits, Gates, SegmentLimits
from hrm_edge_runtime.parity.tally import HOW, Column, Paired

if TYPE_CHECKING:
    from hrm_edge_runtime.parity.report import ParityReport

ENOUGH_PUZZLES = 2000
"""From here on a measured loss counts as it is; with fewer only one that the confidence interval leaves no doubt of."""


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


def breaks(report: ParityReport, gates: Gates) -> list[Break]:
    """Every limit that does not hold, each where it first breaks; the earliest segment comes first, the end last."""
    found = [
        *_segment_breaks(report.columns, gates.first_segment, last=1),
        *_segment_breaks(report.columns, gates.every_segment, last=report.num_segments),
    ]
    return [*sorted(found, key=lambda one: one.segment or 0), *_end_breaks(report, gates.end)]


def not_judged(report: ParityReport, gates: Gates) -> list[str]:
    """The measures with a gate that could not be taken, because an engine keeps its carry to itself."""
    limits = (gates.first_segment, gates.every_segment)
    return sorted({name for one in limits for how in HOW for name in one.by(how)} - set(report.columns))


def _segment_breaks(columns: Mapping[str, Column], limits: SegmentLimits, last: int) -> Iterator[Break]:
    for how in HOW:
        for name, limit in limits.by(how).items():
            if name not in columns:
                continue  # `not_judged` tells
            column = columns[name]
            value_S = column.by(how)[:last]
            broken_S = np.flatnonzero((value_S > limit) & (column.count_S[:last] > 0))
            for index in broken_S[:1].tolist():
                yield Break(
                    gate=f"{how} {name}",
                    value=float(value_S[index]),
                    limit=limit,
                    segment=index + 1,
                    puzzle=int(column.question_S[index]),
                    puzzle_id=int(column.puzzle_id_S[index]),
                )


def _end_breaks(report: ParityReport, limits: EndLimits) -> Iterator[Break]:
    for name, share, limit in (
        ("share of different_halts", report.num_different_halts / report.num_puzzles, limits.different_halts),
        ("share of more_segments", report.more_segments, limits.more_segments),
    ):
        if limit is not None and share > limit:
            yield Break(gate=name, value=share, limit=limit)
    for name, paired, limit in (
        ("exact_loss", report.exact, limits.exact_loss),
        ("proven_loss", report.proven, limits.proven_loss),
    ):
        if paired is not None and limit is not None and _loses(paired, limit):
            yield Break(gate=f"points of {name}", value=paired.loss_points, limit=limit)


def _loses(paired: Paired, limit: float) -> bool:
    is_certain = paired.interval_points[0] > limit
    return is_certain or (paired.num_puzzles >= ENOUGH_PUZZLES and paired.loss_points > limit)
