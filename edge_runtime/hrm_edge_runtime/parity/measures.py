"""How far two engines are apart: one number for each row after a segment, and their sums over a whole comparison.

Shapes: B rows, S segments, T tokens, V vocabulary, N positions, D hidden, X everything else in one axis.
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
    "logit_gap", "logit_drift", "halting_gap", "different_cells", "different_answers", "different_stops",
    "carry_drift", "carry_growth",
]  # fmt: skip
MEASURES: dict[Measure, tuple[How, str]] = {
    "logit_gap": (
        "worst",
        "largest difference of a logit, absolute up to logits of 16, beyond in proportion to them",
    ),
    "logit_drift": ("mean", "norm of the difference of all logits, relative to the reference's"),
    "halting_gap": (
        "worst",
        "absolute difference of the halting margin or of q_halt, whichever is larger",
    ),
    "different_cells": ("mean", "share of cells with another answer"),
    "different_answers": ("mean", "1 where any cell is answered otherwise"),
    "different_stops": ("mean", "1 where one side would stop and the other go on"),
    "carry_drift": ("mean", "norm of the difference of both carries, relative to the reference's"),
    "carry_growth": ("mean", "doublings of carry_drift since the segment before"),
}
"""Each measure with the figure that reports show of it, and its meaning."""
LARGE = 16.0  # of a logit; the published models' stay below, relational models of grids say 50
TINY = float(np.finfo(np.float64).tiny)
Z_95 = 1.959964


@runtime_checkable
class HandsOutCarry(Protocol):
    """An engine whose carry may be read."""

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step."""
        ...


def output_measures(
    reference: StepOutput, candidate: StepOutput, differ_B: NDArray[np.bool_]
) -> dict[str, Float64]:
    """Compare two outputs; `differ_B` marks rows where only one side stops. What is not finite counts as infinite."""
    ours_BX, theirs_BX = (_logits_BX(output) for output in (candidate, reference))
    other_cells_BT = candidate.answer_BT != reference.answer_BT
    with np.errstate(all="ignore"):
        margin_gap_B = np.abs(candidate.halt_margin_B - reference.halt_margin_B)
        # q_halt ranks votes, and a wrong halting head may cancel out of the margin
        q_halt_gap_B = np.abs(candidate.q_halt_B - reference.q_halt_B)
        return {
            "logit_gap": _sound(logit_gap_B(ours_BX, theirs_BX)),
            "logit_drift": _drift_B(ours_BX, theirs_BX),
            "halting_gap": np.maximum(_sound(margin_gap_B), _sound(q_halt_gap_B)),
            "different_cells": other_cells_BT.mean(axis=1),
            "different_answers": other_cells_BT.any(axis=1).astype(np.float64),
            "different_stops": differ_B.astype(np.float64),
        }


def logit_gap_B(
    candidate_BX: NDArray[np.floating], reference_BX: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The largest difference of a logit; of logits beyond LARGE in proportion to them, as float32 rounds them."""
    return np.abs(candidate_BX - reference_BX).max(axis=1) / np.maximum(
        1, np.abs(reference_BX).max(axis=1) / LARGE
    )


def carry_measures(
    reference: Engine, candidate: Engine, previous_drift_B: Float64
) -> dict[str, Float64]:
    """Compare two carries; empty where an engine keeps its own. `previous_drift_B` is 0 before the first segment."""
    if not isinstance(reference, HandsOutCarry) or not isinstance(candidate, HandsOutCarry):
        return {}
    num_active = len(previous_drift_B)
    drift_B = np.zeros(num_active)
    pairs = [candidate.read_carry(num_active), reference.read_carry(num_active)]
    with np.errstate(all="ignore"):
        for row in range(
            num_active
        ):  # all carries at once in float64 would be hundreds of megabytes at full size
            ours_X, theirs_X = (
                np.concatenate((high[row], low[row]), None).astype(np.float64)
                for high, low in pairs
            )
            drift_B[row] = relative_error(ours_X, theirs_X)
        growth_B = np.log2(drift_B / previous_drift_B)
    is_known_B = (previous_drift_B > 0) & np.isfinite(previous_drift_B) & (drift_B > 0)
    return {"carry_drift": drift_B, "carry_growth": np.where(is_known_B, growth_B, np.nan)}


def _logits_BX(output: StepOutput) -> Float64:
    if output.logits_BTV is None:
        raise ValueError(
            "the engine hands out no logits, which parity compares: build it with want_logits=True."
        )
    return output.logits_BTV.reshape(len(output.logits_BTV), -1).astype(np.float64)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Norm of the difference relative to the expected norm; infinite where anything is not finite."""
    with np.errstate(all="ignore"):
        (error,) = _drift_B(
            *(values.reshape(1, -1).astype(np.float64) for values in (found, expected))
        )
    return float(error)


def _drift_B(ours_BX: Float64, theirs_BX: Float64) -> Float64:
    norm_B = np.linalg.norm(theirs_BX, axis=1)
    return _sound(np.linalg.norm(ours_BX - theirs_BX, axis=1) / np.maximum(norm_B, TINY))


def _sound(value_B: NDArray[np.floating]) -> Float64:
    return np.where(np.isfinite(value_B), value_B, np.inf).astype(np.float64)


class Column:
    """One measure by segment, index 0 being segment 1: mean and worst over the rows that ran it, and whose worst."""

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
        return self.mean_S if how == "mean" else self.worst_S

    def cut(self, num_segments: int) -> None:
        """Keep the first segments alone."""
        vars(self).update({name: values_S[:num_segments] for name, values_S in vars(self).items()})

    def take(self, index_B: Int64, question_B: Int64, puzzle_id_B: Int64, value_B: Float64) -> None:
        """Add one value for each row to its segment; NaN is left out."""
        np.add.at(self.count_S, index_B, ~np.isnan(value_B))
        np.add.at(self.sum_S, index_B, np.where(np.isnan(value_B), 0.0, value_B))
        rows = np.flatnonzero(value_B > self.worst_S[index_B])
        rows = rows[
            np.argsort(value_B[rows], kind="stable")
        ]  # of several rows in one segment the last to write wins
        self.worst_S[index_B[rows]] = value_B[rows]
        self.question_S[index_B[rows]] = question_B[rows]
        self.puzzle_id_S[index_B[rows]] = puzzle_id_B[rows]

    def as_json(self) -> dict[str, list[Any]]:
        """Values to four digits, "inf" for what is not finite; null where there is no value."""
        lists = {
            "mean": [short(value) for value in self.mean_S.tolist()],
            "worst": [short(value) for value in self.worst_S.tolist()],
            "puzzle": self.question_S.tolist(),
        }
        return {
            name: [
                value if count else None
                for value, count in zip(values, self.count_S.tolist(), strict=True)
            ]
            for name, values in lists.items()
        }


@dataclass(kw_only=True)
class SolveCounts:
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
        """Percentage points, as its interval at 95 %; negative where the candidate gains."""
        return 100 * (self.lost - self.won) / max(1, self.num_puzzles)

    @property
    def interval_points(self) -> tuple[float, float]:
        low, high = loss_interval(self.lost, self.won, self.num_puzzles)
        return 100 * low, 100 * high

    def as_json(self) -> dict[str, Any]:
        counts = {
            "reference": self.reference,
            "candidate": self.candidate,
            "lost": self.lost,
            "won": self.won,
        }
        interval = [short(bound) for bound in self.interval_points]
        return {**counts, "loss_points": short(self.loss_points), "interval_points": interval}


def loss_interval(num_lost: int, num_won: int, num_puzzles: int) -> tuple[float, float]:
    """95 % confidence interval of the share lost: Wald's with half a puzzle in each cell (Agresti, Min 2005).

    So no difference seen is not taken for certainty that there is none.
    """
    lost, won, total = num_lost + 0.5, num_won + 0.5, num_puzzles + 2
    middle = (lost - won) / total
    half = Z_95 * math.sqrt(max(0.0, lost + won - (lost - won) ** 2 / total)) / total
    return middle - half, middle + half


def short(value: float) -> float | str:
    return float(f"{value:.4g}") if math.isfinite(value) else "inf"
