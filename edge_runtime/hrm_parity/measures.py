"""How far two engines are apart: one number per row after each segment, and sums by segment.

Shapes: B rows, S segments, T tokens, V vocabulary, N positions, D hidden; X is everything else
flattened into one axis.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.contract.arrays import Float32
from hrm_edge_runtime.engines.engine import Engine, StepOutput

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
How = Literal["mean", "worst"]
Measure = Literal[
    "logit_gap",
    "logit_drift",
    "halting_gap",
    "different_cells",
    "different_answers",
    "different_stops",
    "carry_drift",
]
MEASURES: dict[Measure, How] = {
    # largest absolute difference of a logit; relative to the largest logit if that exceeds LARGE
    "logit_gap": "worst",
    # norm of the difference of all logits, relative to the norm of the reference
    "logit_drift": "mean",
    # absolute difference of the halting margin or of q_halt, whichever is larger
    "halting_gap": "worst",
    # share of cells with another answer
    "different_cells": "mean",
    # 1 if any cell has another answer
    "different_answers": "mean",
    # 1 if one side would stop and the other would not
    "different_stops": "mean",
    # norm of the difference of the carries, relative to the norm of the reference
    "carry_drift": "mean",
}
"""Each measure with the figure that reports show."""
LARGE = 16.0  # logits of the published models stay below this; relational models of grids reach 50
TINY = float(np.finfo(np.float64).tiny)
Z_95 = 1.959964


@runtime_checkable
class HandsOutCarry(Protocol):
    """An engine whose carry can be read."""

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step."""
        ...


def output_measures(
    reference: StepOutput, candidate: StepOutput, differ_B: NDArray[np.bool_]
) -> dict[str, Float64]:
    """Compare two outputs. `differ_B` marks rows in which only one side stops.

    A value that is not finite counts as infinite.
    """
    ours_BX = _logits_BX(candidate)
    theirs_BX = _logits_BX(reference)
    is_other_BT = candidate.answer_BT != reference.answer_BT
    with np.errstate(all="ignore"):
        return {
            "logit_gap": _sound(logit_gap_B(ours_BX, theirs_BX)),
            "logit_drift": _drift_B(ours_BX, theirs_BX),
            "halting_gap": _halting_gap_B(reference, candidate),
            "different_cells": is_other_BT.mean(axis=1),
            "different_answers": is_other_BT.any(axis=1).astype(np.float64),
            "different_stops": differ_B.astype(np.float64),
        }


def logit_gap_B(
    candidate_BX: NDArray[np.floating], reference_BX: NDArray[np.floating]
) -> NDArray[np.floating]:
    """Largest absolute difference of a logit, scaled down if the reference exceeds LARGE.

    Float32 rounds in proportion to the value, so large logits may differ by more.
    """
    gap_B = np.abs(candidate_BX - reference_BX).max(axis=1)
    largest_B = np.abs(reference_BX).max(axis=1)
    return gap_B / np.maximum(1, largest_B / LARGE)


def _halting_gap_B(reference: StepOutput, candidate: StepOutput) -> Float64:
    """Larger gap of q_halt and margin: q_halt ranks votes; the margin may hide a wrong head."""
    margin_gap_B = np.abs(candidate.halt_margin_B - reference.halt_margin_B)
    q_halt_gap_B = np.abs(candidate.q_halt_B - reference.q_halt_B)
    return np.maximum(_sound(margin_gap_B), _sound(q_halt_gap_B))


def carry_measures(reference: Engine, candidate: Engine, num_active: int) -> dict[str, Float64]:
    """Compare two carries; empty if an engine keeps its own."""
    if not isinstance(reference, HandsOutCarry) or not isinstance(candidate, HandsOutCarry):
        return {}
    ours = candidate.read_carry(num_active)
    theirs = reference.read_carry(num_active)
    drift_B = np.zeros(num_active)
    # row by row: all carries at once in float64 would take hundreds of megabytes at full size
    for row in range(num_active):
        drift_B[row] = relative_error(_carry_X(ours, row), _carry_X(theirs, row))
    return {"carry_drift": drift_B}


def _carry_X(carry: tuple[Float32, Float32], row: int) -> Float64:
    z_high_BND, z_low_BND = carry
    both_X = np.concatenate((z_high_BND[row], z_low_BND[row]), axis=None)
    return both_X.astype(np.float64)


def _logits_BX(output: StepOutput) -> Float64:
    logits_BTV = output.logits_BTV
    if logits_BTV is None:
        raise ValueError(
            "the engine returns no logits, which parity compares: build it with want_logits=True."
        )
    return logits_BTV.reshape(len(logits_BTV), -1).astype(np.float64)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Norm of the difference relative to the expected norm; infinite if a value is not finite."""
    found_BX = found.reshape(1, -1).astype(np.float64)
    expected_BX = expected.reshape(1, -1).astype(np.float64)
    with np.errstate(all="ignore"):
        error_B = _drift_B(found_BX, expected_BX)
    return float(error_B[0])


def _drift_B(ours_BX: Float64, theirs_BX: Float64) -> Float64:
    difference_B = np.linalg.norm(ours_BX - theirs_BX, axis=1)
    norm_B = np.linalg.norm(theirs_BX, axis=1)
    return _sound(difference_B / np.maximum(norm_B, TINY))


def _sound(value_B: NDArray[np.floating]) -> Float64:
    """Replace every value that is not finite with infinity."""
    return np.where(np.isfinite(value_B), value_B, np.inf).astype(np.float64)


class Column:
    """One measure by segment: its mean, its worst value and the puzzle with the worst value.

    Index 0 is segment 1. The figures of a segment cover the rows that ran it.
    """

    def __init__(self, num_segments: int) -> None:
        self.count_S = np.zeros(num_segments, np.int64)
        self.sum_S = np.zeros(num_segments)
        self.worst_S = np.full(num_segments, -np.inf)
        self.question_S = np.full(num_segments, -1, np.int64)
        self.puzzle_id_S = np.full(num_segments, -1, np.int64)

    @property
    def mean_S(self) -> Float64:
        return self.sum_S / np.maximum(self.count_S, 1)

    def by(self, how: How) -> Float64:
        if how == "mean":
            return self.mean_S
        return self.worst_S

    def cut(self, num_segments: int) -> None:
        """Keep only the first segments."""
        self.count_S = self.count_S[:num_segments]
        self.sum_S = self.sum_S[:num_segments]
        self.worst_S = self.worst_S[:num_segments]
        self.question_S = self.question_S[:num_segments]
        self.puzzle_id_S = self.puzzle_id_S[:num_segments]

    def take(self, index_B: Int64, question_B: Int64, puzzle_id_B: Int64, value_B: Float64) -> None:
        """Add one value per row to its segment; NaN does not count."""
        is_missing_B = np.isnan(value_B)
        np.add.at(self.count_S, index_B, ~is_missing_B)
        np.add.at(self.sum_S, index_B, np.where(is_missing_B, 0.0, value_B))
        rows = np.flatnonzero(value_B > self.worst_S[index_B])
        # if several rows share a segment, the last one written wins: write the worst one last
        rows = rows[np.argsort(value_B[rows], kind="stable")]
        segments = index_B[rows]
        self.worst_S[segments] = value_B[rows]
        self.question_S[segments] = question_B[rows]
        self.puzzle_id_S[segments] = puzzle_id_B[rows]

    def as_json(self) -> dict[str, list[Any]]:
        """Values with four digits, "inf" if a value is not finite, null if there is no value."""
        mean = [short(value) for value in self.mean_S.tolist()]
        worst = [short(value) for value in self.worst_S.tolist()]
        return {
            "mean": self._or_null(mean),
            "worst": self._or_null(worst),
            "puzzle": self._or_null(self.question_S.tolist()),
        }

    def _or_null(self, values: list[Any]) -> list[Any]:
        """The values, with None for each segment that no row ran."""
        known: list[Any] = []
        for value, count in zip(values, self.count_S.tolist(), strict=True):
            known.append(value if count else None)
        return known


@dataclass(kw_only=True)
class SolveCounts:
    """Puzzles that each side solves. Only the reference solves `lost`, only the candidate `won`."""

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
        """Percentage points that the candidate loses; negative if it gains."""
        return 100 * (self.lost - self.won) / max(1, self.num_puzzles)

    @property
    def interval_points(self) -> tuple[float, float]:
        """95 % confidence interval of `loss_points`."""
        low, high = loss_interval(self.lost, self.won, self.num_puzzles)
        return 100 * low, 100 * high

    def as_json(self) -> dict[str, Any]:
        low, high = self.interval_points
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "lost": self.lost,
            "won": self.won,
            "loss_points": short(self.loss_points),
            "interval_points": [short(low), short(high)],
        }


def loss_interval(num_lost: int, num_won: int, num_puzzles: int) -> tuple[float, float]:
    """95 % confidence interval of the share lost, by Agresti and Min (2005).

    It is Wald's interval with half a puzzle added to each cell. Without the added halves, no
    difference seen would count as proof that there is none.
    """
    lost = num_lost + 0.5
    won = num_won + 0.5
    total = num_puzzles + 2
    middle = (lost - won) / total
    variance = lost + won - (lost - won) ** 2 / total
    half = Z_95 * math.sqrt(max(0.0, variance)) / total
    return middle - half, middle + half


def short(value: float) -> float | str:
    """Four digits; "inf" if the value is not finite."""
    if not math.isfinite(value):
        return "inf"
    return float(f"{value:.4g}")
