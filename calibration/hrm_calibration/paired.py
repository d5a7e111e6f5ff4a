"""Two runs over the same puzzles: how many solves one lost against the other, with a confidence interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

Z_95 = 1.959964


class Paired(BaseModel):
    """`loss` is the share of puzzles that `ours` solves less than the reference; `low` and `high` bound it at 95 %."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_puzzles: int
    reference: float
    ours: float
    num_lost: int
    num_won: int
    loss: float
    low: float
    high: float


def paired(reference_N: NDArray[np.bool_], ours_N: NDArray[np.bool_]) -> Paired:
    """Compares puzzle by puzzle; the interval is Agresti and Min's (2005): Wald's with half a puzzle in each cell."""
    num_puzzles = len(reference_N)
    num_lost, num_won = int((reference_N & ~ours_N).sum()), int((ours_N & ~reference_N).sum())
    lost, won, total = num_lost + 0.5, num_won + 0.5, num_puzzles + 2
    middle = (lost - won) / total
    half = Z_95 * math.sqrt(max(0.0, lost + won - (lost - won) ** 2 / total)) / total
    return Paired(
        num_puzzles=num_puzzles,
        reference=float(reference_N.mean()),
        ours=float(ours_N.mean()),
        num_lost=num_lost,
        num_won=num_won,
        loss=(num_lost - num_won) / num_puzzles,
        low=middle - half,
        high=middle + half,
    )
