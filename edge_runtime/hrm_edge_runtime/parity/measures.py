"""How far two engines are apart after one segment, each measure one number for each row.

Shapes: B rows, T tokens, V vocabulary, N positions, D hidden.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hrm_edge_runtime.engines.engine import Engine, Float32, StepOutput

Float64 = NDArray[np.float64]

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
    ours_BX, theirs_BX = (_flat(_logits(output)) for output in (candidate, reference))
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
    ours_BX, theirs_BX = (_carry(engine, len(previous_drift_B)) for engine in (candidate, reference))
    with np.errstate(all="ignore"):
        drift_B = _drift_B(ours_BX, theirs_BX)
        norms_B = np.linalg.norm(ours_BX, axis=1) * np.linalg.norm(theirs_BX, axis=1)
        cosine_B = (ours_BX * theirs_BX).sum(axis=1) / np.maximum(norms_B, np.finfo(np.float64).tiny)
        growth_B = np.log2(drift_B / previous_drift_B)
    is_known_B = (previous_drift_B > 0) & np.isfinite(previous_drift_B) & (drift_B > 0)
    return {
        "carry_drift": drift_B,
        "carry_turn": np.maximum(_sound(1 - cosine_B), 0),
        "carry_growth": np.where(is_known_B, growth_B, np.nan),
    }


def _logits(output: StepOutput) -> Float32:
    if output.logits_BTV is None:
        raise ValueError("the engine hands out no logits, which parity compares: build it with want_logits=True.")
    return output.logits_BTV


def _carry(engine: HandsOutCarry, num_active: int) -> Float64:
    high_BND, low_BND = engine.read_carry(num_active)
    return np.concatenate((_flat(high_BND), _flat(low_BND)), axis=1)


def _flat(rows: Float32) -> Float64:
    return rows.reshape(len(rows), -1).astype(np.float64)


def _drift_B(ours_BX: Float64, theirs_BX: Float64) -> Float64:
    norm_B = np.linalg.norm(theirs_BX, axis=1)
    return _sound(np.linalg.norm(ours_BX - theirs_BX, axis=1) / np.maximum(norm_B, np.finfo(np.float64).tiny))


def _sound(value_B: NDArray[np.floating]) -> Float64:
    return np.where(np.isfinite(value_B), value_B, np.inf).astype(np.float64)
