"""What a comparison of two engines found, as numbers, as JSON and as one table, and where it breaks its gates.

Shapes: B rows, S segments. Memory does not grow with the number of puzzles. The gates are limits from one JSON file, as
    {"fp32": {"golden": {"every_segment": {"worst": {"logit_gap": 1e-4}}, "end": {"different_halts": 0}}, "live": ...
against golden traces and a live reference: by the mean or the worst row of a segment, and at the end (`EndLimits`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from hrm_edge_runtime.contract.arrays import Int32
from hrm_edge_runtime.parity.measures import (
    MEASURES,
    Column,
    Float64,
    How,
    Int64,
    Measure,
    SolveCounts,
)
from hrm_edge_runtime.parity.options import DEFAULT_FILE

MOST_SHOWN = 6
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Kind = Literal["golden", "live"]
ENOUGH_PUZZLES = 2000
"""From here on a measured loss counts as it is; with fewer only one that the confidence interval leaves no doubt of."""


class End(NamedTuple):
    """How one side ended with one puzzle: after which segment, with which answer, and whether that was right."""

    halted_at: int
    answer_T: Int32
    is_exact: bool
    is_proven: bool


@dataclass(kw_only=True, eq=False)
class ParityReport:
    """A candidate beside its reference; `proven` is None for a puzzle without proofs.

    `halts_SS` counts puzzles by the segment after which the reference (row) and the candidate (column) halted.
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
        self.num_different_final_answers += not np.array_equal(
            reference.answer_T, candidate.answer_T
        )
        self.exact.count(reference.is_exact, candidate.is_exact)
        if self.proven is not None:
            self.proven.count(reference.is_proven, candidate.is_proven)

    def finished(self) -> "ParityReport":
        """The report cut to the segments that some puzzle ran; refuses one of no puzzle."""
        if not self.num_puzzles:
            raise ValueError("there was no puzzle to compare on; give at least one.")
        last = int((self.columns["logit_gap"].count_S > 0).sum())
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
        theirs, ours = (
            float(np.average(segment_S, weights=self.halts_SS.sum(axis=axis))) for axis in (1, 0)
        )
        return theirs, ours

    @property
    def more_segments(self) -> float:
        """A share of the reference's; negative where puzzles run shorter on the candidate."""
        theirs, ours = self.mean_segments
        return ours / theirs - 1

    def as_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; lists have one entry for each segment that a puzzle ran."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "puzzles": self.puzzles,
            "num_puzzles": self.num_puzzles,
            "num_segments": self.num_segments,
            "exact": self.exact.as_json(),
            "proven": None if self.proven is None else self.proven.as_json(),
            "num_different_final_answers": self.num_different_final_answers,
            "num_different_halts": self.num_different_halts,
            "reference_halts": self.reference_halts_S.tolist(),
            "candidate_halts": self.candidate_halts_S.tolist(),
            "segments": {name: column.as_json() for name, column in self.columns.items()},
        }


def summary_rows(report: ParityReport) -> Iterator[tuple[str, str]]:
    """The end of a comparison in a few lines, each with its title."""
    counted = (report.num_different_halts, report.num_different_final_answers)
    other_halts, other_answers = (f"{count / report.num_puzzles:.1%}" for count in counted)
    yield (
        "compared on",
        f"{report.num_puzzles} puzzles ({report.puzzles}), up to {report.num_segments} segments",
    )
    for title, counts in (("exact solves", report.exact), ("proven solves", report.proven)):
        if counts is not None:
            low, high = counts.interval_points
            shares = (
                100 * solved / max(1, counts.num_puzzles)
                for solved in (counts.reference, counts.candidate)
            )
            arrow = " → ".join(f"{share:.1f} %" for share in shares)
            yield (
                title,
                f"{arrow}; lost {counts.loss_points:.2f} points (95 %: {low:.2f} to {high:.2f})",
            )
    theirs, ours = report.mean_segments
    yield "mean segments", f"{theirs:.2f} → {ours:.2f}; {other_halts} halt after another segment"
    yield "final answers", f"{other_answers} are others"


def segment_rows(report: ParityReport) -> Iterator[list[str]]:
    """A table with its head: one line for each measure, after the first segment, some and the last."""
    last = report.num_segments
    by_two, by_four = (
        [base**power for power in range(12) if base**power < last] for base in (2, 4)
    )
    shown = [
        *(by_two if len(by_two) < MOST_SHOWN else by_four),
        last,
    ]  # as many as a terminal is wide
    yield ["after segment", *map(str, shown)]
    counts_S = report.columns["logit_gap"].count_S
    yield ["puzzles", *(str(counts_S[segment - 1]) for segment in shown)]
    for name, (how, _) in MEASURES.items():
        if name in report.columns:
            column, cells = report.columns[name], list[str]()
            for segment in shown:
                value = column.by(how)[segment - 1]
                text = f"{value:.1e}" if value else "0"
                cells.append(text if column.count_S[segment - 1] else "–")
            yield [f"{name.replace('_', ' ')}, {how}", *cells]


class SegmentLimits(BaseModel, extra="forbid", frozen=True):
    """Limits for the mean over the rows of a segment, and for its worst row."""

    mean: dict[Measure, Limit] = {}
    worst: dict[Measure, Limit] = {}

    def each(self) -> Iterator[tuple[How, Measure, float]]:
        """Every limit, with what it is judged by and which measure it is for."""
        by: dict[How, dict[Measure, Limit]] = {"worst": self.worst, "mean": self.mean}
        return ((how, name, limit) for how, limits in by.items() for name, limit in limits.items())


class EndLimits(BaseModel, extra="forbid", frozen=True):
    """Shares of puzzles, a share of the reference's mean segments, and percentage points of solves.

    Where most final answers differ, it is the engine that answers and not the model, even if rounding that the model
    amplifies explains each: two engines that solve nothing would lose nothing.
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


def read_gates(file: Path, precision: str, kind: Kind) -> Gates:
    """The gates of a precision; raises ValueError for a file without them or with a name it does not know."""
    try:
        known = TypeAdapter(dict[str, dict[Kind, Gates]]).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else error
        raise ValueError(
            f"{file} is no file of gates ({reason}); start from {DEFAULT_FILE}."
        ) from error
    if kind not in known.get(precision, ()):
        raise ValueError(f"{file} has no {kind} gates for {precision!r}; add them.")
    return known[precision][kind]


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
        whose = (
            ""
            if self.puzzle is None
            else f", puzzle {self.puzzle} (row {self.puzzle_id} of the puzzle table)"
        )
        return f"{self.gate} {where}{whose}: {self.value:.4g} where {self.limit:g} is allowed"


def breaks(report: ParityReport, gates: Gates = GOLDEN_FP32) -> list[Break]:
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
    shares = {
        "different_final_answers": report.num_different_final_answers / report.num_puzzles,
        "different_halts": report.num_different_halts / report.num_puzzles,
        "more_segments": report.more_segments,
    }
    solves = {"exact_loss": report.exact, "proven_loss": report.proven}
    for name, limit in limits.model_dump(exclude_none=True).items():
        counts = solves.get(name)
        if name in shares and shares[name] > limit:
            yield Break(gate=f"share of {name}", value=shares[name], limit=limit)
        if counts is None or not (
            counts.num_puzzles >= ENOUGH_PUZZLES or counts.interval_points[0] > limit
        ):
            continue
        if counts.loss_points > limit:
            yield Break(gate=f"points of {name}", value=counts.loss_points, limit=limit)
