"""A build names what interrupted builds of the same data set left on disk."""

from pathlib import Path

from typer.testing import CliRunner

from hrm_puzzles.cli import main as app

BUILD = ["build", "sudoku-4x4", "--train=4", "--test=2"]


def test_what_interrupted_builds_left_is_named_and_kept(tmp_path: Path) -> None:
    killed = tmp_path / ".mine.tmp-123456789"
    stopped = tmp_path / ".mine.chunks-0123456789ab"
    foreign = tmp_path / ".other.tmp-1"
    for folder in (killed, stopped, foreign):
        folder.mkdir()
    done = CliRunner().invoke(app, [*BUILD, f"--out={tmp_path / 'mine'}"])
    assert done.exit_code == 0, done.stderr
    left = "is left from an interrupted build"
    assert f"{killed} {left}: remove it, unless that build still runs\n" in done.stderr
    assert f"{stopped} {left}: the same command continues it; otherwise remove it" in done.stderr
    assert str(foreign) not in done.stderr
    assert killed.exists()
    assert stopped.exists()


def test_a_folder_without_leftovers_gets_no_remark(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, [*BUILD, f"--out={tmp_path / 'mine'}"])
    assert "interrupted" not in done.stderr
