"""The magnitudes seen at a call site, and the scale each method chooses by where it clips them.

Shapes: C clips tried, K bins, L levels.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NUM_BINS = 2048
"""The largest value lies in the upper half, so it is resolved to a part in 1,024 or finer."""
SMALLEST_TOP = 2.0**-64
CHUNK = 1 << 20
"""Values binned at a time: temporary arrays stay a few megabytes at any sequence length."""
STEPS = 127
"""A clip is this many steps of the scale."""
LEVELS = 128
"""Of magnitude, as entropy calibration counts them."""
ENTROPY_STRIDE = 8
FLOOR = 1e-4
"""A share that a quantised distribution is taken to have where it has none, so that clipping costs a finite amount."""
CLIP_SHARES = np.geomspace(0.05, 1.0, 96)
"""Shares of the largest magnitude that the MSE method tries."""


@dataclass(kw_only=True, eq=False)
class Histogram:
    """Magnitudes in bounded memory: `counts` over `NUM_BINS` equal bins of [0, `top`), and the exact `largest`.

    The range is a power of two and doubles for a value beyond it: pairs of bins become one, so counts stay exact and
    the order of values changes nothing.
    """

    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(NUM_BINS, np.int64))
    top: float = 0.0
    largest: float = 0.0

    @property
    def edges(self) -> NDArray[np.float64]:
        """Upper edge of each bin."""
        return np.arange(1, NUM_BINS + 1, dtype=np.float64) * (self.top / NUM_BINS)

    def add(self, values: NDArray[np.floating[Any]]) -> None:
        """Count every value by its magnitude; refuses values that are not finite."""
        flat = np.asarray(values, np.float32).reshape(-1)
        for start in range(0, flat.size, CHUNK):
            magnitudes = np.abs(flat[start : start + CHUNK])
            largest = float(magnitudes.max())
            if not np.isfinite(largest):
                raise ValueError("an activation is not finite, so it has no range; train or export the model again.")
            self.largest = max(self.largest, largest)
            end = max(float(2.0 ** np.frexp(largest)[1]), SMALLEST_TOP) if largest else 0.0
            self.top = self.top or end
            while self.top < end:
                pairs = self.counts.reshape(-1, 2).sum(axis=1)
                self.counts = np.concatenate([pairs, np.zeros(NUM_BINS // 2, np.int64)])
                self.top *= 2
            # zero lies in the first bin of any range, also of one that has no end yet
            bins = (magnitudes * np.float32(NUM_BINS / (self.top or 1.0))).astype(np.int32)  # exact: a power of two
            self.counts += np.bincount(bins, minlength=NUM_BINS)


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
