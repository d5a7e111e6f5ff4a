"""What two engines differed by, summed up as it comes: sums and worst cases by segment, ends by puzzle.

Shapes: B rows, S segments. Memory does not grow with the number of puzzles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.parity.interval import loss_interval

How = Literal["mean", "worst"]
HOW: tuple[How, ...] = ("worst", "mean")


class End(NamedTuple):
    """How one side ended with one puzzle: after which segment, and whether its answer was right."""

    halted_at: int
    is_exact: bool
    is_proven: bool


@dataclass(kw_only=True)
class Paired:
    """Puzzles solved by each side, counted in pairs: `lost` by the candidate alone, `won` by it alone."""

    num_puzzles: int = 0
    reference: int = 0
    candidate: int = 0
    lost: int = 0
    won: int = 0

    def count(self, reference: bool, candidate: bool) -> None:
        self.num_puzzles += 1
        self.reference += reference
        self.candidate += candidate
        self.lost += reference and not candidate
        self.won += candidate and not reference

    @property
    def loss_points(self) -> float:
        """Percentage points of solves that the candidate loses; negative where it gains."""
        return 100 * (self.lost - self.won) / max(1, self.num_puzzles)

    @property
    def interval_points(self) -> tuple[float, float]:
        """95 % confidence interval of the loss, see `interval`."""
        low, high = loss_interval(self.lost, self.won, self.num_puzzles)
        return 100 * low, 100 * high

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval_points
        counts = {"reference": self.reference, "candidate": self.candidate, "lost": self.lost, "won": self.won}
        return {**counts, "loss_points": _short(self.loss_points), "interval_points": [_short(low), _short(high)]}


@dataclass(kw_only=True, eq=False)
class Column:
    """One measure by segment, index 0 being segment 1: mean and worst over the rows that ran it, and whose worst."""

    count_S: NDArray[np.int64]
    sum_S: NDArray[np.float64]
    worst_S: NDArray[np.float64]
    question_S: NDArray[np.int64]
    puzzle_id_S: NDArray[np.int64]

    @classmethod
    def empty(cls, num_segments: int) -> Column:
        return cls(
            count_S=np.zeros(num_segments, np.int64),
            sum_S=np.zeros(num_segments),
            worst_S=np.full(num_segments, -np.inf),
            question_S=np.full(num_segments, -1, np.int64),
            puzzle_id_S=np.full(num_segments, -1, np.int64),
        )

    @property
    def mean_S(self) -> NDArray[np.float64]:
        return self.sum_S / np.maximum(self.count_S, 1)

    def by(self, how: How) -> NDArray[np.float64]:
        return self.mean_S if how == "mean" else self.worst_S

    def first(self, num_segments: int) -> Column:
        """The same, of so many segments."""
        return Column(
            count_S=self.count_S[:num_segments],
            sum_S=self.sum_S[:num_segments],
            worst_S=self.worst_S[:num_segments],
            question_S=self.question_S[:num_segments],
            puzzle_id_S=self.puzzle_id_S[:num_segments],
        )

    def take(
        self,
        index_B: NDArray[np.integer],
        question_B: NDArray[np.int64],
        puzzle_id_B: NDArray[np.int64],
        value_B: NDArray[np.float64],
    ) -> None:
        """Adds one value for each row, into its segment; a value that is not a number is left out."""
        np.add.at(self.count_S, index_B, ~np.isnan(value_B))
        np.add.at(self.sum_S, index_B, np.where(np.isnan(value_B), 0.0, value_B))
        rows = np.flatnonzero(value_B > self.worst_S[index_B])
        rows = rows[np.argsort(value_B[rows], kind="stable")]  # of several rows in one segment the last to write wins
        for target_S, source_B in (
            (self.worst_S, value_B),
            (self.question_S, question_B),
            (self.puzzle_id_S, puzzle_id_B),
        ):
            target_S[index_B[rows]] = source_B[rows]

    def as_json(self) -> dict[str, list[Any]]:
        """Values to four digits, "inf" for what is not finite; null where there is no value."""
        known_S = (self.count_S > 0).tolist()
        lists = {
            "mean": [_short(value) for value in self.mean_S.tolist()],
            "worst": [_short(value) for value in self.worst_S.tolist()],
            "puzzle": self.question_S.tolist(),
        }
        return {
            name: [value if known else None for value, known in zip(values, known_S, strict=True)]
            for name, values in lists.items()
        }


@dataclass(eq=False)
class Tally:
    """The whole of a comparison; `halts` count how often the (reference, candidate) halted after those segments."""

    num_segments: int
    columns: dict[str, Column] = field(default_factory=dict[str, Column])
    halts: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    exact: Paired = field(default_factory=Paired)
    proven: Paired = field(default_factory=Paired)

    @property
    def num_puzzles(self) -> int:
        return self.exact.num_puzzles

    def take(
        self,
        segment_B: NDArray[np.int32],
        question_B: NDArray[np.int64],
        puzzle_id_B: NDArray[np.int64],
        measures: Mapping[str, NDArray[np.float64]],
    ) -> None:
        for name, value_B in measures.items():
            column = self.columns.setdefault(name, Column.empty(self.num_segments))
            column.take(segment_B - 1, question_B, puzzle_id_B, value_B)

    def finish(self, reference: End, candidate: End) -> None:
        key = (reference.halted_at, candidate.halted_at)
        self.halts[key] = self.halts.get(key, 0) + 1
        self.exact.count(reference.is_exact, candidate.is_exact)
        self.proven.count(reference.is_proven, candidate.is_proven)


def _short(value: float) -> float | str:
    return float(f"{value:.4g}") if math.isfinite(value) else "inf"
