"""What the source documents ask of the trainer; each test names document and passage."""

import json
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cli_tools import rejected, succeeded
from train_tools import STEP_SAMPLES, fresh

from hrm_host.machine import num_cores
from hrm_model.families import num_parameters_of
from hrm_puzzles import registry
from hrm_train.cli import main as app
from hrm_train.doctor import read_log
from hrm_train.hardware import (
    GIGABYTE,
    PRESETS,
    hardware_from_name,
    threads_for,
    usable_cores,
)
from hrm_train.options import PlanOptions
from hrm_train.plan import draft
from hrm_train.recipe import RECIPES, config_for, recipe_for
from hrm_train.telemetry import USUAL_LOSSES, warning_of_a_jump
from hrm_train.tuning import filled


def test_the_recipe_of_the_log():
    # 001, "Performance Metrics": 82-89 % on training batches at step 2,000 of 40 samples.
    options = PlanOptions(recipe="log")
    recipe = draft(options, PRESETS["rtx4090-laptop"]).recipe
    assert recipe.batch_size == 40
    assert recipe.rate_at(500 * 40) == 1.0
    assert recipe.total_samples <= 2 * 3_887_892  # 001, "Dataset Information"
    # 000, "What's Working": validation every 1,000 steps, saves every 500.
    intervals = options.named_intervals
    assert (intervals.checkpoint_steps, intervals.validate_steps) == (500, 1000)
    assert intervals.validate_whole_steps == 10_000


@pytest.mark.parametrize("puzzle", ["sudoku", "maze", "arc", "logistics"])
@pytest.mark.parametrize("preset", RECIPES)
def test_no_default_warms_up_for_more_than_a_tenth_of_the_run(preset: str, puzzle: str):
    # 003, "Learning Rate Warmup Misunderstanding".
    recipe = recipe_for(preset, registry.get(puzzle), 32)
    assert recipe.warmup_samples <= recipe.total_samples / 10


def test_a_loss_that_jumps_is_reported_with_the_advice_of_the_document():
    recent = deque[float](maxlen=USUAL_LOSSES)
    for step in range(20):
        assert warning_of_a_jump(recent, 1.0 + 0.01 * (step % 3)) is None
    warning = warning_of_a_jump(recent, 2.5)
    assert "lr" in warning
    assert "warmup_samples" in warning
    assert warning_of_a_jump(recent, 2.6) is None


def test_a_hung_driver_gets_the_remedy_of_the_document():
    # 000, "nv_queue Blocked Tasks".
    (finding,) = read_log("[ 363.1] INFO: task nv_queue:512 blocked for more than 122 seconds.\n")
    for remedy in ("pcie_aspm=off", "nvidia-smi -pm 1", "nvidia-smi -lgc", "batch_size"):
        assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("rtx3090", "rtx4090"),
        ("a100", "rtx5090"),
        ("80gb", "h100"),
    ],
)
def test_an_unlisted_card_gets_the_row_of_its_memory(name: str, row: str):
    machine = hardware_from_name(name, is_here=False)
    assert machine.name == f"{name} (settings of {row})"
    assert machine.rows_900 == PRESETS[row].rows_900


def test_a_missing_card_leads_to_the_dry_run():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match="--dry-run"):
        hardware_from_name("rtx4090")


def test_threads_follow_from_the_model_and_the_cores_alone():
    tiny = num_parameters_of(config_for("relational", registry.get("sudoku-4x4"), 1))
    published = num_parameters_of(config_for("published", registry.get("sudoku"), 1))
    assert threads_for(tiny, num_cores=8) == 1
    assert threads_for(published, num_cores=8) == 8
    assert threads_for(published, num_cores=2) == 2


@pytest.mark.parametrize(
    ("stated", "threads"), [("3", 3), ("3,2", 3), ("0", 1), ("all", num_cores()), ("", num_cores())]
)
def test_threads_of_the_environment(stated: str, threads: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert usable_cores() == threads


def test_threads_survive_a_resume(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = tmp_path / "run"
    start = [*fresh(data, 2), "--threads", "1"]
    succeeded(app, "--run", run, *start)
    assert json.loads((run / "run.json").read_text())["hardware"]["threads"] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    total = f"total_samples={3 * STEP_SAMPLES}"
    succeeded(app, "--run", run, "--resume", "--set", total)
    assert torch.get_num_threads() == 1
    assert json.loads((run / "run.json").read_text())["hardware"]["threads"] == 1


def test_a_card_is_filled_to_the_requested_share(tmp_path: Path):
    # 002, "VRAM Usage Journey": 14 of 32 GB at a batch of 32; the author wanted the card full.
    options = PlanOptions(recipe="maze-1k", hw="rtx5090", data=tmp_path / "absent")
    plan = draft(options, hardware_from_name("rtx5090", is_here=False))
    fuller = filled(plan, 0.9)
    share = fuller.memory().total / (32 * GIGABYTE)
    assert 0.85 <= share <= 0.9
    assert fuller.recipe == plan.recipe
    more = replace(fuller.hardware, micro_batch=fuller.micro_batch + 8)
    assert replace(fuller, hardware=more).memory().total > 0.9 * 32 * GIGABYTE


def test_missing_lion_is_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lion_pytorch", None)
    absent = tmp_path / "data"
    options = ["--puzzle=sudoku-4x4", "--set=optimizer=lion", f"--data={absent}"]
    told = rejected(app, f"--run={tmp_path / 'run'}", *options)
    assert "pip install 'hrm-edge[lion]'" in told
    assert not absent.exists()
