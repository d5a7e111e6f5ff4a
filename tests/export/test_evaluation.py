"""hrm-eval of one model and of two side by side: its output for readers and for scripts."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cli_tools import json_of, ran, rejected, succeeded
from echo_bundle import write_echo_bundle
from export_tools import SUDOKU, questions, relational_sizes, small_model

from hrm_export.eval_cli import main as app
from hrm_model import checkpoint
from hrm_parity.accuracy import ModelScore, SideBySide
from hrm_parity.outcomes import Score, loss_interval, paired
from hrm_puzzles import registry
from hrm_puzzles.arc.build import ArcRecipe, build_arc
from hrm_puzzles.data import datasets
from hrm_puzzles.data.datasets import open_split
from hrm_train.evaluate import evaluate as validate


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "echo.bundle"
    return write_echo_bundle(path, max_segments=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six puzzles, of which two are full boards already, so that an echo solves them."""
    path = tmp_path_factory.mktemp("data")
    asked = questions(6)
    asked.tokens_NT[:2] = asked.labels_NT[:2]
    ratings_N = np.array([0, 1, 0, 1, 20, 20])
    datasets.write_split(
        path, "test", asked.tokens_NT, asked.labels_NT, puzzle=SUDOKU, ratings_N=ratings_N
    )
    return path


def test_the_table_has_a_row_per_policy(bundle: Path, data: Path):
    rows = rows_of(succeeded(app, bundle, "--data", data).stdout)
    assert rows[0] == ["halting", "all (6)", "0 (2)", "1-9 (2)", "20-49 (2)"]
    assert rows[1] == ["verified", "33.3 / 3.0", "50.0 / 2.5", "50.0 / 2.5", "0.0 / 4.0"]
    assert ["learned > 0", "33.3 / 1.0", "50.0 / 1.0", "50.0 / 1.0", "0.0 / 1.0"] in rows
    assert ["fixed 4", "33.3 / 4.0", "50.0 / 4.0", "50.0 / 4.0", "0.0 / 4.0"] in rows


def rows_of(table: str) -> list[list[str]]:
    """The cells of a table that is drawn with lines."""
    lines = [line for line in table.splitlines() if line.startswith(("┃", "│"))]
    return [[cell.strip() for cell in re.split("[┃│]", line)[1:-1]] for line in lines]


def test_chosen_and_fresh_puzzles_are_repeatable(bundle: Path, data: Path):
    for source in (data, "sudoku-4x4"):
        one = json_of(app, bundle, "--data", source, "--puzzles", 3)
        assert one == json_of(app, bundle, "--data", source, "--puzzles", 3)
        assert one["plain"]["scores"]["all"]["num_puzzles"] == 3


def test_a_checkpoint_is_evaluated_as_training_validates_it(data: Path, tmp_path: Path):
    run = tmp_path / "run"
    model = small_model(num_puzzle_ids=1, max_segments=3)
    checkpoint.save(run / "step_1", model, {"puzzle": "sudoku-4x4"})
    checkpoint.point(run / "latest", run / "step_1")
    report = json_of(app, run, "--data", data, "--slots", 4)
    held = open_split(data, "test", SUDOKU)
    expected = validate(model, SUDOKU, held.rows(np.arange(len(held))))
    learned = report["plain"]["scores"]["all"]
    fixed = [point["scores"]["all"]["exact"] for point in report["fixed"]]
    assert fixed == list(expected.exact)
    assert learned["exact"] == pytest.approx(expected.halted_exact)
    assert learned["mean_segments"] == pytest.approx(expected.segments)
    assert report["precision"] == "PyTorch on cpu"


def test_variants_of_a_task_vote(tmp_path: Path):
    arc = registry.get("arc-7x7")
    recipe = ArcRecipe(puzzle="arc-7x7", tasks="0d3d703e", augment=2, hold_out_all=True)
    build_arc(recipe, arc, tmp_path / "data")
    num_ids = open_split(tmp_path / "data", "test", arc).num_puzzle_ids
    model = small_model(vocab_size=12, seq_len=49, num_puzzle_ids=num_ids, max_segments=2)
    checkpoint.save(tmp_path / "step_1", model, {"puzzle": "arc-7x7"})
    report = json_of(app, tmp_path / "step_1", "--data", tmp_path / "data")
    assert report["verified"] is None
    assert {"1", "2"} <= report["pass_at"].keys()


def test_puzzles_may_come_from_csv(bundle: Path, tmp_path: Path):
    file = tmp_path / "test.csv"
    file.write_text("mine,start,end,cost\nmine,12343412214343.1,1234341221434321,3\n")
    result = succeeded(app, bundle, "--data", file, "--columns", "start,end,cost")
    for word in ("all (1)", "1-9 (1)", "verified", "learned", "calibrated", "fixed"):
        assert word in result.stdout


WITHOUT_PYTORCH = """
import sys
for name in ("torch", "onnx", "safetensors"):
    sys.modules[name] = None
from hrm_export.eval_cli import main
main()
"""


@pytest.mark.process
def test_a_bundle_is_evaluated_on_an_install_without_pytorch(bundle: Path, data: Path):
    run = [sys.executable, "-c", WITHOUT_PYTORCH]
    for subjects in ([bundle], [bundle, bundle]):
        assert json.loads(ran(*run, *subjects, "--data", data, "--json").stdout)
    ended = ran(*run, data, "--data", data, status=3)
    assert "pip install 'hrm-edge[export]'" in ended.stderr


@pytest.fixture(scope="module")
def folder(bundle: Path) -> Path:
    """A bundle that proves full boards alone, checkpoints that prove nothing, and other boards."""
    model = small_model(num_puzzle_ids=1, max_segments=2)
    checkpoint.save(bundle.parent / "step_1", model, {"puzzle": SUDOKU.name})
    other = small_model(num_puzzle_ids=1, max_segments=2, **relational_sizes("sudoku-6x6"))
    checkpoint.save(bundle.parent / "step_2", other, {"puzzle": "sudoku-6x6"})
    boards_NT = np.full((2, 36), 2)
    boards = bundle.parent / "boards"
    datasets.write_split(boards, "test", boards_NT, boards_NT, puzzle=registry.get("sudoku-6x6"))
    return bundle.parent


@pytest.mark.parametrize(
    ("first", "second", "num_lost", "num_won"),
    [
        ("echo.bundle", "step_1", 2, 0),
        ("step_1", "echo.bundle", 0, 2),
        ("echo.bundle", "echo.bundle", 0, 0),
    ],
)
def test_paired_models(
    folder: Path, data: Path, first: str, second: str, num_lost: int, num_won: int
):
    proven = json_of(app, folder / first, folder / second, "--data", data)["proven"]
    assert (proven["num_lost"], proven["num_won"]) == (num_lost, num_won)
    interval = (proven["low"], proven["high"])
    assert interval == pytest.approx(loss_interval(num_lost, num_won, 6))


def test_a_table_shows_both_and_what_would_decide(
    folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", "200")
    sides = (folder / "echo.bundle", folder / "step_1")
    result = succeeded(app, *sides, "--data", data)
    low, high = loss_interval(2, 0, 6)
    interval = f"({-100 * high:+.1f} to {-100 * low:+.1f}) points"
    assert ["proven", "33.3 %", "0.0 %", f"-33.3 {interval}"] in rows_of(result.stdout)
    assert "undecided over 6 puzzles; proven: 2 only by the first" in result.stdout
    assert "puzzles would decide" in result.stdout


@pytest.mark.parametrize(("num_lost", "num_won"), [(0, 40), (40, 0)])
def test_the_better_model_is_named_when_the_interval_decides(num_lost: int, num_won: int):
    pair = paired(np.arange(100) < num_lost, np.arange(100) >= 100 - num_won)
    score = Score(num_puzzles=100, exact=0.5, proven=0.5, mean_segments=2.0)
    side = ModelScore(model="m", precision="p", score=score)
    verdict = SideBySide(first=side, second=side, proven=pair, exact=pair).caption()
    better = "second" if num_won else "first"
    assert verdict.startswith(f"the {better} model is better over 100 puzzles")


@pytest.mark.parametrize(
    ("arguments", "saying"),
    [
        (["step_1", "--engine", "cpu:int8"], "a checkpoint runs in PyTorch on cpu or cuda"),
        (["step_1", "--board", "sudoku-6x6"], "--board sudoku-6x6 needs relational weights"),
        (["echo.bundle", "--engine", "cpu:int8"], "choose one of fp32"),
        (["echo.bundle", "--data", "boards"], "36 positions of 8 tokens, but sudoku-4x4 has 16"),
        (["echo.bundle", "--data", "nothing"], "neither a path nor the puzzle of the model"),
        (["echo.bundle", "step_2"], "give two models of one board"),
        (["sudoku", "--board", "sudoku-6x6"], "sudoku is a bundle, of one board; omit --board"),
    ],
)
def test_what_a_model_cannot_do_is_rejected(
    folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], saying: str
):
    monkeypatch.chdir(folder)
    assert saying in rejected(app, "--data", data, *arguments)
