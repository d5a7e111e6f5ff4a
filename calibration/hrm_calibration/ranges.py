"""The scale of a call site, chosen from the magnitudes that it reads. Shapes: K bins."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 2048
"""The largest value lies in the upper half, so it is resolved to 1 part in 1,024 or finer."""
SMALLEST_TOP = 2.0**-64
CHUNK = 1 << 20
"""Values binned at a time. Temporary arrays stay at a few megabytes."""
STEPS = 127
"""A clip is this many steps of the scale."""
SHARE = 0.9999
"""Share of the magnitudes that are not clipped."""
METHOD = "percentile-99.99"


@dataclass(kw_only=True, eq=False)
class Histogram:
    """Magnitudes in bounded memory: `counts` over equal bins of [0, `top`), and the `largest`.

    `top` is a power of two. A value beyond it doubles `top` and merges pairs of bins. Counts stay
    exact, and the order of values does not matter.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    top: float = 0.0
    largest: float = 0.0

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every value by its magnitude; ValueError for values that are not finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            magnitudes = np.abs(flat[start : start + CHUNK])
            largest = float(magnitudes.max())
            if not np.isfinite(largest):
                problem = "an activation is not finite, so it has no range"
                raise ValueError(f"{problem}; train or export the model again")
            self.largest = max(self.largest, largest)
            if largest:
                self._reach(largest)
            # 0 belongs to the first bin of every range, even of an unbounded one
            bins_per_unit = np.float32(NUM_BINS / (self.top or 1.0))  # a power of two, so exact
            bins = (magnitudes * bins_per_unit).astype(np.int32)
            self.counts += np.bincount(bins, minlength=NUM_BINS)

    def _reach(self, largest: float) -> None:
        """Double the range until it contains this magnitude."""
        _, exponent = np.frexp(largest)
        end = max(float(2.0**exponent), SMALLEST_TOP)
        if not self.top:
            self.top = end
        empty = np.zeros(NUM_BINS // 2, np.int64)
        while self.top < end:
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([pairs, empty])
            self.top *= 2


def scale_of(histogram: Histogram) -> float:
    """The scale that clips above `SHARE` of the magnitudes, at most at the largest one.

    The clip is the edge of a bin. The scale is 1 if there are only zeros.
    """
    if not histogram.largest:
        return 1.0
    reached_K = np.cumsum(histogram.counts)
    index = int(np.searchsorted(reached_K, SHARE * reached_K[-1]))
    width = histogram.top / NUM_BINS
    edge = min(index + 1, NUM_BINS) * width
    return min(edge, histogram.largest) / STEPS
