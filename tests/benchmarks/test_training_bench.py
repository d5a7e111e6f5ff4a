"""The plain step and our trainer do equal work, and the benchmark would notice if they did not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from hrm_benchmarks.cli import app
from hrm_benchmarks.desktop import training
from hrm_benchmarks.report import Rounds

TINY = {"hidden_size": 32, "num_heads": 2, "puzzle_vector_size": 32}


def tiny(folder: Path, **changes: Any) -> list[training.TrainerUnderTest]:
    """The plain step, the same by our trainer, and our own recipe: 4x4 Sudoku, two heads of width 16."""
    all_of = training.contestants("small", "sudoku-4x4", folder / "data", batch_size=4, num_threads=1, compiled=False)
    return [replace(one, config=replace(one.config, **{**TINY, **changes})) for one in all_of]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions": "rope", "high_cycles": 2, "low_cycles": 2, "high_layers": 2, "low_layers": 2},
        {"puzzle_vector_size": 0},
    ],
    ids=["small", "published cycles", "no prefix"],
)
def test_equal_contestants_have_equal_losses_for_a_dozen_steps(changes: dict[str, Any], tmp_path: Path) -> None:
    plain, same, _ = (training.stepper(one) for one in tiny(tmp_path, **changes))
    losses = [plain() for _ in range(12)]
    assert [same() for _ in range(12)] == pytest.approx(losses, abs=training.LOSS_TOLERANCE)
    assert len(set(losses)) == 12


@pytest.mark.process
def test_other_work_under_the_name_of_equal_work_is_refused(tmp_path: Path) -> None:
    plain, same, _ = tiny(tmp_path)
    other = replace(same, recipe=replace(same.recipe, loss="softmax"))
    with pytest.raises(ValueError, match="the work is not equal"):
        training.measure([plain, other], Rounds(number=1, turn_s=0.0, cpu_clock=False))


def test_a_ratio_is_taken_inside_its_round_and_counts_samples_not_steps(tmp_path: Path) -> None:
    plain, same, own = tiny(tmp_path)
    assert own.samples_per_step == 4 * plain.samples_per_step
    found = training.speeds([plain, same, own], np.array([[0.5, 0.25, 1.0], [1.0, 0.25, 0.5]]))
    assert [row["ratio"] for row in found] == [1.0, (2.0 + 4.0) / 2, (2.0 + 8.0) / 2]
    assert [row["equal_work"] for row in found] == [True, True, False]


@pytest.mark.process
def test_the_command_measures_a_ratio() -> None:
    options = ["--puzzle", "sudoku-4x4", "--batch", "2", "--threads", "1", "--rounds", "1", "--turn-s", "0", "--json"]
    ended = CliRunner().invoke(app, ["train", *options])
    assert ended.exit_code == 0, ended.output
    measured = json.loads(ended.stdout)
    assert [run["ratio"] > 0 for run in measured["runs"]] == [True, True, True]
    assert measured["environment"]["torch"] == torch.__version__


def test_an_unknown_preset_is_one_sentence() -> None:
    ended = CliRunner().invoke(app, ["train", "--preset", "huge"])
    assert ended.exit_code == 2
    assert "'huge' is unknown" in ended.stderr
