"""What a comparison of two engines found: numbers, JSON, a table, and the gates it breaks.

The gates are limits from one JSON file:

    {"fp32": {"golden": {"every_segment": {"worst": {"logit_gap": 1e-4}},
                         "end": {"different_halts": 0}},
              "live": ...

`golden` holds against golden traces, `live` against a running reference, `unrolled` for a graph of
the whole loop against its step graph. A segment is judged by the mean or the worst of its rows.

Shapes: S segments, M measured rows of all segments, N puzzles.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter

from hrm_edge_runtime.contract.card import interval
from hrm_host.reading import counted
from hrm_parity.measures import MEASURES, Column, Figure, Int64, Measure
from hrm_parity.outcomes import Outcomes, Paired, paired

MOST_SHOWN = 7
"""Columns of the table; as many as a terminal is wide."""
ENOUGH_PUZZLES = 2000
"""With fewer, a loss or a share of other answers breaks its gate if its whole interval does."""
Limit = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Kind = Literal["golden", "live", "unrolled"]
AtTheEnd = Literal[
    # shares of puzzles
    "different_final_answers",
    "different_halts",
    # share of the reference's mean segments
    "more_segments",
    # percentage points of solves
    "exact_loss",
    "proven_loss",
]
SegmentLimits = dict[Figure, dict[Measure, Limit]]


class ParityReport(NamedTuple):
    """How a candidate compares with its reference.

    `question_M` and `puzzle_id_M` name the puzzle of each measured row of `columns`. `theirs` are
    the outcomes of the reference, `ours` those of the candidate.
    """

    reference: str
    candidate: str
    puzzles: str
    num_running_S: Int64
    question_M: Int64
    puzzle_id_M: Int64
    columns: Mapping[Measure, Column]
    theirs: Outcomes
    ours: Outcomes
    has_proofs: bool
    num_different_final_answers: int

    @property
    def num_puzzles(self) -> int:
        return len(self.theirs.exact_N)

    @property
    def num_segments(self) -> int:
        return len(self.num_running_S)

    @property
    def max_logit_gap(self) -> float:
        return float(self.columns["logit_gap"].worst_S.max())

    @property
    def num_different_halts(self) -> int:
        return int((self.theirs.segments_N != self.ours.segments_N).sum())

    @property
    def exact(self) -> Paired:
        return paired(self.theirs.exact_N, self.ours.exact_N)

    @property
    def proven(self) -> Paired | None:
        """None if the puzzle has no proofs."""
        if not self.has_proofs:
            return None
        return paired(self.theirs.proven_N, self.ours.proven_N)

    @property
    def mean_segments(self) -> tuple[float, float]:
        return float(self.theirs.segments_N.mean()), float(self.ours.segments_N.mean())

    def at_the_end(self) -> dict[AtTheEnd, float]:
        """The figures that limits of the end judge."""
        theirs, ours = self.mean_segments
        figures: dict[AtTheEnd, float] = {
            "different_final_answers": self.num_different_final_answers / self.num_puzzles,
            "different_halts": self.num_different_halts / self.num_puzzles,
            "more_segments": ours / theirs - 1,
        }
        for name, pair in self.losses().items():
            figures[name] = 100 * pair.loss
        return figures

    def losses(self) -> dict[AtTheEnd, Paired]:
        found: dict[AtTheEnd, Paired] = {"exact_loss": self.exact}
        if self.proven is not None:
            found["proven_loss"] = self.proven
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; lists have one entry for each segment that a puzzle ran."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "puzzles": self.puzzles,
            "num_puzzles": self.num_puzzles,
            "num_segments": self.num_segments,
            "exact": _counts(self.exact),
            "proven": _counts(self.proven),
            "num_different_final_answers": self.num_different_final_answers,
            "num_different_halts": self.num_different_halts,
            "reference_halts": self._halted_after(self.theirs),
            "candidate_halts": self._halted_after(self.ours),
            "segments": {name: self._figures(column) for name, column in self.columns.items()},
        }

    def _halted_after(self, outcomes: Outcomes) -> list[int]:
        """How many puzzles halted after each segment."""
        return np.bincount(outcomes.segments_N - 1, minlength=self.num_segments).tolist()

    def _figures(self, column: Column) -> dict[str, list[Any]]:
        return {
            "mean": [short(value) for value in column.mean_S.tolist()],
            "worst": [short(value) for value in column.worst_S.tolist()],
            "puzzle": self.question_M[column.worst_row_S].tolist(),
        }


def _counts(pair: Paired | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    return {
        "reference": round(pair.reference * pair.num_puzzles),
        "candidate": round(pair.ours * pair.num_puzzles),
        "lost": pair.num_lost,
        "won": pair.num_won,
        "loss_points": short(100 * pair.loss),
        "interval_points": [short(100 * pair.low), short(100 * pair.high)],
    }


def short(value: float) -> float | str:
    """Four digits; "inf" if the value is not finite."""
    if not math.isfinite(value):
        return "inf"
    return float(f"{value:.4g}")


def summary_rows(report: ParityReport) -> Iterator[tuple[str, str]]:
    """The end of a comparison in a few lines, each with its title."""
    count = report.num_puzzles
    other_halts = report.num_different_halts / count
    other_answers = report.num_different_final_answers / count
    theirs, ours = report.mean_segments
    limit = counted(report.num_segments, "segment")
    size = f"{counted(count, 'puzzle')} ({report.puzzles}), up to {limit}"
    yield "compared on", size
    yield "exact solves", _solves(report.exact)
    if report.proven is not None:
        yield "proven solves", _solves(report.proven)
    means = f"{theirs:.2f} → {ours:.2f}"
    yield "mean segments", f"{means}; {other_halts:.1%} halt after another segment"
    yield "final answers", f"{other_answers:.1%} are others"


def _solves(pair: Paired) -> str:
    interval = f"{100 * pair.low:.2f} to {100 * pair.high:.2f}"
    loss = f"lost {100 * pair.loss:.2f} points (95 %: {interval})"
    return f"{100 * pair.reference:.1f} % → {100 * pair.ours:.1f} %; {loss}"


def segment_rows(report: ParityReport) -> Iterator[list[str]]:
    """A table with its head: one row per measure, one column per shown segment."""
    even = np.geomspace(1, report.num_segments, MOST_SHOWN)
    shown = sorted({round(segment) for segment in even.tolist()})
    yield ["after segment", *map(str, shown)]
    yield ["puzzles", *(str(report.num_running_S[segment - 1]) for segment in shown)]
    for name, how in MEASURES.items():
        if name in report.columns:
            values = report.columns[name].by(how).tolist()
            cells = [_cell(values[segment - 1]) for segment in shown]
            title = name.replace("_", " ")
            yield [f"{title}, {how}", *cells]


def _cell(value: float) -> str:
    return f"{value:.1e}" if value else "0"


class Gates(BaseModel, extra="forbid", frozen=True):
    """Limits of segments and of the end.

    The losses alone are not enough: two engines that solve nothing lose nothing. If most final
    answers differ, the rounding of the engine decides them and not the model.
    """

    every_segment: SegmentLimits = {}
    first_segment: SegmentLimits = {}
    end: dict[AtTheEnd, Limit] = {}


GATES = TypeAdapter(dict[str, dict[Kind, Gates]]).validate_json(
    Path(__file__).with_name("gates.json").read_bytes()
)
"""The gates by precision and kind of reference."""
GOLDEN_FP32 = GATES["fp32"]["golden"]
LOGIT_TOLERANCE = GOLDEN_FP32.first_segment["worst"]["logit_gap"]
"""For float32 sums in another order; a wrong operator is off by far more.

Later segments may differ by five times as much: traces recorded with AVX2 differ by 1.5e-4 after
12 segments with AVX-512, and the answers are the same.
"""


class Break(NamedTuple):
    """A limit that does not hold. `segment` counts from 1, or is None for limits of the end."""

    gate: str
    value: float
    limit: float
    segment: int | None = None
    place: str = "at the end"

    def __str__(self) -> str:
        return f"{self.gate} {self.place}: {self.value:.4g} where {self.limit:g} is allowed"


def breaks(report: ParityReport, gates: Gates = GOLDEN_FP32) -> list[Break]:
    """Every limit that does not hold, with the first segment that breaks it.

    Sorted by segment; limits of the end come last.
    """
    found = [
        *_segment_breaks(report, gates.first_segment, last=1),
        *_segment_breaks(report, gates.every_segment, last=report.num_segments),
    ]
    found.sort(key=lambda one: one.segment or 0)
    return [*found, *_end_breaks(report, gates)]


def _segment_breaks(report: ParityReport, limits: SegmentLimits, last: int) -> Iterator[Break]:
    for how, by_measure in limits.items():
        for name, limit in by_measure.items():
            if name not in report.columns:
                continue  # see `not_judged`
            column = report.columns[name]
            value_S = column.by(how)[:last]
            broken = np.flatnonzero(value_S > limit)
            if len(broken):
                first = int(broken[0])
                row = column.worst_row_S[first]
                puzzle = f"puzzle {report.question_M[row]}"
                yield Break(
                    gate=f"{how} {name}",
                    value=float(value_S[first]),
                    limit=limit,
                    segment=first + 1,
                    place=f"in segment {first + 1}, {puzzle} "
                    f"(row {report.puzzle_id_M[row]} of the puzzle table)",
                )


def _end_breaks(report: ParityReport, gates: Gates) -> Iterator[Break]:
    losses = report.losses()
    intervals = _intervals(report)
    for name, value in report.at_the_end().items():
        limit = gates.end.get(name, math.inf)
        unit = "points" if name in losses else "share"
        low, _ = intervals.get(name, (value, value))
        if min(low, value) > limit:
            yield Break(gate=f"{unit} of {name}", value=value, limit=limit)


def _intervals(report: ParityReport) -> dict[AtTheEnd, tuple[float, float]]:
    """The bounds at 95 % of what chance decides; empty if the puzzles are enough."""
    found: dict[AtTheEnd, tuple[float, float]] = {}
    if report.num_puzzles >= ENOUGH_PUZZLES:
        return found
    others = report.num_different_final_answers / report.num_puzzles
    found["different_final_answers"] = interval(others, report.num_puzzles)
    for name, pair in report.losses().items():
        found[name] = (100 * pair.low, 100 * pair.high)
    return found


def not_judged(report: ParityReport, gates: Gates) -> list[str]:
    """Measures that have a gate but no values, because an engine keeps its carry to itself."""
    limited: set[Measure] = set()
    for limits in (gates.first_segment, gates.every_segment):
        for by_measure in limits.values():
            limited.update(by_measure)
    return sorted(limited - set(report.columns))


def undecided(report: ParityReport, gates: Gates) -> list[str]:
    """Figures at the end that so few puzzles leave on either side of their limit."""
    found: list[str] = []
    for name, (low, high) in _intervals(report).items():
        if low <= gates.end.get(name, math.inf) < high:
            found.append(name)
    return found
