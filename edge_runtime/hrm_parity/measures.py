"""How far two engines are apart: one number per row after each segment, and figures by segment.

Shapes: B rows, S segments, T tokens, V vocabulary, N positions, D hidden; M measured rows of all
segments; X is everything else flattened into one axis.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import Engine, Float32, StepOutput

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Figure = Literal["mean", "worst"]
Measure = Literal[
    "logit_gap",
    "logit_drift",
    "halting_gap",
    "different_cells",
    "different_answers",
    "different_stops",
    "carry_drift",
]
MEASURES: dict[Measure, Figure] = {
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


def output_measures(
    reference: StepOutput, candidate: StepOutput, differ_B: NDArray[np.bool_]
) -> dict[Measure, Float64]:
    """Compare two outputs. `differ_B` marks rows in which only one side stops.

    A value that is not finite counts as infinite.
    """
    ours_BX = _logits_BX(candidate)
    theirs_BX = _logits_BX(reference)
    is_other_BT = candidate.answer_BT != reference.answer_BT
    with np.errstate(all="ignore"):
        # q_halt ranks votes; the margin may hide a wrong head
        margin_gap_B = _sound(np.abs(candidate.halt_margin_B - reference.halt_margin_B))
        q_halt_gap_B = _sound(np.abs(candidate.q_halt_B - reference.q_halt_B))
        return {
            "logit_gap": _sound(logit_gap_B(ours_BX, theirs_BX)),
            "logit_drift": _drift_B(ours_BX, theirs_BX),
            "halting_gap": np.maximum(margin_gap_B, q_halt_gap_B),
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


def carry_measures(reference: Engine, candidate: Engine, num_active: int) -> dict[Measure, Float64]:
    """Compare two carries; empty if an engine keeps its own."""
    ours = candidate.read_carry(num_active)
    theirs = reference.read_carry(num_active)
    if ours is None or theirs is None:
        return {}
    drift_B = np.zeros(num_active)
    # row by row: all carries at once in float64 would take hundreds of megabytes at full size
    for row in range(num_active):
        ours_1X = _carry_1X(ours, row)
        theirs_1X = _carry_1X(theirs, row)
        with np.errstate(all="ignore"):
            drift_B[row] = _drift_B(ours_1X, theirs_1X)[0]
    return {"carry_drift": drift_B}


def _carry_1X(carry: tuple[Float32, Float32], row: int) -> Float64:
    z_high_BND, z_low_BND = carry
    both_X = np.concatenate((z_high_BND[row], z_low_BND[row]), axis=None)
    return both_X[None].astype(np.float64)


def _logits_BX(output: StepOutput) -> Float64:
    logits_BTV = output.logits_BTV
    if logits_BTV is None:
        raise ValueError(
            "the engine returns no logits, which parity compares: build it with want_logits=True."
        )
    return logits_BTV.reshape(len(logits_BTV), -1).astype(np.float64)


def _drift_B(ours_BX: Float64, theirs_BX: Float64) -> Float64:
    difference_B = np.linalg.norm(ours_BX - theirs_BX, axis=1)
    norm_B = np.linalg.norm(theirs_BX, axis=1)
    return _sound(difference_B / np.maximum(norm_B, TINY))


def _sound(value_B: NDArray[np.floating]) -> Float64:
    """Replace every value that is not finite with infinity."""
    return np.where(np.isfinite(value_B), value_B, np.inf).astype(np.float64)


class Column(NamedTuple):
    """One measure by segment: its mean, its worst value and the row of all M that has it.

    Index 0 is segment 1.
    """

    mean_S: Float64
    worst_S: Float64
    worst_row_S: Int64

    def by(self, how: Figure) -> Float64:
        if how == "mean":
            return self.mean_S
        return self.worst_S


def column_of(segment_M: Int64, value_M: Float64) -> Column:
    """The figures of each segment; every segment from 1 to the last has a row."""
    index_M = segment_M - 1
    sum_S = np.bincount(index_M, weights=value_M)
    rising_M = np.argsort(value_M, kind="stable")
    worst_row_S = np.zeros(len(sum_S), np.int64)
    # several rows share a segment, and the last one written stays: the worst
    worst_row_S[index_M[rising_M]] = rising_M
    return Column(
        mean_S=sum_S / np.bincount(index_M),
        worst_S=value_M[worst_row_S],
        worst_row_S=worst_row_S,
    )
