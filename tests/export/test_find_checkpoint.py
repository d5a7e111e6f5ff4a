"""Which checkpoint of a run hrm-export takes, and what it prints at the end."""

import re
import shlex
from pathlib import Path

import pytest
from export_tools import small_model
from typer.testing import CliRunner

from hrm_edge_runtime.contract.bundle import Bundle
from hrm_export.cli import main as app
from hrm_export.inputs import find_checkpoint
from hrm_model import checkpoint

FEW = ("--golden", "2", "--held-out", "8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run without a validation: it has a latest checkpoint and no best one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "runs" / "sudoku"
    model = small_model(num_puzzle_ids=1, max_segments=2)
    checkpoint.save(path / "step_12", model, {"puzzle": "sudoku-4x4", "step": 12})
    checkpoint.point(path / "latest", path / "step_12")
    return path


@pytest.mark.parametrize(
    ("source", "calib"), [("runs/sudoku/best", None), ("runs/sudoku", None), (None, "sudoku")]
)
def test_a_run_without_a_best_checkpoint_gives_its_latest_and_then_its_best(
    run: Path, source: str | None, calib: str | None
) -> None:
    path = None if source is None else Path(source)
    assert find_checkpoint(path, calib) == Path("runs/sudoku/latest")
    checkpoint.point(run / "best", run / "step_12")
    assert find_checkpoint(path, calib) == Path("runs/sudoku/best")


def test_the_export_says_which_checkpoint_it_took_and_ends_with_the_next_command(run: Path) -> None:
    out = "my sudoku.bundle"
    ended = CliRunner().invoke(app, [str(run / "best"), "--out", out, *FEW])
    assert ended.exit_code == 0, ended.output
    assert f"{run} has no best checkpoint; {run / 'latest'} is exported" in ended.stderr
    *_, last = ended.stdout.splitlines()
    assert re.fullmatch(r"Next: \S*hrm-serve 'my sudoku\.bundle'", last)
    _, command = last.split(": ")
    assert Bundle.open(Path(shlex.split(command)[1])).manifest.name == "my sudoku"
