"""Magnitudes counted in bounded memory, in one pass, however many values come and however far they reach.

The range is a power of two and doubles where a value lies beyond it: pairs of bins become one, so every count stays
exactly where it belongs and the order in which values arrive changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 2048
"""The largest value lies in the upper half, so it is resolved to a part in 1,024 or finer."""
SMALLEST_TOP = 2.0**-64
CHUNK = 1 << 20
"""Values binned at a time: temporary arrays stay a few megabytes at any sequence length."""


@dataclass(kw_only=True, eq=False)
class Histogram:
    """`counts` over `NUM_BINS` equal bins of [0, `top`); `largest` is the exact maximum of all magnitudes."""

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    top: float = 0.0
    largest: float = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """Upper edge of each bin."""
        return np.arange(1, NUM_BINS + 1, dtype=np.float64) * (self.top / NUM_BINS)

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Counts every value by its magnitude; refuses values that are not finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            self._add_chunk(np.abs(flat[start : start + CHUNK]))

    def _add_chunk(self, magnitudes: NDArray[np.float32]) -> None:
        largest = float(magnitudes.max())
        if not np.isfinite(largest):
            raise ValueError("an activation is not finite, so it has no range; train or export the model again.")
        self.largest = max(self.largest, largest)
        self._reach(largest)
        if self.top:
            bins = (magnitudes * np.float32(NUM_BINS / self.top)).astype(np.int32)  # exact: a power of two
            self.counts += np.bincount(bins, minlength=NUM_BINS)
        else:
            self.counts[0] += magnitudes.size  # all zero so far, and zero lies in the first bin of any range

    def _reach(self, largest: float) -> None:
        """Doubles the range until `largest` lies below its end."""
        if largest == 0:
            return
        end = max(float(2.0 ** np.frexp(largest)[1]), SMALLEST_TOP)
        if not self.top:
            self.top = end
        while self.top < end:
            self.counts = np.concatenate([self.counts.reshape(-1, 2).sum(axis=1), np.zeros(NUM_BINS // 2, np.int64)])
            self.top *= 2
