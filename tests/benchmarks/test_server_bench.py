"""The benchmarks over a real server: what `throughput` and `soak` find."""

import pytest
from bench_tools import figures_of

pytestmark = pytest.mark.process


def test_throughput_measures_batches_singles_the_bound_and_latencies() -> None:
    bundle = "--bundle sudoku-6x6 --puzzles 10 --slots 2"
    figures = figures_of(f"throughput {bundle} --seconds 1 --connections 4")
    at_rate, batches, singles, arrivals = figures["passages"]
    assert at_rate["offered_per_s"] == 2000
    assert 0.1 < batches["share_of_bound"] <= 1.01
    assert arrivals["offered_per_s"] == pytest.approx(0.8 * singles["answered_per_s"])
    assert 0 < arrivals["p50_ms"] <= arrivals["p99_ms"]


def test_a_soak_finds_nothing_lost_wrong_or_left_behind() -> None:
    figures = figures_of("soak --requests 400 --slots 4")
    assert figures["requests"] == 400
    assert figures["faults"] == []
