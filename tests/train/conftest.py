"""A small data set for the tests of training."""

from pathlib import Path

import pytest

from hrm_puzzles.data.build import DataRecipe, build


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "sudoku-4x4"
    build(DataRecipe(puzzle="sudoku-4x4", num_train=200, num_test=40, seed=3), out)
    return out
