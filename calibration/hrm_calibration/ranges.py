"""Choose the scale of a call site from the magnitudes that it reads.

Shapes: C clips tried, K bins, L levels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
LEVELS = 128
"""Levels of magnitude, as entropy calibration counts them."""
ENTROPY_STRIDE = 8
"""Bins between two clips that entropy calibration tries."""
FLOOR = 1e-4
"""Smallest share of a quantized distribution, so that clipping costs a finite amount."""
CLIP_SHARES = np.geomspace(0.05, 1.0, 96)
"""Shares of the largest magnitude that the MSE method tries as clips."""


@dataclass(kw_only=True, eq=False)
class Histogram:
    """Magnitudes in bounded memory: `counts` over equal bins of [0, `top`), and the `largest`.

    `top` is a power of two. A value beyond it doubles `top` and merges pairs of bins. Counts stay
    exact, and the order of values does not matter.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    top: float = 0.0
    largest: float = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """Upper edge of each bin."""
        width = self.top / NUM_BINS
        return np.arange(1, NUM_BINS + 1, dtype=np.float64) * width

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every value by its magnitude; ValueError for values that are not finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            self._add_magnitudes(np.abs(flat[start : start + CHUNK]))

    def _add_magnitudes(self, magnitudes: NDArray[np.float32]) -> None:
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


def scale_of(histogram: Histogram, method: str) -> float:
    """The scale that a method of `METHODS` chooses; 1 if there are only zeros."""
    if not histogram.largest:
        return 1.0
    return METHODS[method](histogram) / STEPS


def min_max(histogram: Histogram) -> float:
    """The largest magnitude: nothing is clipped."""
    return histogram.largest


def percentile(share: float, histogram: Histogram) -> float:
    """The smallest bin edge with `share` of all magnitudes below it, at most the largest one."""
    reached_K = np.cumsum(histogram.counts)
    index = int(np.searchsorted(reached_K, share * reached_K[-1]))
    edge = float(histogram.edges[min(index, NUM_BINS - 1)])
    return min(edge, histogram.largest)


def entropy(histogram: Histogram) -> float:
    """The clip with the smallest Kullback-Leibler divergence (Migacz, GTC 2017)."""
    counts_K = histogram.counts.astype(np.float64)
    last = int(np.flatnonzero(counts_K)[-1]) + 1
    ends = [*range(LEVELS, last, ENTROPY_STRIDE), last]
    best = min(ends, key=lambda end: _divergence(counts_K, end))
    return min(float(histogram.edges[best - 1]), histogram.largest)


def mean_squared(histogram: Histogram) -> float:
    """The clip with the smallest squared error of rounding and clipping together."""
    half_bin = histogram.top / NUM_BINS / 2
    seen_K = np.flatnonzero(histogram.counts)
    center_K = histogram.edges[seen_K] - half_bin
    counts_K = histogram.counts[seen_K].astype(np.float64)
    clip_C = CLIP_SHARES * histogram.largest
    scale_C1 = clip_C[:, None] / STEPS
    steps_CK = np.minimum(np.rint(center_K / scale_C1), STEPS)
    error_CK = steps_CK * scale_C1 - center_K
    total_C = error_CK**2 @ counts_K
    return float(clip_C[total_C.argmin()])


METHODS: Mapping[str, Callable[[Histogram], float]] = {
    "min-max": min_max,
    "percentile-99.99": partial(percentile, 0.9999),
    "percentile-99.999": partial(percentile, 0.99999),
    "entropy": entropy,
    "mse": mean_squared,
}


def _divergence(counts_K: NDArray[np.float64], end: int) -> float:
    """KL divergence between a clipped distribution and the same one in `LEVELS` levels.

    The clipped one has the first `end` bins, with the rest piled on the last of them.
    """
    kept_K = counts_K[:end]
    clipped_K = kept_K.copy()
    clipped_K[-1] += counts_K[end:].sum()
    spread_K = _in_levels(kept_K)
    present_K = clipped_K > 0
    share_K = clipped_K[present_K] / clipped_K.sum()
    quantized_K = spread_K[present_K] / spread_K.sum()
    ratio_K = share_K / np.maximum(quantized_K, FLOOR)
    return float((share_K * np.log(ratio_K)).sum())


def _in_levels(counts_K: NDArray[np.float64]) -> NDArray[np.float64]:
    """The counts merged into `LEVELS` levels, each spread evenly over its filled bins."""
    end = len(counts_K)
    level_K = np.arange(end)
    if end > LEVELS:
        level_K = level_K * LEVELS // end
    filled_K = counts_K > 0
    mass_L = np.bincount(level_K, weights=counts_K)
    bins_L = np.bincount(level_K, weights=filled_K)
    mean_L = mass_L / np.maximum(bins_L, 1)
    return np.where(filled_K, mean_L[level_K], 0.0)
