"""A whole calibration of a small random model: separate parts, and a budget that is kept."""

import dataclasses
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from calibration_tools import SUDOKU, questions, random_inputs, run, small_graph, table
from cli_tools import rejected, succeeded
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from step_bundle import write_step_bundle

from hrm_calibration import int8
from hrm_calibration.cli import main as app
from hrm_calibration.halting_curve import Score
from hrm_calibration.int8 import Int8Settings, Int8Trials, Run, calibrate, for_cpus
from hrm_calibration.int8_report import Int8Report, MethodScore, Paired, paired
from hrm_calibration.quantize import call_sites, quantize, unsigned
from hrm_calibration.ranges import METHODS, NUM_BINS, Histogram, scale_of
from hrm_calibration.rollouts import ServedGraph
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

GRAPH = small_graph(high_cycles=1, low_cycles=1)
SITES = [site.name for site in call_sites(GRAPH)]
WEIGHTS = sorted({site.weight for site in call_sites(GRAPH)})
POLICY = HaltingPolicy(kind="verified", max_segments=3)
SERVED = ServedGraph(graph=GRAPH, puzzle=SUDOKU, puzzle_table=table(), policy=POLICY)
SETTINGS = Int8Settings(methods=("min-max", "mse"), budget=1.0)
COARSE = dict.fromkeys(SITES, 1000.0)
Calibrated = tuple[onnx.ModelProto, Int8Report]


@pytest.fixture(scope="module")
def result() -> Calibrated:
    return calibrate(SERVED, questions(16), settings=SETTINGS)


def largest_step(graph: onnx.ModelProto) -> int:
    largest = 0
    for tensor in graph.graph.initializer:
        if tensor.name.endswith("/int8"):
            matrix_IO = numpy_helper.to_array(tensor).astype(int)
            largest = max(largest, np.abs(matrix_IO).max())
    return largest


def test_one_calibration_ranks_every_matrix_and_serves_both_widths(result: Calibrated) -> None:
    signed, report = result
    narrow = for_cpus(GRAPH, report.scales, report.weight_only)
    assert largest_step(signed) == 127
    assert largest_step(narrow) == 64
    seven_bits = quantize(GRAPH, report.scales, weight_only=report.weight_only, weight_bits=7)
    assert narrow == unsigned(seven_bits, report.weight_only)
    _, report = result
    drifts = list(report.sensitivity.values())
    assert list(report.largest) == list(report.scales) == SITES
    assert sorted(report.sensitivity) == WEIGHTS
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[-1] > 0


def test_no_puzzle_is_in_two_parts() -> None:
    asked = questions(40)
    asked.puzzle_ids_N[:] = np.arange(40)
    parts = int8.parts_of(asked, Int8Settings(num_calibration=7, num_choice=100))
    ids_N = np.concatenate([part.puzzle_ids_N for part in parts])
    assert [len(part) for part in parts] == [7, 20, 13]
    assert sorted(ids_N.tolist()) == list(range(40))


def lost_of(num_puzzles: int, num_lost: int) -> Paired:
    reference_N = np.ones(num_puzzles, np.bool_)
    return paired(reference_N, np.arange(num_puzzles) >= num_lost)


def score(method: str, num_lost: int, moved: float) -> MethodScore:
    lost = lost_of(100, num_lost)
    solves = Score(num_puzzles=100, exact=lost.ours, proven=lost.ours, mean_segments=1.0)
    return MethodScore(method=method, solves=solves, exact=lost, drift=moved)


def test_of_methods_that_chance_cannot_tell_apart_the_one_that_drifts_least_wins() -> None:
    bad = score("bad", 40, 0.01)
    best = score("best", 10, 0.05)
    near = score("near", 11, 0.02)
    assert int8.best_of([bad, best, near]) is near
    assert int8.best_of([bad, best]) is best


def trials(budget: float) -> Int8Trials:
    """Return trials of one segment, so that expected answers are one run of the graph."""
    served = dataclasses.replace(SERVED, policy=HaltingPolicy(kind="fixed", max_segments=1))
    return Int8Trials(served=served, settings=Int8Settings(budget=budget), stages=Stages())


def own_answers(count: int) -> Questions:
    """Return puzzles labelled with the float graph's answers, so that INT8 must agree with it."""
    asked = questions(count)
    inputs = random_inputs(count)
    inputs["tokens_BT"] = asked.tokens_NT
    inputs["puzzle_vector_BE"] = table()[asked.puzzle_ids_N]
    inputs["fresh_B"][:] = True
    answers_NT = run(GRAPH, inputs, optimized=True)["answer_BT"]
    return dataclasses.replace(asked, labels_NT=answers_NT)


def test_the_worst_matrices_become_weight_only_until_the_budget_is_kept() -> None:
    """Scales far too coarse for two matrices: with those weight-only little is lost."""
    asked = own_answers(24)
    tried = trials(0.6)
    broken = WEIGHTS[:2]
    scales = dict.fromkeys(SITES, 0.002)
    for site in call_sites(GRAPH):
        if site.weight in broken:
            scales[site.name] = 50.0
    float32 = Run(tried, "float32", asked)
    whole = Run(tried, "whole", asked, tried.quantized(scales))
    steps = tried.budget_steps(scales, WEIGHTS, whole, float32)
    assert float32.so_far.exact_N.all()
    assert steps[0].loss > 0.6 >= steps[-1].loss
    assert len(steps) <= 1 + 2 + 1


def test_a_budget_no_graph_keeps_is_rejected() -> None:
    asked = own_answers(8)
    tried = trials(0.0)
    whole = Run(tried, "whole", asked, tried.quantized(COARSE))
    float32 = Run(tried, "float32", asked)
    with pytest.raises(ValueError, match="allow a greater loss or export without INT8"):
        tried.budget_steps(COARSE, WEIGHTS, whole, float32)


@pytest.mark.parametrize(
    ("num_puzzles", "num_lost", "budget", "kept"),
    [
        (10_000, 90, 0.0101, True),  # a standard error of a tenth of a point
        (10_000, 90, 0.0095, False),
        (100, 1, 0.01, True),  # a standard error as large as the budget
        (100, 2, 0.01, False),
    ],
)
def test_budget_allows_an_error(num_puzzles: int, num_lost: int, budget: float, kept: bool) -> None:
    assert int8.is_kept(lost_of(num_puzzles, num_lost), budget) == kept


def test_too_few_puzzles_and_unknown_tasks_are_rejected() -> None:
    with pytest.raises(ValueError, match="too few"):
        calibrate(SERVED, questions(3), settings=SETTINGS)
    asked = questions(8)
    asked.puzzle_ids_N[0] = 3
    with pytest.raises(ValueError, match="the model knows 3"):
        calibrate(SERVED, asked, settings=SETTINGS)


def test_the_command_writes_graphs_report_and_pictures(tmp_path: Path) -> None:
    bundle = tmp_path / "small.bundle"
    write_step_bundle(bundle, GRAPH, name="small", table_PE=table(1), max_segments=3)
    out = tmp_path / "out"
    options = ["--puzzles", "12", "--out", str(out)]
    wrong = rejected(app, "int8", bundle, "--calib", "maze", *options)
    assert "give sudoku" in wrong.stderr
    ended = succeeded(app, "int8", bundle, "--calib", "sudoku", *options)
    assert "exact solves" in ended.stdout
    assert {file.name for file in out.iterdir()} == {
        "step.int8.onnx",
        "step.int8.cpu.onnx",
        "calibration.json",
        "layers.png",
        "ranges.png",
    }
    again = rejected(app, "int8", bundle, "--calib", "sudoku", *options)
    assert "already exists" in again.stderr


def test_losses_and_wins_are_counted_in_pairs_with_walds_interval() -> None:
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
def test_the_order_of_values_changes_nothing(values: list[float], rng: random.Random) -> None:
    shuffled = values.copy()
    rng.shuffle(shuffled)
    one = histogram_of(*values)
    other = histogram_of(shuffled)
    assert one.top == other.top
    assert np.array_equal(one.counts, other.counts)
    assert one.largest == np.abs(np.array(values, np.float32)).max()


def test_every_finite_value_is_counted_in_bounded_memory() -> None:
    rng = np.random.default_rng(0)
    histogram = histogram_of(rng.normal(size=(50, 7)), 90 * rng.normal(size=300), np.zeros(11))
    assert histogram.counts.sum() == 50 * 7 + 300 + 11
    assert histogram.counts.shape == (NUM_BINS,)
    assert histogram.top / 2 <= histogram.largest < histogram.top
    assert histogram.counts[NUM_BINS // 2 :].sum() > 0
    with pytest.raises(ValueError, match="not finite"):
        histogram_of([1.0, np.nan])


def test_min_max_clips_nothing_and_a_percentile_its_share() -> None:
    histogram = histogram_of([0.5, -12.7])
    assert scale_of(histogram, "min-max") == pytest.approx(0.1)
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
