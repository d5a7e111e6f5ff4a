"""A whole calibration of a small random model: separate parts, and a budget that is kept."""

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from calibration_tools import SUDOKU, questions, random_inputs, run, small_graph, table
from onnx import numpy_helper
from step_bundle import write_step_bundle
from typer.testing import CliRunner

from hrm_calibration.cli import main as app
from hrm_calibration.halting_curve import Score
from hrm_calibration.int8 import (
    Int8Settings,
    Int8Trials,
    Run,
    best_of,
    calibrate,
    carries_after,
    drift,
    for_cpus,
    is_kept,
    parts_of,
)
from hrm_calibration.int8_report import Int8Report, MethodScore, Paired, paired
from hrm_calibration.quantise import call_sites, quantise, unsigned
from hrm_calibration.rollouts import ServedGraph, slots_for
from hrm_edge_runtime.contract.halting import HaltingPolicy
from hrm_host.progress import Stages
from hrm_puzzles.data.sources import Questions

GRAPH = small_graph(high_cycles=1, low_cycles=1)
SITES = [site.name for site in call_sites(GRAPH)]
WEIGHTS = sorted({site.weight for site in call_sites(GRAPH)})
POLICY = HaltingPolicy(kind="verified", max_segments=3)
SERVED = ServedGraph(graph=GRAPH, puzzle=SUDOKU, puzzle_table=table(), policy=POLICY)
SETTINGS = Int8Settings(methods=("min-max", "mse"), budget=1.0)
FINE = dict.fromkeys(SITES, 0.02)
COARSE = dict.fromkeys(SITES, 1000.0)

Calibrated = tuple[onnx.ModelProto, Int8Report]


@pytest.fixture(scope="module")
def result() -> Calibrated:
    return calibrate(SERVED, questions(16), settings=SETTINGS)


def largest_step(graph: onnx.ModelProto) -> int:
    """Return the largest magnitude in the INT8 matrices of a graph."""
    largest = 0
    for tensor in graph.graph.initializer:
        if tensor.name.endswith("/int8"):
            matrix_IO = numpy_helper.to_array(tensor).astype(int)
            largest = max(largest, np.abs(matrix_IO).max())
    return largest


def test_tensorrt_gets_eight_bits_and_a_cpu_seven_of_one_calibration(result: Calibrated) -> None:
    signed, report = result
    narrow = for_cpus(GRAPH, report.scales, report.weight_only)
    assert largest_step(signed) == 127
    assert largest_step(narrow) == 64
    seven_bits = quantise(GRAPH, report.scales, weight_only=report.weight_only, weight_bits=7)
    assert narrow == unsigned(seven_bits, report.weight_only)


def test_every_call_site_has_a_range_and_every_matrix_a_rank(result: Calibrated) -> None:
    _, report = result
    drifts = list(report.sensitivity.values())
    assert list(report.largest) == list(report.scales) == SITES
    assert sorted(report.sensitivity) == WEIGHTS
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[-1] > 0


def test_reach_counts_the_puzzles_that_ran_each_segment(result: Calibrated) -> None:
    _, report = result
    assert report.reach[0] == report.num_calibration == 4
    assert report.reach == sorted(report.reach, reverse=True)
    assert len(report.reach) <= POLICY.max_segments


def test_no_puzzle_is_in_two_parts() -> None:
    asked = questions(40)
    asked.puzzle_ids_N[:] = np.arange(40)
    parts = parts_of(asked, Int8Settings(num_calibration=7, num_choice=100))
    ids_N = np.concatenate([part.puzzle_ids_N for part in parts])
    assert [len(part) for part in parts] == [7, 20, 13]
    assert sorted(ids_N.tolist()) == list(range(40))


def lost_of(num_puzzles: int, num_lost: int) -> Paired:
    reference_N = np.ones(num_puzzles, np.bool_)
    return paired(reference_N, np.arange(num_puzzles) >= num_lost)


def score(method: str, num_lost: int, moved: float) -> MethodScore:
    """Return the score of a method, of 100 puzzles that float32 solves."""
    lost = lost_of(100, num_lost)
    solves = Score(num_puzzles=100, exact=lost.ours, proven=lost.ours, mean_segments=1.0)
    return MethodScore(method=method, solves=solves, exact=lost, drift=moved)


def test_of_methods_that_chance_cannot_tell_apart_the_one_that_drifts_least_wins() -> None:
    bad = score("bad", 40, 0.01)
    best = score("best", 10, 0.05)
    near = score("near", 11, 0.02)
    assert best_of([bad, best, near]) is near
    assert best_of([bad, best]) is best


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
    answers_NT = run(GRAPH, inputs, optimised=True)["answer_BT"]
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
    whole = Run(tried, "whole", asked, tried.quantised(scales))
    steps = tried.budget_steps(scales, WEIGHTS, whole, float32)
    assert float32.so_far.exact_N.all()
    assert steps[0].loss > 0.6 >= steps[-1].loss
    assert len(steps) <= 1 + 2 + 1


def test_a_budget_no_graph_keeps_is_rejected() -> None:
    asked = own_answers(8)
    tried = trials(0.0)
    whole = Run(tried, "whole", asked, tried.quantised(COARSE))
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
def test_the_budget_is_kept_by_a_standard_error_if_the_puzzles_can_tell(
    num_puzzles: int, num_lost: int, budget: float, kept: bool
) -> None:
    assert is_kept(lost_of(num_puzzles, num_lost), budget) == kept


@pytest.mark.parametrize(
    ("budget", "scales", "looked"),
    [(0.6, FINE, 128), (0.3, COARSE, 128), (0.3, FINE, 200)],
)
def test_a_comparison_ends_at_the_first_look_that_decides_it(
    budget: float, scales: dict[str, float], looked: int
) -> None:
    """About 3 of 10 puzzles are lost: 128 of 200 decide about six, only all 200 about three."""
    asked = own_answers(200)
    tried = trials(budget)
    ours = Run(tried, "trying", asked, tried.quantised(scales))
    float32 = Run(tried, "float32", asked)
    assert tried.lost(ours, float32).num_puzzles == looked


def test_a_method_that_is_clearly_worse_runs_no_further() -> None:
    asked = own_answers(200)
    tried = trials(1.0)
    fine = Run(tried, "fine", asked, tried.quantised(FINE))
    coarse = Run(tried, "coarse", asked, tried.quantised(COARSE))
    assert tried.surviving_methods({"fine": fine, "coarse": coarse}, len(asked)) == ["fine"]
    assert len(coarse.so_far.exact_N) == 128


def test_drift_is_none_against_itself_and_grows_with_the_scale() -> None:
    states = random_inputs(slots_for(GRAPH) + 5)
    at_once = run(GRAPH, states, optimised=True)
    reference = [at_once["z_high_BND_next"], at_once["z_low_BND_next"]]
    assert drift(reference, carries_after(SERVED, GRAPH, states)) < 1e-5
    drifts: list[float] = []
    for scale in (0.1, 0.4, 1.6):  # none of them clips
        rounded = unsigned(quantise(GRAPH, dict.fromkeys(SITES, scale)))
        carries = carries_after(SERVED, rounded, states)
        drifts.append(drift(carries, reference))
    assert drifts == sorted(drifts)


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
    wrong = CliRunner().invoke(app, ["int8", str(bundle), "--calib", "maze", *options])
    assert wrong.exit_code == 2
    assert wrong.stderr.count("\n") == 1
    assert "give sudoku" in wrong.stderr
    ended = CliRunner().invoke(app, ["int8", str(bundle), "--calib", "sudoku", *options])
    assert ended.exit_code == 0, ended.output
    assert "exact solves" in ended.stdout
    assert {file.name for file in out.iterdir()} == {
        "step.int8.onnx",
        "step.int8.cpu.onnx",
        "calibration.json",
        "layers.png",
        "ranges.png",
    }
    again = CliRunner().invoke(app, ["int8", str(bundle), "--calib", "sudoku", *options])
    assert again.exit_code == 2
    assert "exists already" in again.stderr


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


def test_the_interval_contains_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    num_held = 0
    for _ in range(400):
        cell_N = rng.choice(4, 500, p=(0.85, 0.04, 0.02, 0.09))
        reference_N = np.isin(cell_N, (0, 1))
        ours_N = np.isin(cell_N, (0, 2))
        found = paired(reference_N, ours_N)
        num_held += found.low <= 0.02 <= found.high
    assert 0.92 < num_held / 400 < 0.98
