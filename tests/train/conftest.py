"""A small data set for the tests of training."""

from pathlib import Path

import pytest
from cli_tools import succeeded

from hrm_puzzles.cli import main as app


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "sudoku-4x4"
    sizes = ["--train", "200", "--test", "40", "--seed", "3"]
    options = ["build", "sudoku-4x4", "--out", str(out), *sizes]
    succeeded(app, *options)
    return out
