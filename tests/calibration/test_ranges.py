"""Histograms forget nothing that matters, and each method clips as its definition says."""

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrm_calibration.ranges import METHODS, NUM_BINS, Histogram, scale_of

SMALL_FLOATS = st.floats(-1e6, 1e6, width=32)


def histogram_of(*parts: npt.ArrayLike) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


@settings(max_examples=30)
@given(st.lists(SMALL_FLOATS, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_in_which_values_arrive_changes_nothing(
    values: list[float], rng: random.Random
) -> None:
    shuffled = values.copy()
    rng.shuffle(shuffled)
    one = histogram_of(*values)
    other = histogram_of(shuffled)
    assert one.top == other.top
    assert np.array_equal(one.counts, other.counts)
    assert one.largest == np.abs(np.array(values, np.float32)).max()


def test_every_value_is_counted_in_bounded_memory_and_the_largest_is_in_the_upper_half() -> None:
    rng = np.random.default_rng(0)
    histogram = histogram_of(rng.normal(size=(50, 7)), 90 * rng.normal(size=300), np.zeros(11))
    assert histogram.counts.sum() == 50 * 7 + 300 + 11
    assert histogram.counts.shape == (NUM_BINS,)
    assert histogram.top / 2 <= histogram.largest < histogram.top
    assert histogram.counts[NUM_BINS // 2 :].sum() > 0


def test_values_that_are_not_finite_are_rejected() -> None:
    with pytest.raises(ValueError, match="not finite"):
        histogram_of([1.0, np.nan])


def test_min_max_clips_nothing() -> None:
    histogram = histogram_of([0.5, -12.7])
    assert scale_of(histogram, "min-max") == pytest.approx(0.1)


def test_a_percentile_cuts_off_the_share_it_says() -> None:
    values = np.concatenate([np.full(99_990, 1.0), np.full(10, 100.0)])
    histogram = histogram_of(values)
    step = histogram.top / NUM_BINS
    clip = 127 * scale_of(histogram, "percentile-99.99")
    wider_clip = 127 * scale_of(histogram, "percentile-99.999")
    assert clip == pytest.approx(1.0, abs=step)
    assert wider_clip == pytest.approx(100.0, abs=step)


def squared_error(values: np.ndarray, scale: float) -> float:
    steps = np.rint(values / scale).clip(-128, 127)
    errors = steps * scale - values
    return float((errors**2).mean())


def test_mse_has_the_least_error_of_all_methods() -> None:
    values = np.random.default_rng(1).standard_t(4, 200_000).astype(np.float32)
    histogram = histogram_of(values)
    errors = {method: squared_error(values, scale_of(histogram, method)) for method in METHODS}
    assert errors["mse"] <= 1.02 * min(errors.values())


def test_entropy_keeps_an_even_spread_whole_and_clips_a_far_tail() -> None:
    even = np.linspace(0, 1, 100_000)
    tail = np.random.default_rng(2).normal(size=100_000)
    whole = 127 * scale_of(histogram_of(even), "entropy")
    clipped = 127 * scale_of(histogram_of(tail, [60.0]), "entropy")
    assert whole == pytest.approx(1.0, rel=0.02)
    assert clipped < 10


@pytest.mark.parametrize("method", METHODS)
def test_no_method_goes_beyond_the_largest_value(method: str) -> None:
    values = np.random.default_rng(3).normal(size=1000)
    histogram = histogram_of(values)
    clip = 127 * scale_of(histogram, method)
    assert 0 < clip <= histogram.largest * (1 + 1e-9)
    assert scale_of(histogram_of(np.zeros(5)), method) == 1.0
