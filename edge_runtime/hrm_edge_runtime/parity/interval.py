"""How sure a loss is that was counted puzzle by puzzle."""

from __future__ import annotations

import math

Z_95 = 1.959964


def loss_interval(num_lost: int, num_won: int, num_puzzles: int) -> tuple[float, float]:
    """95 % confidence interval of the share lost: Wald's with half a puzzle in each cell (Agresti, Min 2005).

    So no difference seen is not taken for certainty that there is none.
    """
    lost, won, total = num_lost + 0.5, num_won + 0.5, num_puzzles + 2
    middle = (lost - won) / total
    half = Z_95 * math.sqrt(max(0.0, lost + won - (lost - won) ** 2 / total)) / total
    return middle - half, middle + half
