"""Two runs over the same puzzles, compared puzzle by puzzle with an interval."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hrm_parity.measures import Z_95, loss_interval

GROWTH = 1.1
"""Factor between two numbers of puzzles that `num_deciding` tries."""
MOST_DECIDING = 10**6
"""A gate that needs more puzzles lies almost on the loss."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Two runs over the same puzzles: `loss` is the share that `ours` solves less than `reference`.

    `low` and `high` bound the loss at 95 %.
    """

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
    """Compare puzzle by puzzle, with the interval of `loss_interval`."""
    num_puzzles = len(reference_N)
    num_lost = int((reference_N & ~ours_N).sum())
    num_won = int((ours_N & ~reference_N).sum())
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


def num_deciding(exact: Paired, max_loss: float) -> int | None:
    """The rough number of puzzles that would decide, if losses and wins keep their rates."""
    count = exact.num_puzzles
    while count < MOST_DECIDING:
        count = math.ceil(GROWTH * count)
        scale = count / exact.num_puzzles
        num_lost = round(exact.num_lost * scale)
        num_won = round(exact.num_won * scale)
        low, high = loss_interval(num_lost, num_won, count)
        if 100 * high <= max_loss or 100 * low > max_loss:
            return count
    return None
