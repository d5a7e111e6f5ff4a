"""A whole calibration of a small random model: a budget that is kept, and honest figures."""

import dataclasses
import random

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from export_tools import SUDOKU, questions, random_inputs, run, small_graph, small_model, table
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from hrm_calibration import int8
from hrm_calibration.int8 import calibrate, for_cpus
from hrm_calibration.quantize import call_sites, quantize, unsigned
from hrm_calibration.ranges import NUM_BINS, Histogram, scale_of
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_parity.outcomes import paired
from hrm_puzzles.data.sources import Questions

GRAPH = small_graph(high_cycles=1, low_cycles=1)
SITES = [site.name for site in call_sites(GRAPH)]
WEIGHTS = sorted({site.weight for site in call_sites(GRAPH)})
POLICY = HaltingPolicy(kind="verified", max_segments=3)
SERVED = ServedGraph(graph=GRAPH, puzzle=SUDOKU, puzzle_table=table(), policy=POLICY)
ONE_SEGMENT = dataclasses.replace(SERVED, policy=HaltingPolicy(kind="fixed", max_segments=1))
"""With one segment, expected answers are one run of the graph."""


def largest_step(graph: onnx.ModelProto) -> int:
    largest = 0
    for tensor in graph.graph.initializer:
        if tensor.name.endswith("/int8"):
            matrix_IO = numpy_helper.to_array(tensor).astype(int)
            largest = max(largest, np.abs(matrix_IO).max())
    return largest


def test_one_calibration_serves_both_widths_and_a_kept_budget_ranks_no_matrix():
    found = calibrate(SERVED, questions(16), budget=1.0)
    narrow = for_cpus(GRAPH, found.scales, found.weight_only)
    assert list(found.scales) == SITES
    assert largest_step(quantize(GRAPH, found.scales)) == 127
    assert largest_step(narrow) == 64
    seven_bits = quantize(GRAPH, found.scales, weight_bits=7)
    assert narrow == unsigned(seven_bits)
    assert (found.num_puzzles, len(found.losses)) == (16, 1)
    assert found.ranking == {}


def own_answers(count: int) -> Questions:
    """Return puzzles labelled with the float graph's answers, so that INT8 must agree with it."""
    asked = questions(count)
    inputs = random_inputs(small_model(), count)
    inputs["tokens_BT"] = asked.tokens_NT
    inputs["puzzle_vector_BE"] = table()[asked.puzzle_ids_N]
    inputs["fresh_B"][:] = True
    answers_NT = run(GRAPH, inputs, optimized=True)["answer_BT"]
    return dataclasses.replace(asked, labels_NT=answers_NT)


def coarse_for(broken: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the matrices of `broken` a scale that is far too coarse."""
    sites = iter(call_sites(GRAPH))

    def scale(seen: Histogram) -> float:
        return 50.0 if next(sites).weight in broken else scale_of(seen)

    monkeypatch.setattr(int8, "scale_of", scale)


def test_the_worst_matrices_become_weight_only_until_the_budget_is_kept(
    monkeypatch: pytest.MonkeyPatch,
):
    """Enough of the four broken matrices become weight-only, and no other."""
    broken = WEIGHTS[:4]
    coarse_for(broken, monkeypatch)
    found = calibrate(ONE_SEGMENT, own_answers(24), budget=0.5)
    drifts = list(found.ranking.values())
    assert sorted(found.ranking) == WEIGHTS
    assert drifts == sorted(drifts, reverse=True)
    assert found.losses[0].reference == 1.0
    assert found.losses[0].loss > 0.5 >= found.losses[-1].loss
    assert set(list(found.ranking)[:4]) == set(broken)
    assert set(found.weight_only) <= set(broken)
    assert len(found.losses) == len(found.weight_only) + 1


def test_a_budget_no_graph_keeps_is_rejected(monkeypatch: pytest.MonkeyPatch):
    coarse_for(WEIGHTS, monkeypatch)
    with pytest.raises(ValueError, match="allow more with --max-loss, or export without"):
        calibrate(ONE_SEGMENT, own_answers(8), budget=0.0)


@pytest.mark.parametrize(
    ("num_puzzles", "num_lost", "budget", "kept"),
    [
        (10_000, 90, 0.0101, True),  # a standard error of a tenth of a point
        (10_000, 90, 0.0095, False),
        (100, 1, 0.01, True),  # a standard error as large as the budget
        (100, 2, 0.01, False),
    ],
)
def test_budget_allows_an_error(num_puzzles: int, num_lost: int, budget: float, kept: bool):
    ours_N = np.arange(num_puzzles) >= num_lost
    lost = paired(np.ones(num_puzzles, np.bool_), ours_N)
    assert int8.is_kept(lost, budget) == kept


def test_too_few_puzzles_are_rejected():
    with pytest.raises(ValueError, match="too few"):
        calibrate(SERVED, questions(3), budget=1.0)


def test_losses_and_wins_are_counted_in_pairs_with_walds_interval():
    """The interval adds half a puzzle to each cell."""
    reference_N = np.repeat([True, True, False, False], [80, 6, 2, 12])
    ours_N = np.repeat([True, False, True, False], [80, 6, 2, 12])
    found = paired(reference_N, ours_N)
    assert (found.num_puzzles, found.num_lost, found.num_won) == (100, 6, 2)
    assert (found.reference, found.ours) == (0.86, 0.82)
    assert found.loss == pytest.approx(0.04)
    half = 1.96 * np.sqrt(9 - 16 / 102) / 102  # 6.5 lost, 2.5 won, of 102
    assert found.low == pytest.approx(4 / 102 - half, abs=1e-5)
    assert found.high == pytest.approx(4 / 102 + half, abs=1e-5)


SMALL_FLOATS = st.floats(-1e6, 1e6, width=32)


def histogram_of(*parts: npt.ArrayLike) -> Histogram:
    histogram = Histogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


@settings(max_examples=30)
@given(st.lists(SMALL_FLOATS, min_size=1, max_size=60), st.randoms(use_true_random=False))
def test_the_order_of_values_changes_nothing(values: list[float], rng: random.Random):
    shuffled = values.copy()
    rng.shuffle(shuffled)
    one = histogram_of(*values)
    other = histogram_of(shuffled)
    assert one.top == other.top
    assert np.array_equal(one.counts, other.counts)
    assert one.largest == np.abs(np.array(values, np.float32)).max()


def test_every_finite_value_is_counted_in_bounded_memory():
    rng = np.random.default_rng(0)
    histogram = histogram_of(rng.normal(size=(50, 7)), 90 * rng.normal(size=300), np.zeros(11))
    assert histogram.counts.sum() == 50 * 7 + 300 + 11
    assert histogram.counts.shape == (NUM_BINS,)
    assert histogram.top / 2 <= histogram.largest < histogram.top
    assert histogram.counts[NUM_BINS // 2 :].sum() > 0
    with pytest.raises(ValueError, match="not finite"):
        histogram_of([1.0, np.nan])


def test_a_scale_clips_one_magnitude_in_ten_thousand():
    values = np.concatenate([np.full(99_990, 1.0), np.full(10, 100.0)])
    histogram = histogram_of(values)
    step = histogram.top / NUM_BINS
    assert 127 * scale_of(histogram) == pytest.approx(1.0, abs=step)
    few = histogram_of([0.5, -0.9])  # no clip is beyond the largest value
    assert 0 < 127 * scale_of(few) <= few.largest * (1 + 1e-9)
    assert scale_of(histogram_of(np.zeros(5))) == 1.0
