"""What a comparison of two engines found: numbers, JSON, a table, and the gates it breaks.

Memory does not grow with the number of puzzles. The gates are limits from one JSON file:

    {"fp32": {"golden": {"every_segment": {"worst": {"logit_gap": 1e-4}},
                         "end": {"different_halts": 0}},
              "live": ...

`golden` holds against golden traces, `live` against a running reference, `unrolled` for a graph of
the whole loop against its step graph. A segment is judged by the
mean or the worst of its rows, the end by `EndLimits`.

Shapes: B rows, S segments.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter

from hrm_edge_runtime.contract.arrays import Int32
from hrm_parity.measures import (
    MEASURES,
    Column,
    Float64,
    How,
    Int64,
    Measure,
    SolveCounts,
)

MOST_SHOWN = 6  # columns of the table, besides the last segment; as many as a terminal is wide
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Kind = Literal["golden", "live", "unrolled"]
ENOUGH_PUZZLES = 2000
"""With fewer puzzles a loss breaks its gate only if its whole confidence interval does."""


class End(NamedTuple):
    """How one side ended with one puzzle: its last segment, its answer, and whether that was
    right."""

    halted_at: int
    answer_T: Int32
    is_exact: bool
    is_proven: bool


@dataclass(kw_only=True, eq=False)
class ParityReport:
    """How a candidate compares with its reference.

    `halts_SS` counts puzzles by the segment after which the reference (row) and the candidate
    (column) halted. `proven` is None if the puzzle has no proofs.
    """

    reference: str
    candidate: str
    puzzles: str
    halts_SS: Int64
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    exact: SolveCounts = field(default_factory=SolveCounts)
    proven: SolveCounts | None = field(default_factory=SolveCounts)
    num_different_final_answers: int = 0

    def add_segment(
        self,
        segment_B: Int64,
        question_B: Int64,
        puzzle_id_B: Int64,
        measures: Mapping[str, Float64],
    ) -> None:
        for name, value_B in measures.items():
            column = self.columns.setdefault(name, Column(self.num_segments))
            column.take(segment_B - 1, question_B, puzzle_id_B, value_B)

    def add_end(self, reference: End, candidate: End) -> None:
        self.halts_SS[reference.halted_at - 1, candidate.halted_at - 1] += 1
        is_same = np.array_equal(reference.answer_T, candidate.answer_T)
        self.num_different_final_answers += not is_same
        self.exact.count(reference.is_exact, candidate.is_exact)
        if self.proven is not None:
            self.proven.count(reference.is_proven, candidate.is_proven)

    def finished(self) -> "ParityReport":
        """The report cut to the segments that ran; ValueError if there was no puzzle."""
        if not self.num_puzzles:
            raise ValueError("there is no puzzle to compare; give at least one.")
        last = 1 + int(np.argwhere(self.halts_SS).max())
        for column in self.columns.values():
            last = max(last, int((column.count_S > 0).sum()))
        for column in self.columns.values():
            column.cut(last)
        return replace(self, halts_SS=self.halts_SS[:last, :last])

    @property
    def num_puzzles(self) -> int:
        return self.exact.num_puzzles

    @property
    def num_segments(self) -> int:
        return len(self.halts_SS)

    @property
    def max_logit_gap(self) -> float:
        return float(self.columns["logit_gap"].worst_S.max())

    @property
    def num_different_halts(self) -> int:
        return int(self.halts_SS.sum() - self.halts_SS.trace())

    @property
    def reference_halts_S(self) -> Int64:
        """How many puzzles halted after each segment."""
        return self.halts_SS.sum(axis=1)

    @property
    def candidate_halts_S(self) -> Int64:
        return self.halts_SS.sum(axis=0)

    @property
    def mean_segments(self) -> tuple[float, float]:
        segment_S = np.arange(1, self.num_segments + 1)
        theirs = np.average(segment_S, weights=self.reference_halts_S)
        ours = np.average(segment_S, weights=self.candidate_halts_S)
        return float(theirs), float(ours)

    @property
    def more_segments(self) -> float:
        """Additional mean segments as a share of the reference's; negative if there are fewer."""
        theirs, ours = self.mean_segments
        return ours / theirs - 1

    def as_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; lists have one entry for each segment that a puzzle ran."""
        proven = None if self.proven is None else self.proven.as_json()
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "puzzles": self.puzzles,
            "num_puzzles": self.num_puzzles,
            "num_segments": self.num_segments,
            "exact": self.exact.as_json(),
            "proven": proven,
            "num_different_final_answers": self.num_different_final_answers,
            "num_different_halts": self.num_different_halts,
            "reference_halts": self.reference_halts_S.tolist(),
            "candidate_halts": self.candidate_halts_S.tolist(),
            "segments": {name: column.as_json() for name, column in self.columns.items()},
        }


def summary_rows(report: ParityReport) -> Iterator[tuple[str, str]]:
    """The end of a comparison in a few lines, each with its title."""
    count = report.num_puzzles
    other_halts = report.num_different_halts / count
    other_answers = report.num_different_final_answers / count
    theirs, ours = report.mean_segments
    size = f"{count} puzzles ({report.puzzles}), up to {report.num_segments} segments"
    yield "compared on", size
    yield "exact solves", _solves(report.exact)
    if report.proven is not None:
        yield "proven solves", _solves(report.proven)
    means = f"{theirs:.2f} → {ours:.2f}"
    yield "mean segments", f"{means}; {other_halts:.1%} halt after another segment"
    yield "final answers", f"{other_answers:.1%} are others"


def _solves(counts: SolveCounts) -> str:
    total = max(1, counts.num_puzzles)
    theirs = 100 * counts.reference / total
    ours = 100 * counts.candidate / total
    low, high = counts.interval_points
    loss = f"lost {counts.loss_points:.2f} points (95 %: {low:.2f} to {high:.2f})"
    return f"{theirs:.1f} % → {ours:.1f} %; {loss}"


def segment_rows(report: ParityReport) -> Iterator[list[str]]:
    """A table with its head: one row per measure, one column per shown segment."""
    shown = _shown_segments(report.num_segments)
    yield ["after segment", *map(str, shown)]
    counts_S = report.columns["logit_gap"].count_S
    yield ["puzzles", *(str(counts_S[segment - 1]) for segment in shown)]
    for name, how in MEASURES.items():
        if name in report.columns:
            cells = _cells(report.columns[name], how, shown)
            title = name.replace("_", " ")
            yield [f"{title}, {how}", *cells]


def _shown_segments(last: int) -> list[int]:
    """The last segment, and the powers of 2 before it, or of 4 if those of 2 are too many."""
    powers = _powers_below(last, base=2)
    if len(powers) >= MOST_SHOWN:
        powers = _powers_below(last, base=4)
    return [*powers, last]


def _powers_below(bound: int, base: int) -> list[int]:
    powers: list[int] = []
    power = 1
    while power < bound:
        powers.append(power)
        power *= base
    return powers


def _cells(column: Column, how: How, segments: Iterable[int]) -> Iterator[str]:
    """The figures of a measure after these segments; a dash for a segment that no row measured."""
    value_S = column.by(how)
    for segment in segments:
        value = value_S[segment - 1]
        if not column.count_S[segment - 1]:
            yield "–"
        elif value:
            yield f"{value:.1e}"
        else:
            yield "0"


class SegmentLimits(BaseModel, extra="forbid", frozen=True):
    """Limits for the mean over the rows of a segment, and for its worst row."""

    mean: dict[Measure, Limit] = {}
    worst: dict[Measure, Limit] = {}

    def each(self) -> Iterator[tuple[How, Measure, float]]:
        """Every limit: the figure it judges, its measure and its value."""
        for name, limit in self.worst.items():
            yield "worst", name, limit
        for name, limit in self.mean.items():
            yield "mean", name, limit


class EndLimits(BaseModel, extra="forbid", frozen=True):
    """Shares of puzzles, a share of the reference's mean segments, and percentage points of solves.

    The losses alone are not enough: two engines that solve nothing lose nothing. If most final
    answers differ, the rounding of the engine decides them and not the model.
    """

    different_final_answers: Limit | None = None
    different_halts: Limit | None = None
    more_segments: Limit | None = None
    exact_loss: Limit | None = None
    proven_loss: Limit | None = None


class Gates(BaseModel, extra="forbid", frozen=True):
    every_segment: SegmentLimits = SegmentLimits()
    first_segment: SegmentLimits = SegmentLimits()
    end: EndLimits = EndLimits()


GATES_FILE = Path(__file__).with_name("gates.json")
GATES = TypeAdapter(dict[str, dict[Kind, Gates]]).validate_json(GATES_FILE.read_bytes())
"""The gates by precision and kind of reference."""
GOLDEN_FP32 = GATES["fp32"]["golden"]
LOGIT_TOLERANCE = GOLDEN_FP32.first_segment.worst["logit_gap"]
"""For float32 sums in another order; a wrong operator is off by far more.

Later segments may differ by five times as much: traces recorded with AVX2 differ by 1.5e-4 after
12 segments with AVX-512, and the answers are the same.
"""


@dataclass(frozen=True, kw_only=True)
class Break:
    """A limit that does not hold. `segment` counts from 1, or is None for limits on results."""

    gate: str
    value: float
    limit: float
    segment: int | None = None
    puzzle: int | None = None
    puzzle_id: int | None = None

    def __str__(self) -> str:
        where = "at the end"
        if self.segment is not None:
            where = f"in segment {self.segment}"
        if self.puzzle is not None:
            where += f", puzzle {self.puzzle} (row {self.puzzle_id} of the puzzle table)"
        return f"{self.gate} {where}: {self.value:.4g} where {self.limit:g} is allowed"


def breaks(report: ParityReport, gates: Gates = GOLDEN_FP32) -> list[Break]:
    """Every limit that does not hold, with the first segment that breaks it.

    Sorted by segment; limits of the end come last.
    """
    found = [
        *_segment_breaks(report, gates.first_segment, last=1),
        *_segment_breaks(report, gates.every_segment, last=report.num_segments),
    ]
    found.sort(key=lambda one: one.segment or 0)
    found.extend(_share_breaks(report, gates.end))
    found.extend(_solve_breaks(report, gates.end))
    return found


def not_judged(report: ParityReport, gates: Gates) -> list[str]:
    """Measures that have a gate but no values, because an engine keeps its carry to itself."""
    limits = (*gates.first_segment.each(), *gates.every_segment.each())
    limited = {name for _, name, _ in limits}
    return sorted(limited - set(report.columns))


def undecided(report: ParityReport, gates: Gates) -> list[str]:
    """Losses that hold their gate although so few puzzles could also hide a larger loss."""
    found: list[str] = []
    for name, counts, limit in _limited_losses(report, gates.end):
        _, high = counts.interval_points
        is_few = counts.num_puzzles < ENOUGH_PUZZLES
        if is_few and counts.loss_points <= limit < high:
            found.append(name)
    return found


def _segment_breaks(report: ParityReport, limits: SegmentLimits, last: int) -> Iterator[Break]:
    for how, name, limit in limits.each():
        if name not in report.columns:
            continue  # see `not_judged`
        column = report.columns[name]
        value_S = column.by(how)[:last]
        is_known_S = column.count_S[:last] > 0
        broken = np.flatnonzero(is_known_S & (value_S > limit))
        if len(broken):
            first = int(broken[0])
            yield Break(
                gate=f"{how} {name}",
                value=float(value_S[first]),
                limit=limit,
                segment=first + 1,
                puzzle=int(column.question_S[first]),
                puzzle_id=int(column.puzzle_id_S[first]),
            )


def _share_breaks(report: ParityReport, limits: EndLimits) -> Iterator[Break]:
    shares = {
        "different_final_answers": report.num_different_final_answers / report.num_puzzles,
        "different_halts": report.num_different_halts / report.num_puzzles,
        "more_segments": report.more_segments,
    }
    allowed = limits.model_dump(exclude_none=True)
    for name, share in shares.items():
        limit = allowed.get(name, math.inf)
        if share > limit:
            yield Break(gate=f"share of {name}", value=share, limit=limit)


def _solve_breaks(report: ParityReport, limits: EndLimits) -> Iterator[Break]:
    for name, counts, limit in _limited_losses(report, limits):
        low, _ = counts.interval_points
        is_certain = counts.num_puzzles >= ENOUGH_PUZZLES or low > limit
        if is_certain and counts.loss_points > limit:
            yield Break(gate=f"points of {name}", value=counts.loss_points, limit=limit)


def _limited_losses(
    report: ParityReport, limits: EndLimits
) -> Iterator[tuple[str, SolveCounts, float]]:
    """The losses that have a gate: name, counts and limit in points."""
    if limits.exact_loss is not None:
        yield "exact_loss", report.exact, limits.exact_loss
    if limits.proven_loss is not None and report.proven is not None:
        yield "proven_loss", report.proven, limits.proven_loss
