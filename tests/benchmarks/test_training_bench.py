"""The plain step and our trainer do equal work, and the benchmark notices if they do not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bench_tools import figures_of

from hrm_benchmarks.desktop import training
from hrm_benchmarks.report import Rounds

TINY = {"hidden_size": 32, "num_heads": 2, "puzzle_vector_size": 32}
PUBLISHED_CYCLES = {
    "positions": "rope",
    "high_cycles": 2,
    "low_cycles": 2,
    "high_layers": 2,
    "low_layers": 2,
}
NO_PREFIX = {"puzzle_vector_size": 0}


def tiny(folder: Path, **changes: Any) -> list[training.TrainerUnderTest]:
    """Return the three contestants on 4x4 Sudoku, with two heads of width 16."""
    contestants = training.contestants(
        "small", "sudoku-4x4", folder / "data", batch_size=4, num_threads=1
    )
    sizes = {**TINY, **changes}
    return [replace(one, config=replace(one.config, **sizes)) for one in contestants]


@pytest.mark.parametrize(
    "changes", [{}, PUBLISHED_CYCLES, NO_PREFIX], ids=["small", "published cycles", "no prefix"]
)
def test_equal_contestants_have_equal_losses_for_a_dozen_steps(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    plain, same, _ = tiny(tmp_path, **changes)
    plain_step = training.stepper(plain)
    same_step = training.stepper(same)
    plain_losses = [plain_step() for _ in range(12)]
    same_losses = [same_step() for _ in range(12)]
    assert same_losses == pytest.approx(plain_losses, abs=training.LOSS_TOLERANCE)
    assert len(set(plain_losses)) == 12


@pytest.mark.process
def test_unequal_work_under_the_name_of_equal_work_is_rejected(tmp_path: Path) -> None:
    plain, same, _ = tiny(tmp_path)
    other = replace(same, recipe=replace(same.recipe, loss="softmax"))
    one_round = Rounds(number=1, turn_s=0.0, cpu_clock=False)
    with pytest.raises(ValueError, match="the work is not equal"):
        training.measure([plain, other], one_round)


def test_a_ratio_is_taken_inside_its_round_and_counts_samples_not_steps(tmp_path: Path) -> None:
    plain, same, own = tiny(tmp_path)
    assert own.samples_per_step == 4 * plain.samples_per_step
    seconds_RC = np.array([[0.5, 0.25, 1.0], [1.0, 0.25, 0.5]])
    first, second, third = training.speeds([plain, same, own], seconds_RC)
    assert first["ratio"] == 1.0
    assert second["ratio"] == (2.0 + 4.0) / 2
    assert third["ratio"] == (2.0 + 8.0) / 2
    assert second["equal_work"]
    assert not third["equal_work"]


@pytest.mark.process
def test_the_command_measures_a_ratio() -> None:
    sizes = "--puzzle sudoku-4x4 --batch 2 --threads 1"
    figures = figures_of(f"train {sizes} --rounds 1 --turn-s 0")
    assert len(figures["runs"]) == 3
    for run in figures["runs"]:
        assert run["ratio"] > 0
    assert figures["environment"]["torch"] == torch.__version__
