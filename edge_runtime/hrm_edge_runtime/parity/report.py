"""What a comparison of two engines found, as numbers, as JSON and as one table for a terminal.

Shapes: B rows, S segments. Memory does not grow with the number of puzzles.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from hrm_edge_runtime.parity.measures import MEASURES, Column, Float64, Int64, SolveCounts

MOST_SHOWN = 6


class End(NamedTuple):
    """How one side ended with one puzzle: after which segment, and whether its answer was right."""

    halted_at: int
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

    def add_segment(
        self, segment_B: Int64, question_B: Int64, puzzle_id_B: Int64, measures: Mapping[str, Float64]
    ) -> None:
        for name, value_B in measures.items():
            column = self.columns.setdefault(name, Column(self.num_segments))
            column.take(segment_B - 1, question_B, puzzle_id_B, value_B)

    def add_end(self, reference: End, candidate: End) -> None:
        self.halts_SS[reference.halted_at - 1, candidate.halted_at - 1] += 1
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
    def logit_gap_by_segment(self) -> tuple[float, ...]:
        """The largest absolute difference of a logit, infinite where either side is not finite."""
        return tuple(self.columns["logit_gap"].worst_S.tolist())

    @property
    def max_logit_gap(self) -> float:
        return float(self.columns["logit_gap"].worst_S.max())

    @property
    def max_halting_gap(self) -> float:
        """Of margins and of q_halt, which ranks votes."""
        return float(self.columns["halting_gap"].worst_S.max())

    @property
    def num_different_answers(self) -> int:
        """Counted after every segment of every puzzle."""
        return int(self.columns["different_answers"].sum_S.sum())

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
        """How long puzzles ran on the reference and on the candidate."""
        segment_S = np.arange(1, self.num_segments + 1)
        theirs, ours = (float(np.average(segment_S, weights=self.halts_SS.sum(axis=axis))) for axis in (1, 0))
        return theirs, ours

    @property
    def more_segments(self) -> float:
        """How much longer puzzles run on the candidate, as a share; negative where they run shorter."""
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
            "num_different_halts": self.num_different_halts,
            "reference_halts": self.reference_halts_S.tolist(),
            "candidate_halts": self.candidate_halts_S.tolist(),
            "segments": {name: column.as_json() for name, column in self.columns.items()},
        }


def summary_rows(report: ParityReport) -> Iterator[tuple[str, str]]:
    """The end of a comparison in a few lines, each with its title."""
    share = 100 * report.num_different_halts / report.num_puzzles
    yield "compared on", f"{report.num_puzzles} puzzles ({report.puzzles}), up to {report.num_segments} segments"
    for title, counts in (("exact solves", report.exact), ("proven solves", report.proven)):
        if counts is not None:
            low, high = counts.interval_points
            shares = (100 * solved / max(1, counts.num_puzzles) for solved in (counts.reference, counts.candidate))
            arrow = " → ".join(f"{share:.1f} %" for share in shares)
            yield title, f"{arrow}; lost {counts.loss_points:.2f} points (95 %: {low:.2f} to {high:.2f})"
    theirs, ours = report.mean_segments
    yield "mean segments", f"{theirs:.2f} → {ours:.2f}; {share:.1f} % halt after another segment"


def segment_rows(report: ParityReport) -> Iterator[list[str]]:
    """A table with its head: one line for each measure, after the first segment, some and the last."""
    last = report.num_segments
    by_two, by_four = ([base**power for power in range(12) if base**power < last] for base in (2, 4))
    shown = [*(by_two if len(by_two) < MOST_SHOWN else by_four), last]  # as many as a terminal is wide
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
