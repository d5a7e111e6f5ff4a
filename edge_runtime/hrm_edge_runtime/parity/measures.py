"""How far two engines are apart after one segment, each measure one number for each row.

Shapes: B rows, T tokens, V vocabulary, N positions, D hidden.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import Engine, Float32, StepOutput

Float64 = NDArray[np.float64]

TINY = float(np.finfo(np.float64).tiny)
MEASURES = {
    "logit_gap": "largest absolute difference of a logit",
    "logit_drift": "norm of the difference of all logits, relative to the reference's",
    "halting_gap": "absolute difference of the halting margin or of q_halt, whichever is larger",
    "different_cells": "share of cells with another answer",
    "different_answers": "1 where any cell is answered otherwise",
    "different_stops": "1 where one side would stop and the other go on",
    "carry_drift": "norm of the difference of both carries, relative to the reference's",
    "carry_turn": "1 - cosine of the angle between the two sides' carries",
    "carry_growth": "doublings of carry_drift since the segment before",
}


@runtime_checkable
class HandsOutCarry(Protocol):
    """An engine whose carry may be looked at."""

    def read_carry(self, num_active: int) -> tuple[Float32, Float32]:
        """`z_high_BND` and `z_low_BND` after the last step."""
        ...


def output_measures(reference: StepOutput, candidate: StepOutput, differ_B: NDArray[np.bool_]) -> dict[str, Float64]:
    """All that the outputs tell; `differ_B` says where the stops differ. What is not finite counts as infinite."""
    ours_BX, theirs_BX = (_logits_BX(output) for output in (candidate, reference))
    other_cells_BT = candidate.answer_BT != reference.answer_BT
    with np.errstate(all="ignore"):
        margin_gap_B = np.abs(candidate.halt_margin_B - reference.halt_margin_B)
        # q_halt ranks votes, and a wrong halting head may cancel out of the margin
        q_halt_gap_B = np.abs(candidate.q_halt_B - reference.q_halt_B)
        return {
            "logit_gap": _sound(np.abs(ours_BX - theirs_BX).max(axis=1)),
            "logit_drift": _drift_B(ours_BX, theirs_BX),
            "halting_gap": np.maximum(_sound(margin_gap_B), _sound(q_halt_gap_B)),
            "different_cells": other_cells_BT.mean(axis=1),
            "different_answers": other_cells_BT.any(axis=1).astype(np.float64),
            "different_stops": differ_B.astype(np.float64),
        }


def carry_measures(reference: Engine, candidate: Engine, previous_drift_B: Float64) -> dict[str, Float64]:
    """All that the carries tell; nothing where an engine keeps its own. `previous_drift_B` is 0 before the first."""
    if not isinstance(reference, HandsOutCarry) or not isinstance(candidate, HandsOutCarry):
        return {}
    drift_B, turn_B = _drift_and_turn(reference, candidate, len(previous_drift_B))
    with np.errstate(all="ignore"):
        growth_B = np.log2(drift_B / previous_drift_B)
    is_known_B = (previous_drift_B > 0) & np.isfinite(previous_drift_B) & (drift_B > 0)
    return {
        "carry_drift": drift_B,
        "carry_turn": turn_B,
        "carry_growth": np.where(is_known_B, growth_B, np.nan),
    }


def _logits_BX(output: StepOutput) -> Float64:
    if output.logits_BTV is None:
        raise ValueError("the engine hands out no logits, which parity compares: build it with want_logits=True.")
    return output.logits_BTV.reshape(len(output.logits_BTV), -1).astype(np.float64)


def _drift_and_turn(reference: HandsOutCarry, candidate: HandsOutCarry, num_active: int) -> tuple[Float64, Float64]:
    """Row by row, since all carries at once in float64 would be hundreds of megabytes at full size."""
    drift_B, turn_B = np.zeros(num_active), np.zeros(num_active)
    pairs = [candidate.read_carry(num_active), reference.read_carry(num_active)]
    for row in range(num_active):
        ours_X, theirs_X = (np.concatenate((_flat(high[row]), _flat(low[row]))) for high, low in pairs)
        with np.errstate(all="ignore"):
            norms = np.linalg.norm(ours_X) * np.linalg.norm(theirs_X)
            turn_B[row] = 1 - (ours_X @ theirs_X) / np.maximum(norms, TINY)
        (drift_B[row],) = _drift_B(ours_X[None], theirs_X[None])
    return drift_B, np.maximum(_sound(turn_B), 0)  # rounding may turn equal ones by -1e-16


def _flat(values: Float32) -> Float64:
    return values.astype(np.float64).ravel()


def _drift_B(ours_BX: Float64, theirs_BX: Float64) -> Float64:
    norm_B = np.linalg.norm(theirs_BX, axis=1)
    return _sound(np.linalg.norm(ours_BX - theirs_BX, axis=1) / np.maximum(norm_B, TINY))


def _sound(value_B: NDArray[np.floating]) -> Float64:
    return np.where(np.isfinite(value_B), value_B, np.inf).astype(np.float64)
