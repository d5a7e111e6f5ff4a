"""How puzzles ended, and two runs over the same puzzles compared puzzle by puzzle.

Shapes: N puzzles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Z_95 = 1.959964
GROWTH = 1.1
"""Factor between two numbers of puzzles that `num_deciding` tries."""
MOST_DECIDING = 10**6
"""A gate that needs more puzzles lies almost on the loss."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """Shares of puzzles whose last answer equals the label or is proven, and mean segments."""

    num_puzzles: int
    exact: float
    proven: float
    mean_segments: float

    def __str__(self) -> str:
        return f"{100 * self.exact:.1f} / {self.mean_segments:.1f}"


class Outcomes(NamedTuple):
    """How each puzzle ended under a policy; it is exact if its last answer equals the label."""

    exact_N: NDArray[np.bool_]
    proven_N: NDArray[np.bool_]
    segments_N: NDArray[np.integer[Any]]

    def at(self, rows: slice | NDArray[np.bool_]) -> Outcomes:
        return Outcomes(self.exact_N[rows], self.proven_N[rows], self.segments_N[rows])

    def score(self) -> Score:
        return Score(
            num_puzzles=len(self.exact_N),
            exact=float(self.exact_N.mean()),
            proven=float(self.proven_N.mean()),
            mean_segments=float(self.segments_N.mean()),
        )


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
