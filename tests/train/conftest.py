"""A small data set for the tests of training."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small 4x4 data set, built by the command a person would use."""
    out = tmp_path_factory.mktemp("data") / "sudoku-4x4"
    command = "from hrm_puzzles.cli import main; main()"
    options = ["build", "sudoku-4x4", "--out", str(out), "--train", "200", "--test", "40", "--seed", "3"]
    subprocess.run([sys.executable, "-c", command, *options], check=True, capture_output=True)
    return out
