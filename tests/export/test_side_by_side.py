"""hrm-eval of two models: the same puzzles, and a paired interval as the gate of an export has."""

import json
from pathlib import Path

import pytest
from calibration_tools import questions
from echo_bundle import write_echo_bundle
from export_tools import relational_sizes, small_model
from typer.testing import CliRunner, Result

from hrm_calibration.int8_report import Paired
from hrm_edge_runtime.parity.measures import loss_interval
from hrm_export.eval_cli import main as app
from hrm_export.side_by_side import ModelComparison, ModelScore, Score
from hrm_model import checkpoint
from hrm_puzzles import registry
from hrm_puzzles.data import datasets

SUDOKU = registry.get("sudoku-4x4")
NUM_PUZZLES = 6
NUM_FULL = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that proves full boards alone, a checkpoint that proves nothing, and puzzles."""
    path = tmp_path_factory.mktemp("sides")
    write_echo_bundle(path / "echo.bundle")
    model = small_model(num_puzzle_ids=1, max_segments=2)
    checkpoint.save(path / "step_1", model, {"puzzle": SUDOKU.name})
    other = small_model(num_puzzle_ids=1, max_segments=2, **relational_sizes("sudoku-6x6"))
    checkpoint.save(path / "step_2", other, {"puzzle": "sudoku-6x6"})
    asked = questions(NUM_PUZZLES)
    asked.tokens_NT[:NUM_FULL] = asked.labels_NT[:NUM_FULL]
    datasets.write_split(path / "data", "test", asked.tokens_NT, asked.labels_NT, puzzle=SUDOKU)
    return path


def evaluated(folder: Path, first: str, second: str, *options: str) -> Result:
    sides = [str(folder / first), str(folder / second)]
    return CliRunner().invoke(app, [*sides, "--data", str(folder / "data"), *options])


@pytest.mark.parametrize(
    ("first", "second", "num_lost", "num_won"),
    [
        ("echo.bundle", "step_1", NUM_FULL, 0),
        ("step_1", "echo.bundle", 0, NUM_FULL),
        ("echo.bundle", "echo.bundle", 0, 0),
    ],
)
def test_two_models_are_paired_puzzle_by_puzzle(
    folder: Path, first: str, second: str, num_lost: int, num_won: int
) -> None:
    result = evaluated(folder, first, second, "--json")
    assert result.exit_code == 0, result.output
    proven = json.loads(result.stdout)["proven"]
    assert (proven["num_lost"], proven["num_won"]) == (num_lost, num_won)
    interval = (proven["low"], proven["high"])
    assert interval == pytest.approx(loss_interval(num_lost, num_won, NUM_PUZZLES))


def test_a_table_shows_both_and_what_would_decide(folder: Path) -> None:
    result = evaluated(folder, "echo.bundle", "step_1", "--markdown")
    assert result.exit_code == 0, result.output
    low, high = loss_interval(NUM_FULL, 0, NUM_PUZZLES)
    interval = f"({-100 * high:+.1f} to {-100 * low:+.1f}) points"
    assert f"| proven | 33.3 % | 0.0 % | -33.3 {interval} |" in result.stdout
    assert "undecided over 6 puzzles; proven: 2 only by the first" in result.stdout
    assert "puzzles would decide" in result.stdout


@pytest.mark.parametrize(("num_lost", "num_won"), [(0, 40), (40, 0)])
def test_the_better_model_is_named_when_the_interval_decides(num_lost: int, num_won: int) -> None:
    low, high = loss_interval(num_lost, num_won, 100)
    pair = Paired(
        num_puzzles=100,
        reference=0.5,
        ours=0.5,
        num_lost=num_lost,
        num_won=num_won,
        loss=(num_lost - num_won) / 100,
        low=low,
        high=high,
    )
    score = Score(num_puzzles=100, exact=0.5, proven=0.5, mean_segments=2.0)
    side = ModelScore(model="m", precision="p", score=score)
    verdict = ModelComparison(first=side, second=side, proven=pair, exact=pair).verdict()
    better = "second" if num_won else "first"
    assert verdict.startswith(f"the {better} model is better over 100 puzzles")


@pytest.mark.parametrize(
    ("second", "options", "saying"),
    [
        ("step_2", (), "give two models of one board"),
        ("step_1", ("--picture", "p.png"), "--picture draws the policies of one model"),
    ],
)
def test_what_cannot_be_compared_is_rejected(
    folder: Path, second: str, options: tuple[str, ...], saying: str
) -> None:
    result = evaluated(folder, "echo.bundle", second, *options)
    assert result.exit_code == 2, result.output
    assert saying in result.stderr
