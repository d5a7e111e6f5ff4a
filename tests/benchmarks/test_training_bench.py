"""`hrm-bench train`: equal work beside the published step, families and fewer puzzles."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_tools import json_of, rejected

from hrm_benchmarks.cli import app
from hrm_benchmarks.command import TrainingOptions
from hrm_benchmarks.desktop import training
from hrm_benchmarks.desktop.contest import COMPARED, FAMILIES, built
from hrm_puzzles import registry
from hrm_puzzles.data.datasets import SPLITS, open_split

PUZZLE = "sudoku-4x4"
TINY = {"hidden_size": 32, "num_heads": 2, "puzzle_vector_size": 32}
PUBLISHED_CYCLES = {
    "positions": "rope",
    "high_cycles": 2,
    "low_cycles": 2,
    "high_layers": 2,
    "low_layers": 2,
}


def tiny(folder: Path, **changes: Any) -> list[training.TrainerUnderTest]:
    """Return the three contestants on 4x4 Sudoku, with two heads of width 16."""
    options = TrainingOptions(puzzle=[PUZZLE], batch=4, threads=1)
    contestants = training.contestants(options, folder)
    sizes = {**TINY, **changes}
    return [replace(one, config=replace(one.config, **sizes)) for one in contestants]


def test_equal_contestants_have_equal_losses(tmp_path: Path):
    """Without a puzzle vector; the command compares contestants that have one."""
    plain, same, _ = tiny(tmp_path, **PUBLISHED_CYCLES, puzzle_vector_size=0)
    plain_step = training.stepper(plain)
    same_step = training.stepper(same)
    plain_losses = [plain_step() for _ in range(12)]
    same_losses = [same_step() for _ in range(12)]
    assert same_losses == pytest.approx(plain_losses, abs=training.LOSS_TOLERANCE)
    assert len(set(plain_losses)) == 12


def test_unequal_work_under_the_name_of_equal_work_is_rejected(tmp_path: Path):
    plain, same, own = tiny(tmp_path)
    losses = ([1.0, 0.5], [1.0, 0.5 + 2 * training.LOSS_TOLERANCE])
    training.require_equal([plain, own], losses)
    with pytest.raises(ValueError, match="the work is not equal"):
        training.require_equal([plain, same], losses)


@pytest.mark.process
def test_the_command_measures_a_ratio_of_samples_not_of_steps():
    sizes = "--puzzle sudoku-4x4 --batch 2 --threads 1"
    figures = json_of(app, *f"train {sizes} --rounds 1 --turn-s 0".split())
    windows = [1, 1, 4]
    plain_per_s = figures["rows"][0]["samples_per_s"]
    for row, window in zip(figures["rows"], windows, strict=True):
        assert row["samples_per_s"] == pytest.approx(1e3 * 2 * window / row["step_ms"])
        assert row["ratio"] == pytest.approx(row["samples_per_s"] / plain_per_s)
    assert figures["environment"]["torch"] == torch.__version__


def test_every_family_is_compared_with_about_as_many_parameters():
    names = [f"--puzzle={name}" for name in COMPARED]
    sizes = ["--puzzles", "8", "4", "--cpu-s", "0", "--seed", "3"]
    rows = json_of(app, "train", "--compare", *names, *sizes)["rows"]
    assert [row["model"] for row in rows] == [*FAMILIES] * len(COMPARED)
    assert {row["puzzles"] for row in rows} == {8}
    for row in rows:
        assert row["parameters"] == pytest.approx(150_000, rel=0.15), row
    assert "use one of them" in rejected(app, "train", "--compare", "--scaling")


def test_every_part_gets_equal_samples_and_the_parts_double():
    options = f"--puzzle {PUZZLE} --puzzles 16 4 --samples 128".split()
    rows = json_of(app, "train", "--scaling", *options)["rows"]
    assert [row["puzzles"] for row in rows] == [2, 4, 8, 16]
    assert {row["samples"] for row in rows} == {128}
    assert len({row["steps"] for row in rows}) == 1


def test_the_puzzles_of_a_smaller_part_are_in_a_larger_one(tmp_path: Path):
    splits = []
    puzzle = registry.get(PUZZLE)
    for count in (4, 8, 32):
        data = built(PUZZLE, tmp_path / f"{count}", (count, 4))
        splits.append({name: open_split(data, name, puzzle).inputs_NT[:] for name in SPLITS})
    for smaller, larger in pairwise(splits):
        assert np.array_equal(smaller["test"], larger["test"])
        is_same_SL = (smaller["train"][:, None] == larger["train"]).all(axis=2)
        assert is_same_SL.any(axis=1).all()
