"""Histograms forget nothing that matters, and each method clips where its definition says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hrm_calibration.ranges import METHODS, NUM_BINS, Histogram, scale_of


def histogram_of(*parts: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_values_arrive_changes_nothing(
    values: list[float], random: object
) -> None:
    shuffled = values.copy()
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one = histogram_of(*([value] for value in values))
    other = histogram_of(shuffled)
    assert one.top == other.top
    assert np.array_equal(one.counts, other.counts)
    assert one.largest == max(map(abs, np.float32(values)))


def test_every_value_is_counted_and_the_largest_lies_in_the_upper_half() -> None:
    rng = np.random.default_rng(0)
    histogram = histogram_of(rng.normal(size=(50, 7)), 90 * rng.normal(size=300), np.zeros(11))
    assert histogram.counts.sum() == 50 * 7 + 300 + 11
    assert histogram.top / 2 <= histogram.largest < histogram.top
    assert histogram.counts[NUM_BINS // 2 :].sum() > 0


def test_memory_does_not_grow_with_values() -> None:
    histogram = histogram_of(*(np.full((3, 5), 2.0**power) for power in range(-20, 20)))
    assert histogram.counts.nbytes == NUM_BINS * 8
    assert histogram.counts.sum() == 40 * 15


def test_values_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        histogram_of(np.array([1.0, np.nan]))


def test_min_max_clips_nothing() -> None:
    assert scale_of(histogram_of(np.array([0.5, -12.7])), "min-max") == pytest.approx(0.1)


def test_a_percentile_cuts_off_the_share_it_says() -> None:
    values = np.concatenate([np.full(99_990, 1.0), np.full(10, 100.0)])
    histogram = histogram_of(values)
    step = histogram.top / NUM_BINS
    assert scale_of(histogram, "percentile-99.99") * 127 == pytest.approx(1.0, abs=step)
    assert scale_of(histogram, "percentile-99.999") * 127 == pytest.approx(100.0, abs=step)


def test_mse_clips_a_lone_outlier_but_keeps_an_even_spread() -> None:
    even = np.linspace(0, 1, 1_000_000)
    assert scale_of(histogram_of(even), "mse") * 127 == pytest.approx(1.0, rel=0.04)
    assert scale_of(histogram_of(even, [5.0]), "mse") * 127 < 1.2


def test_mse_has_the_least_error_of_all_methods() -> None:
    values = np.random.default_rng(1).standard_t(4, 200_000).astype(np.float32)
    histogram = histogram_of(values)

    def error(method: str) -> float:
        scale = scale_of(histogram, method)
        return float(((np.rint(values / scale).clip(-128, 127) * scale - values) ** 2).mean())

    assert error("mse") <= 1.02 * min(map(error, METHODS))


def test_entropy_keeps_an_even_spread_whole_and_clips_a_far_tail() -> None:
    even = np.linspace(0, 1, 100_000)
    assert scale_of(histogram_of(even), "entropy") * 127 == pytest.approx(1.0, rel=0.02)
    tail = np.random.default_rng(2).normal(size=100_000)
    assert scale_of(histogram_of(tail, [60.0]), "entropy") * 127 < 10


@pytest.mark.parametrize("method", METHODS)
def test_a_tensor_of_zeros_has_a_scale_that_holds_it(method: str) -> None:
    assert scale_of(histogram_of(np.zeros(5)), method) == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_no_method_goes_beyond_the_largest_value(method: str) -> None:
    histogram = histogram_of(np.random.default_rng(3).normal(size=1000))
    assert 0 < scale_of(histogram, method) * 127 <= histogram.largest * (1 + 1e-9)
