"""What the source documents ask of the trainer; each test names document and passage."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from train_tools import STEP_SAMPLES, fresh, small_trainer, weights_of
from typer.testing import CliRunner

from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_train.cli import main as app
from hrm_train.doctor_machine import read_log
from hrm_train.draft import draft
from hrm_train.hardware import GIGABYTE, PRESETS, hardware_from_name, threads_for
from hrm_train.meter import Reading
from hrm_train.options import PlanOptions
from hrm_train.recipe import RECIPES, config_for, recipe_for
from hrm_train.run_plan import filled
from hrm_train.telemetry import AnomalyMonitor

ROOT = Path(__file__).parents[2]


def test_the_recipe_of_the_log_learns_at_full_rate_long_before_step_2000() -> None:
    # 001, "Performance Metrics": 82-89 % on training batches at step 2,000 of 40 samples.
    recipe = draft(PlanOptions(recipe="log"), PRESETS["rtx4090-laptop"]).recipe
    assert recipe.batch_size == 40
    assert recipe.rate_at(500 * 40) == 1.0
    assert recipe.total_samples <= 2 * 3_887_892  # 001, "Dataset Information"


def test_the_recipe_of_the_log_saves_and_validates_at_its_steps(data: Path, tmp_path: Path) -> None:
    # 000, "What's Working": validation every 1,000 steps, saves every 500.
    run = tmp_path / "run"
    options = ["--recipe=log", *fresh(data, 1)]
    ended = CliRunner().invoke(app, ["--run", str(run), *options])
    assert ended.exit_code == 0, ended.output
    intervals = json.loads((run / "run.json").read_text())["intervals"]
    assert intervals["checkpoint_steps"] == 500
    assert intervals["validate_steps"] == 1000
    assert intervals["validate_whole_steps"] == 10_000


@pytest.mark.parametrize("puzzle", ["sudoku", "maze", "arc", "logistics"])
@pytest.mark.parametrize("preset", RECIPES)
def test_no_default_warms_up_for_more_than_a_tenth_of_the_run(preset: str, puzzle: str) -> None:
    # 003, "Learning Rate Warmup Misunderstanding".
    recipe = recipe_for(preset, registry.get(puzzle), 32)
    assert recipe.warmup_samples <= recipe.total_samples / 10


def test_city_logistics_warms_up_for_two_passes() -> None:
    # 003: 1,536,000 samples are 1,600 passes over 960 examples, "completely unreasonable".
    recipe = recipe_for("published", registry.get("logistics"), 32)
    assert recipe.warmup_samples == 2 * 960


def test_a_loss_that_jumps_is_reported_with_the_advice_of_the_document() -> None:
    monitor = AnomalyMonitor()
    reading = Reading(step_ms=1.0, samples_per_s=1.0, phase_ms={})
    for step in range(20):
        assert monitor.see(reading, (), loss=1.0 + 0.01 * (step % 3)) == []
    (warning,) = monitor.see(reading, (), loss=2.5)
    assert "lr" in warning
    assert "warmup_samples" in warning
    assert monitor.see(reading, (), loss=2.6) == []


def test_a_hung_driver_gets_the_remedy_of_the_document() -> None:
    # 000, "nv_queue Blocked Tasks".
    (finding,) = read_log("[ 363.1] INFO: task nv_queue:512 blocked for more than 122 seconds.\n")
    for remedy in ("pcie_aspm=off", "nvidia-smi -pm 1", "nvidia-smi -lgc", "batch_size"):
        assert remedy in finding.remedy


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("rtx3090", "rtx4090"),
        ("rtx4080", "rtx4090-laptop"),
        ("l4", "rtx4090"),
        ("a100", "rtx5090"),
        ("16gb", "rtx4090-laptop"),
        ("80gb", "h100"),
    ],
)
def test_an_unlisted_card_gets_the_row_of_its_memory(name: str, row: str) -> None:
    machine = hardware_from_name(name, is_here=False)
    assert machine.name == f"{name} (settings of {row})"
    assert machine.rows_900 == PRESETS[row].rows_900


def test_a_missing_card_leads_to_the_dry_run() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match="--dry-run"):
        hardware_from_name("rtx4090")


def test_threads_follow_from_the_model_and_the_cores_alone() -> None:
    tiny = HRM(config_for("relational", registry.get("sudoku-4x4"), 1)).num_parameters
    published = HRM(config_for("published", registry.get("sudoku"), 1)).num_parameters
    assert threads_for(tiny, num_cores=8) == 1
    assert threads_for(published, num_cores=8) == 8
    assert threads_for(published, num_cores=2) == 2


def test_the_threads_of_a_run_are_recorded_and_kept_by_a_resume(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    start = [*fresh(data, 2), "--threads", "1"]
    ended = CliRunner().invoke(app, ["--run", str(run), *start])
    assert ended.exit_code == 0, ended.output
    assert json.loads((run / "run.json").read_text())["hardware"]["threads"] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    total = f"total_samples={3 * STEP_SAMPLES}"
    ended = CliRunner().invoke(app, ["--run", str(run), "--resume", "--set", total])
    assert ended.exit_code == 0, ended.output
    assert torch.get_num_threads() == 1
    assert json.loads((run / "run.json").read_text())["hardware"]["threads"] == 1


def test_a_card_is_filled_to_the_requested_share(tmp_path: Path) -> None:
    # 002, "VRAM Usage Journey": 14 of 32 GB at a batch of 32; the author wanted the card full.
    options = PlanOptions(recipe="maze-1k", hw="rtx5090", data=tmp_path / "absent")
    plan = draft(options, hardware_from_name("rtx5090", is_here=False))
    fuller = filled(plan, 0.9)
    share = fuller.memory().total / (32 * GIGABYTE)
    assert 0.85 <= share <= 0.9
    assert fuller.recipe == plan.recipe
    more = replace(fuller.hardware, micro_batch=fuller.micro_batch + 8)
    assert replace(fuller, hardware=more).memory().total > 0.9 * 32 * GIGABYTE


def test_a_dry_run_names_the_basis_of_its_estimate(tmp_path: Path) -> None:
    arguments = ["--hw=rtx5090", "--recipe=maze-1k", "--dry-run", f"--data={tmp_path / 'absent'}"]
    shown = CliRunner().invoke(app, [*arguments, "--fill=0.9"])
    assert shown.exit_code == 0, shown.output
    words = " ".join(shown.output.split())
    assert "calculated; measured only at 81 tokens on an H100" in words


def test_lion_resumes_with_the_same_bytes(data: Path, tmp_path: Path) -> None:
    # 004, "Optimizer and scheduler": "Start with AdamW or Lion"; 000, "Resume Logic Bug".
    pytest.importorskip("lion_pytorch")
    whole = small_trainer(data, optimizer="lion", lr=3e-4)
    first = small_trainer(data, optimizer="lion", lr=3e-4)
    for _ in range(3):
        whole.step()
        first.step()
    first.save(tmp_path / "half" / "step_3", {})
    resumed = small_trainer(data, optimizer="lion", lr=3e-4)
    resumed.restore(tmp_path / "half" / "step_3")
    for _ in range(4):
        whole.step()
        resumed.step()
    for name, trainer in (("whole", whole), ("resumed", resumed)):
        trainer.save(tmp_path / name / "step_7", {})
        (tmp_path / name / "latest").write_text("step_7")
    assert weights_of(tmp_path / "resumed") == weights_of(tmp_path / "whole")


def test_lion_that_is_missing_names_its_install_line_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lion_pytorch", None)
    absent = tmp_path / "data"
    options = ["--puzzle=sudoku-4x4", "--set=optimizer=lion", f"--data={absent}"]
    ended = CliRunner().invoke(app, [f"--run={tmp_path / 'run'}", *options])
    assert ended.exit_code == 2
    assert "pip install 'hrm-edge[lion]'" in ended.output
    assert not absent.exists()


SYMPTOMS = {
    "memory": ("micro_batch", "recompute"),  # 004, "memory is near OOM"; 001, "OOM errors"
    "samples/s": ("workers", "prefetch"),  # 004, "samples/sec is flat but utilization is low"
    "slow steps": ("--validate-steps", "--checkpoint-steps"),  # 004, "If step_time spikes"
    "loss jumps": ("lr", "warmup_samples"),  # 004, "Stability at scale"
    "too sure": ("label_smoothing",),  # 004, "reduce overconfidence"
    "nv_queue": ("hrm-doctor",),  # 001, "Known Issues and Solutions"
    "stopped": ("--resume",),  # 001, "Lost progress"
}


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_page_has_a_remedy_for_each_symptom_of_the_documents(symptom: str) -> None:
    (row,) = [row for row in symptom_rows() if symptom in row.split("|")[1]]
    remedy = row.split("|")[3]
    for word in SYMPTOMS[symptom]:
        assert word in remedy


def test_every_setting_of_a_remedy_exists() -> None:
    settings = re.findall(r"--set ([a-z_]+=[\w.%-]+)", " ".join(symptom_rows()))
    assert len(settings) >= 6
    draft(PlanOptions(puzzle="sudoku-4x4", settings=settings), PRESETS["cpu"])


def symptom_rows() -> list[str]:
    """The rows of the table under "When a number looks wrong"."""
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("## When a number looks wrong\n")
    section, _, _ = rest.partition("\n## ")
    return [line for line in section.splitlines() if line.startswith("|")][2:]
