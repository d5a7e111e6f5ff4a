"""From the magnitudes seen at a call site to the scale it is quantised with: min-max, percentile, entropy, MSE.

Each method chooses where to clip. A tighter clip makes the steps finer for the many and cuts off the few.
Shapes: C clips tried, K bins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from hrm_calibration.histogram import NUM_BINS, Histogram

STEPS = 127
"""A clip is this many steps of the scale."""
LEVELS = 128
"""Of magnitude, as entropy calibration counts them."""
ENTROPY_STRIDE = 8
FLOOR = 1e-4
"""A share that a quantised distribution is taken to have where it has none, so that clipping costs a finite amount."""
CLIP_SHARES = np.geomspace(0.05, 1.0, 96)
"""Shares of the largest magnitude that the MSE method tries."""

Method = Callable[[Histogram], float]


def scale_of(histogram: Histogram, method: str) -> float:
    """The scale a method of `METHODS` chooses; 1 where nothing but zeros came by, since any scale holds them."""
    return METHODS[method](histogram) / STEPS if histogram.largest else 1.0


def min_max(histogram: Histogram) -> float:
    """Nothing is clipped."""
    return histogram.largest


def percentile(share: float) -> Method:
    """The smallest bin edge with `share` of all magnitudes at or below it, at most the largest magnitude."""

    def clip(histogram: Histogram) -> float:
        reached_K = np.cumsum(histogram.counts)
        index = int(np.searchsorted(reached_K, share * reached_K[-1]))
        return min(float(histogram.edges[min(index, NUM_BINS - 1)]), histogram.largest)

    return clip


def entropy(histogram: Histogram) -> float:
    """The clip whose quantised distribution is nearest by Kullback-Leibler divergence (Migacz, GTC 2017)."""
    counts_K = histogram.counts.astype(np.float64)
    last = int(np.flatnonzero(counts_K)[-1]) + 1
    ends = [*range(LEVELS, last, ENTROPY_STRIDE), last]
    best = min(ends, key=lambda end: _divergence(counts_K, end))
    return min(float(histogram.edges[best - 1]), histogram.largest)


def mean_squared(histogram: Histogram) -> float:
    """The clip with the least squared error of rounding and clipping together."""
    centre_K = histogram.edges - histogram.top / NUM_BINS / 2
    seen_K = np.flatnonzero(histogram.counts)
    centre_K, counts_K = centre_K[seen_K], histogram.counts[seen_K].astype(np.float64)
    clip_C = CLIP_SHARES * histogram.largest
    scale_C1 = clip_C[:, None] / STEPS
    back_CK = np.minimum(np.rint(centre_K / scale_C1), STEPS) * scale_C1
    return float(clip_C[((back_CK - centre_K) ** 2 @ counts_K).argmin()])


METHODS: Mapping[str, Method] = {
    "min-max": min_max,
    "percentile-99.99": percentile(0.9999),
    "percentile-99.999": percentile(0.99999),
    "entropy": entropy,
    "mse": mean_squared,
}


def _divergence(counts_K: NDArray[np.float64], end: int) -> float:
    """KL divergence between the first `end` bins, the rest piled on the last, and the same in `LEVELS` levels."""
    kept_K = counts_K[:end]
    clipped_K = kept_K.copy()
    clipped_K[-1] += counts_K[end:].sum()
    level_K = np.arange(end) * LEVELS // end if end > LEVELS else np.arange(end)
    filled_K = kept_K > 0
    mass_L = np.bincount(level_K, weights=kept_K)
    bins_L = np.bincount(level_K, weights=filled_K)
    spread_K = np.where(filled_K, (mass_L / np.maximum(bins_L, 1))[level_K], 0.0)
    present_K = clipped_K > 0
    share_K, spread_K = clipped_K[present_K] / clipped_K.sum(), spread_K[present_K] / spread_K.sum()
    return float((share_K * np.log(share_K / np.maximum(spread_K, FLOOR))).sum())
