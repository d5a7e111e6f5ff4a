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
    for_cpus,
    is_kept,
    parts_of,
)
from hrm_calibration.int8_report import Int8Report, MethodScore, Paired, paired
from hrm_calibration.quantize import call_sites, quantize, unsigned
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


def test_tensorrt_gets_eight_bits_and_a_cpu_seven_of_one_calibration(result: Calibrated) -> None:
    signed, report = result
    narrow = for_cpus(GRAPH, report.scales, report.weight_only)
    assert largest_step(signed) == 127
    assert largest_step(narrow) == 64
    seven_bits = quantize(GRAPH, report.scales, weight_only=report.weight_only, weight_bits=7)
    assert narrow == unsigned(seven_bits, report.weight_only)


def test_every_call_site_has_a_range_and_every_matrix_a_rank(result: Calibrated) -> None:
    _, report = result
    drifts = list(report.sensitivity.values())
    assert list(report.largest) == list(report.scales) == SITES
    assert sorted(report.sensitivity) == WEIGHTS
    assert drifts == sorted(drifts, reverse=True)
    assert drifts[-1] > 0


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
def test_the_budget_is_kept_by_a_standard_error_if_the_puzzles_can_tell(
    num_puzzles: int, num_lost: int, budget: float, kept: bool
) -> None:
    assert is_kept(lost_of(num_puzzles, num_lost), budget) == kept


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
