"""Two runs over the same puzzles: how many solves one lost against the other, with a confidence interval."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from hrm_edge_runtime.parity.interval import Z_95, loss_interval


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

    @property
    def standard_error(self) -> float:
        return (self.high - self.low) / (2 * Z_95)


def paired(reference_N: NDArray[np.bool_], ours_N: NDArray[np.bool_]) -> Paired:
    """Compares puzzle by puzzle; `interval` says which interval this is."""
    num_puzzles = len(reference_N)
    num_lost, num_won = int((reference_N & ~ours_N).sum()), int((ours_N & ~reference_N).sum())
    low, high = loss_interval(num_lost, num_won, num_puzzles)
    return Paired(
        num_puzzles=num_puzzles,
        reference=float(reference_N.mean()),
        ours=float(ours_N.mean()),
        num_lost=num_lost,
        num_won=num_won,
        loss=(num_lost - num_won) / num_puzzles,
        low=low,
        high=high,
    )
