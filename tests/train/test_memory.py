"""The memory estimate against what autograd really keeps, and against the peak the allocator sees."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

from hrm_model.config import HRMConfig
from hrm_model.hrm import HRM
from hrm_puzzles.cli import main as data_app
from hrm_train import memory
from hrm_train.memory import estimate
from hrm_train.options import PlanOptions
from hrm_train.plan import open_plan
from hrm_train.recipe import Recipe
from hrm_train.start import trainer_from
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
DEEP = HRMConfig(vocab_size=12, seq_len=225, hidden_size=64, num_heads=4, puzzle_vector_size=128)
BASELINE = replace(DEEP, arch="transformer", max_segments=1)
RECIPE = Recipe(window=1)
RIGHT = 0.2  # what an estimate may be off by
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def step_of(config: HRMConfig, rows: int, dtype: torch.dtype, recompute: bool) -> tuple[HRM, Slots]:
    torch.manual_seed(0)
    model = HRM(config)
    if recompute:
        recompute_blocks(model)
    return model, Slots.empty(model, rows, torch.device("cpu"), dtype)


def kept_bytes(model: HRM, slots: Slots, recipe: Recipe) -> int:
    weights = model.state_dict(keep_vars=True).values()
    existing = set(map(id_of, [*weights, *slots.state().values()]))
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        return kept.setdefault(id_of(tensor), tensor)

    vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        window_loss(model, slots, vector_BE, recipe, model.config.max_segments)
    new = kept.keys() - existing
    return sum(kept[key].untyped_storage().nbytes() for key in new)


def id_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def peak_bytes(model: HRM, slots: Slots, recipe: Recipe) -> int:
    """The most that was allocated at once during a step, beside what existed before."""
    vector_BE = model.puzzle_table[slots.puzzle_ids_B].requires_grad_()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        loss = window_loss(model, slots, vector_BE, recipe, model.config.max_segments).loss
        loss.backward()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    sizes = np.cumsum([event.nbytes() for event in changes])
    return int(sizes.max())


@pytest.mark.parametrize(
    ("config", "recipe", "rows", "dtype"),
    [
        (SMALL, RECIPE, 16, torch.float32),
        (replace(SMALL, hidden_size=256), replace(RECIPE, loss="stablemax"), 4, torch.float32),
        (DEEP, RECIPE, 4, torch.float32),
        (DEEP, replace(RECIPE, loss="stablemax", continue_loss=True), 2, torch.bfloat16),
        (BASELINE, RECIPE, 4, torch.float32),
    ],
)
def test_estimated_activations_are_those_kept_within_a_fifth(
    config: HRMConfig, recipe: Recipe, rows: int, dtype: torch.dtype
) -> None:
    found = estimate(config, recipe, dtype=dtype, slots=rows, micro_batch=rows)
    model, slots = step_of(config, rows, dtype, recompute=False)
    assert found.activations == pytest.approx(kept_bytes(model, slots, recipe), rel=RIGHT)


@pytest.mark.parametrize(
    ("config", "rows", "recompute"), [(SMALL, 32, False), (DEEP, 8, False), (DEEP, 16, True)]
)
def test_the_estimate_is_the_peak_of_a_step_within_a_fifth(
    config: HRMConfig, rows: int, recompute: bool
) -> None:
    found = estimate(
        config, RECIPE, dtype=torch.float32, slots=rows, micro_batch=rows, recompute=recompute
    )
    model, slots = step_of(config, rows, torch.float32, recompute)
    assert found.activations == pytest.approx(peak_bytes(model, slots, RECIPE), rel=RIGHT)


def peak_beside_estimate(preset: str, hw: str, folder: Path, *settings: str) -> tuple[int, int]:
    options = ["build", "sudoku", "--out", str(folder / "data"), "--train", "20", "--test", "2"]
    assert CliRunner().invoke(data_app, options).exit_code == 0
    asked = PlanOptions(
        run=folder / "run",
        puzzle="sudoku",
        hw=hw,
        data=folder / "data",
        preset=preset,
        settings=settings,
    )
    plan = open_plan(asked)
    trainer = trainer_from(plan)
    memory.restart_peak(trainer.device)
    trainer.step()
    estimated = estimate(
        plan.config,
        plan.recipe,
        dtype=plan.hardware.dtype,
        slots=len(trainer.slots),
        micro_batch=trainer.micro_batch,
        recompute=plan.hardware.recompute,
    )
    return memory.peak_bytes(trainer.device), estimated.total


@pytest.mark.gpu
@no_gpu
@pytest.mark.parametrize("preset", ["log", "published"])
def test_a_preset_takes_no_more_of_a_gpu_than_estimated(
    preset: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    peak, estimated = peak_beside_estimate(preset, "auto", tmp_path)
    record_property("peak_mib", peak >> 20)
    record_property("estimated_mib", estimated >> 20)
    assert peak < (1 + RIGHT) * estimated


def test_weights_moments_and_average_are_counted() -> None:
    found = estimate(SMALL, RECIPE, dtype=torch.float32, slots=1, micro_batch=1)
    num_weights = sum(parameter.numel() for parameter in HRM(SMALL).parameters())
    size = 4 * num_weights
    assert (found.gradients, found.optimizer, found.average) == (size, 2 * size, size)
    assert found.total > 5 * size
