"""The memory estimate against the peak that the allocator sees."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_tools import succeeded
from torch.profiler import ProfilerActivity, profile

from hrm_model.config import HRMConfig
from hrm_model.families import model_of
from hrm_model.hrm import HRM
from hrm_puzzles.cli import main as data_app
from hrm_train.memory import estimate
from hrm_train.options import PlanOptions
from hrm_train.plan import plan_of
from hrm_train.recipe import Recipe
from hrm_train.run_plan import trainer_from
from hrm_train.window import Slots, recompute_blocks, window_loss

ONE_BLOCK = {"high_layers": 1, "low_layers": 1, "high_cycles": 1, "low_cycles": 1}
SMALL = HRMConfig(
    vocab_size=11,
    seq_len=81,
    hidden_size=128,
    num_heads=4,
    puzzle_vector_size=128,
    positions="learned",
    **ONE_BLOCK,
)
WIDE = replace(SMALL, hidden_size=256)
DEEP = HRMConfig(vocab_size=12, seq_len=225, hidden_size=64, num_heads=4, puzzle_vector_size=128)
BASELINE = replace(DEEP, arch="transformer", max_segments=1)
RECIPE = Recipe(window=1)
STABLE = replace(RECIPE, loss="stablemax")
RIGHT = 0.2  # what an estimate may be off by


def peak_bytes(model: HRM, slots: Slots, recipe: Recipe) -> int:
    """The most that was allocated at once during a step, beside what existed before."""
    vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = window_loss(model, slots, vector_BE, recipe, model.config.max_segments).loss
        loss.backward()
    events = seen.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    sizes = np.cumsum([event.nbytes() for event in changes])
    return int(sizes.max())


@pytest.mark.parametrize(
    ("config", "recipe", "rows", "dtype", "recompute"),
    [
        (SMALL, RECIPE, 32, torch.float32, False),
        (WIDE, STABLE, 4, torch.float32, False),
        (DEEP, RECIPE, 8, torch.float32, False),
        (DEEP, RECIPE, 16, torch.float32, True),
        (DEEP, replace(STABLE, continue_loss=True), 2, torch.bfloat16, False),
        (BASELINE, RECIPE, 4, torch.float32, False),
    ],
)
def test_the_estimate_is_the_peak_of_a_step(
    config: HRMConfig, recipe: Recipe, rows: int, dtype: torch.dtype, recompute: bool
):
    found = estimate(config, recipe, dtype=dtype, slots=rows, micro_batch=rows, recompute=recompute)
    torch.manual_seed(0)
    model = model_of(config)
    if recompute:
        recompute_blocks(model)
    slots = Slots.empty(model, rows, torch.device("cpu"), dtype)
    assert found.activations == pytest.approx(peak_bytes(model, slots, recipe), rel=RIGHT)


@pytest.mark.gpu
@pytest.mark.parametrize("preset", ["log", "published"])
def test_a_preset_takes_no_more_of_a_gpu_than_estimated(
    preset: str, tmp_path: Path, record_property: Callable[[str, object], None]
):
    data = tmp_path / "data"
    succeeded(data_app, "build", "sudoku", "--out", data, "--train", 20, "--test", 2)
    run = tmp_path / "run"
    plan = plan_of(PlanOptions(run=run, puzzle="sudoku", hw="auto", data=data, preset=preset))
    trainer = trainer_from(plan)
    torch.cuda.reset_peak_memory_stats()
    trainer.step()
    estimated = plan.memory().total
    peak = torch.cuda.max_memory_reserved()
    record_property("peak_mib", peak >> 20)
    record_property("estimated_mib", estimated >> 20)
    assert peak < (1 + RIGHT) * estimated
