"""One curve over parts of the data: equal samples, nested parts, one table."""

import json
from pathlib import Path

import numpy as np
from bench_tools import figures_of, refusal_of

from hrm_benchmarks.desktop.scaling import PartOfSource
from hrm_puzzles import registry
from hrm_puzzles.data.build import DataRecipe, build
from hrm_train.batches import open_source

PUZZLE = "sudoku-4x4"


def test_every_part_gets_equal_samples_and_the_parts_double(tmp_path: Path) -> None:
    sizes = f"--puzzle {PUZZLE} --puzzles 16 4 --samples 128"
    figures = figures_of(f"scaling {sizes} --out {tmp_path}")
    runs = figures["runs"]
    assert [run["puzzles"] for run in runs] == [2, 4, 8, 16]
    assert {run["samples"] for run in runs} == {128}
    assert len({run["steps"] for run in runs}) == 1
    assert json.loads((tmp_path / "scaling.json").read_text())["runs"] == runs
    assert (tmp_path / "scaling.md").read_text().count("\n") == 2 + len(runs)
    assert (tmp_path / "scaling.png").stat().st_size > 1000


def test_a_smaller_part_is_in_a_larger_one_and_draws_nothing_else(tmp_path: Path) -> None:
    build(DataRecipe(puzzle=PUZZLE, num_train=32, num_test=4), tmp_path / "data")
    whole = open_source(tmp_path / "data", "train", registry.get(PUZZLE))
    chances_B2 = np.zeros((64, 2))
    drawn: list[set[int]] = []
    for count in (4, 8, 32):
        part = PartOfSource(whole, count, seed=1)
        groups_B = np.arange(64) % count
        drawn.append(set(part.pick(groups_B, chances_B2).tolist()))
        assert len(drawn[-1]) == count
    assert drawn[0] < drawn[1] < drawn[2]


def test_too_few_puzzles_are_refused(tmp_path: Path) -> None:
    refusal = refusal_of(f"scaling --puzzle {PUZZLE} --puzzles 4 4 --out {tmp_path}")
    assert "give at least 8" in refusal
