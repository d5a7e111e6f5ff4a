"""What a comparison of two engines found, as numbers, as JSON and as one table for a terminal.

Shapes: S segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.parity.gates import GOLDEN_FP32, Gates
from hrm_edge_runtime.parity.judging import breaks
from hrm_edge_runtime.parity.tally import Column, How, Paired, Tally

MOST_SHOWN = 6
SHOWN: dict[str, How] = {
    "logit_gap": "worst",
    "logit_drift": "mean",
    "halting_gap": "worst",
    "different_cells": "mean",
    "different_answers": "mean",
    "different_stops": "mean",
    "carry_drift": "mean",
    "carry_turn": "mean",
    "carry_growth": "mean",
}
"""What a reader is shown of each measure; `measures.py` says what they are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ParityReport:
    """A candidate beside its reference; `proven` is None for a puzzle without proofs.

    `reference_halts_S` and `candidate_halts_S` count the puzzles that halted after each segment.
    """

    reference: str
    candidate: str
    puzzles: str
    num_segments: int
    columns: dict[str, Column]
    reference_halts_S: NDArray[np.int64]
    candidate_halts_S: NDArray[np.int64]
    num_different_halts: int
    exact: Paired
    proven: Paired | None

    @property
    def num_puzzles(self) -> int:
        return self.exact.num_puzzles

    @property
    def logit_gap_by_segment(self) -> tuple[float, ...]:
        """The largest absolute difference of a logit, infinite where either side is not finite."""
        return tuple(self.columns["logit_gap"].worst_S.tolist())

    @property
    def max_logit_gap(self) -> float:
        return max(self.logit_gap_by_segment)

    @property
    def max_halting_gap(self) -> float:
        """Of margins and of q_halt, which ranks votes."""
        return float(self.columns["halting_gap"].worst_S.max())

    @property
    def num_different_answers(self) -> int:
        """Counted after every segment of every puzzle."""
        return int(self.columns["different_answers"].sum_S.sum())

    @property
    def mean_segments(self) -> tuple[float, float]:
        """How long puzzles ran on the reference and on the candidate."""
        return _mean(self.reference_halts_S), _mean(self.candidate_halts_S)

    @property
    def more_segments(self) -> float:
        """How much longer puzzles run on the candidate, as a share; negative where they run shorter."""
        theirs, ours = self.mean_segments
        return ours / theirs - 1

    def passes(self, gates: Gates = GOLDEN_FP32) -> bool:
        return not breaks(self, gates)

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
            "num_different_halts": self.num_different_halts,
            "reference_halts": self.reference_halts_S.tolist(),
            "candidate_halts": self.candidate_halts_S.tolist(),
            "segments": {name: column.as_json() for name, column in self.columns.items()},
        }


def report_of(tally: Tally, *, reference: str, candidate: str, puzzles: str, proof_exists: bool) -> ParityReport:
    """The report of a finished tally, cut to the segments that some puzzle ran; refuses a tally of no puzzle."""
    if not tally.num_puzzles:
        raise ValueError("there was no puzzle to compare on; give at least one.")
    num_segments = int((tally.columns["logit_gap"].count_S > 0).sum())
    theirs_S, ours_S = (_histogram(tally, side, num_segments) for side in (0, 1))
    return ParityReport(
        reference=reference,
        candidate=candidate,
        puzzles=puzzles,
        num_segments=num_segments,
        columns={name: column.first(num_segments) for name, column in tally.columns.items()},
        reference_halts_S=theirs_S,
        candidate_halts_S=ours_S,
        num_different_halts=sum(count for (theirs, ours), count in tally.halts.items() if theirs != ours),
        exact=tally.exact,
        proven=tally.proven if proof_exists else None,
    )


def _histogram(tally: Tally, side: int, num_segments: int) -> NDArray[np.int64]:
    counts_S = np.zeros(num_segments, np.int64)
    for halted_at, count in tally.halts.items():
        counts_S[halted_at[side] - 1] += count
    return counts_S


def _mean(halts_S: NDArray[np.int64]) -> float:
    return float((halts_S * np.arange(1, len(halts_S) + 1)).sum() / halts_S.sum())


def summary_rows(report: ParityReport) -> Iterator[tuple[str, str]]:
    """The end of a comparison in a few lines, each with its title."""
    share = 100 * report.num_different_halts / report.num_puzzles
    yield "compared on", f"{report.num_puzzles} puzzles ({report.puzzles}), up to {report.num_segments} segments"
    for title, paired in (("exact solves", report.exact), ("proven solves", report.proven)):
        if paired is not None:
            yield title, _solves(paired)
    theirs, ours = report.mean_segments
    yield "mean segments", f"{theirs:.2f} → {ours:.2f}; {share:.1f} % halt after another segment"


def _solves(paired: Paired) -> str:
    low, high = paired.interval_points
    shares = (100 * solved / max(1, paired.num_puzzles) for solved in (paired.reference, paired.candidate))
    arrow = " → ".join(f"{share:.1f} %" for share in shares)
    return f"{arrow}; lost {paired.loss_points:.2f} points (95 %: {low:.2f} to {high:.2f})"


def segment_rows(report: ParityReport) -> Iterator[list[str]]:
    """A table with its head: one line for each measure, after the first segment, some and the last."""
    shown = shown_segments(report.num_segments)
    yield ["after segment", *map(str, shown)]
    counts_S = report.columns["logit_gap"].count_S
    yield ["puzzles", *(str(counts_S[segment - 1]) for segment in shown)]
    for name, how in SHOWN.items():
        if name in report.columns:
            cells = (_cell(report.columns[name], how, segment - 1) for segment in shown)
            yield [f"{name.replace('_', ' ')}, {how}", *cells]


def shown_segments(num_segments: int) -> list[int]:
    """As many as a terminal is wide."""
    by_two, by_four = ({*(base**power for power in range(12) if base**power < num_segments)} for base in (2, 4))
    return sorted({*(by_two if len(by_two) < MOST_SHOWN else by_four), num_segments})


def _cell(column: Column, how: How, index: int) -> str:
    return _number(column.by(how)[index]) if column.count_S[index] else "–"


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"
