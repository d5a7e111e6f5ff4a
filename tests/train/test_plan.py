"""Machines, recipes and plans: what a run becomes, and whether each machine can hold it."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_tools import ran, succeeded
from files import ROOT, text_of
from puzzle_tools import write_tasks

from hrm_model import checkpoint
from hrm_model.families import num_parameters_of
from hrm_puzzles import registry
from hrm_puzzles.cli import main as data_app
from hrm_puzzles.data.datasets import DatasetError, open_split
from hrm_train.checkpoints import start_of
from hrm_train.cli import main as app
from hrm_train.hardware import PRESETS, hardware_from_name, preset_for_gpu
from hrm_train.optim import OPTIMIZERS
from hrm_train.options import PlanOptions
from hrm_train.plan import RECORDS, draft, plan_of
from hrm_train.recipe import NAMED, SIZES, Recipe, config_for
from hrm_train.run import run_of
from hrm_train.run_plan import NAME_BYTES, RunPlan, trainer_from, write_plan
from hrm_train.tuning import tuned

TRAINING_GPUS = [preset for preset in PRESETS.values() if preset.gpu and not preset.refusal]
ALL_ARC_TASKS = 876_000  # published puzzle ids: 960 tasks in 1,000 variants, without duplicates


@pytest.mark.parametrize(
    ("gpu", "memory_gb", "name"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 17.2, "rtx4090-laptop"),
        ("NVIDIA GeForce RTX 3070 Ti", 8.6, "rtx3070ti"),
        ("NVIDIA H100 80GB HBM3", 85.0, "h100"),
        ("Orin", 8.0, "jetson-orin"),
        ("NVIDIA A100-SXM4-40GB", 42.4, "rtx5090"),
    ],
)
def test_a_gpu_is_known_by_name_or_memory(gpu: str, memory_gb: float, name: str):
    assert preset_for_gpu(gpu, memory_gb) == name


def test_what_cannot_train_is_rejected_in_one_sentence():
    with pytest.raises(ValueError, match="a Jetson serves models and does not train them"):
        hardware_from_name("jetson-orin")
    with pytest.raises(ValueError, match="has 2 GB, less than any preset"):
        preset_for_gpu("NVIDIA T400", 2.0)


@pytest.mark.parametrize(
    ("name", "num_ids"),
    [("sudoku-1k", 1), ("arc-1", ALL_ARC_TASKS), ("log", 1), ("trm-sudoku", 1), ("trm-arc", 1)],
)
def test_every_machine_holds_its_micro_batch(name: str, num_ids: int):
    for machine in TRAINING_GPUS:
        plan = draft(PlanOptions(recipe=name), machine).with_puzzle_ids(num_ids)
        assert plan.recipe.continue_loss == (plan.config.arch == "hrm")
        found = plan.memory()
        assert found.total < 0.85 * machine.memory_gb * 1e9, (machine.name, found.summary())


def test_presets_have_the_sizes_they_state():
    kind = registry.get("arc")
    assert {name: num_parameters_of(config_for(name, kind, 1)) for name in SIZES} == {
        "published": 27_276_290,
        "log": 5_970_434,
        "small": pytest.approx(0.34e6, rel=0.5),
        "trm": 6_829_058,
        "relational": 25_458,
    }


PLAIN = ("precision=fp32", "compile=false")  # --hw cpu chooses others on processors with AMX
SMALL = ("hidden_size=32", "puzzle_vector_size=32", "max_segments=4", "batch_size=8")


def planned(folder: Path, puzzle: str, data: Path, *settings: str, **more: Any) -> RunPlan:
    """The plan of a run on a CPU in `run` of this folder."""
    options = PlanOptions(
        run=folder / "run",
        puzzle=puzzle,
        hw="cpu",
        data=data,
        settings=[*PLAIN, *settings],
        **more,
    )
    return plan_of(options)


def small_plan(data: Path, folder: Path, *settings: str) -> RunPlan:
    return planned(folder, "sudoku-4x4", data, *SMALL, *settings, preset="small")


@pytest.mark.parametrize(
    ("machine", "options", "blocks", "arch"),
    [
        ("cpu", {}, "relational", "hrm"),
        ("rtx4090", {}, "attention", "hrm"),
        ("cpu", {"arch": "transformer"}, "attention", "transformer"),
        ("cpu", {"preset": "small"}, "attention", "hrm"),
    ],
)
def test_default_networks(machine: str, options: dict[str, Any], blocks: str, arch: str):
    config = draft(PlanOptions(puzzle="sudoku", **options), PRESETS[machine]).config
    assert (config.blocks, config.arch) == (blocks, arch)


@pytest.mark.parametrize(
    ("puzzle", "samples", "chosen", "compiles"),
    [
        ("sudoku-4x4", 4_800, (), False),
        ("sudoku", 1_000_000, (), True),
        ("sudoku-4x4", 4_800, ("compile=true",), True),
        ("sudoku", 1_000_000, ("compile=false",), False),
    ],
)
def test_a_cpu_compiles_only_for_a_long_run(
    puzzle: str, samples: int, chosen: tuple[str, ...], compiles: bool
):
    compiling = dataclasses.replace(PRESETS["cpu"], compile=True)
    settings = [f"total_samples={samples}", *chosen]
    plan = draft(PlanOptions(puzzle=puzzle, settings=settings), compiling)
    assert plan.hardware.compile == compiles


def test_the_recipe_of_the_log_fits_the_disk():
    shown = succeeded(app, "--dry-run", "log", "--hw", "rtx4090-laptop").stdout
    sizes = re.search(
        r"takes (\S+) GiB; held: (\S+) GiB, 4 at most; written: up to (\S+) GiB", shown
    )
    checkpoint_gib, held_gib, written_gib = map(float, sizes.groups())
    assert checkpoint_gib <= 0.5
    assert held_gib == pytest.approx(4 * checkpoint_gib, abs=0.02)
    assert written_gib == pytest.approx(195 * checkpoint_gib, abs=1)
    assert PlanOptions(recipe="log").examples == {"augment": 500}


def test_a_dry_run_tells_steps_rate_and_hours_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options = ["--dry-run", "--hw", "rtx4090", "--puzzle", "sudoku"]
    for setting in ("batch_size=192", "total_samples=1920000", "warmup_samples=19200"):
        options += ["--set", setting]
    shown = succeeded(app, *options).stdout
    assert "10,000 steps of 192 puzzles, 1,920,000 samples; lr 2.5e-05" in shown
    assert "\nat 100 samples/s: 5.3 h\n" in shown
    assert list(tmp_path.iterdir()) == []


def test_lengths_may_be_given_in_passes_over_the_data_set(data: Path, tmp_path: Path):
    def recipe_of(**options: Any) -> Recipe:
        settings = ["total_samples=5 passes", "warmup_samples=0.5 passes", "deepening_samples=40%"]
        return draft(PlanOptions(settings=settings, **options), PRESETS["cpu"]).recipe

    found = recipe_of(puzzle="sudoku-4x4", data=data)  # of 200 puzzles
    assert (found.total_samples, found.warmup_samples, found.deepening_samples) == (1000, 100, 400)
    assert recipe_of(recipe="city", data=tmp_path / "absent").total_samples == 5 * 960
    with pytest.raises(ValueError, match="absent does not exist; build it first"):
        recipe_of(puzzle="arc", data=tmp_path / "absent")


def test_the_city_recipe_has_the_figures_of_its_notes():
    options = PlanOptions(recipe="city")
    plan = draft(options, PRESETS["rtx3070ti"])
    recipe = plan.recipe
    assert (recipe.batch_size, recipe.total_samples, recipe.warmup_samples) == (32, 5 * 960, 1920)
    assert (recipe.scaled(recipe.lr), recipe.weight_decay, recipe.puzzle_lr) == (1e-4, 0.1, 1e-2)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_checkpoint_size_is_forecast(optimizer: str, data: Path, tmp_path: Path):
    if optimizer == "lion":
        pytest.importorskip("lion_pytorch")
    plan = small_plan(data, tmp_path, f"optimizer={optimizer}")
    trainer = trainer_from(plan)
    trainer.step()
    trainer.save(tmp_path / "step_1", {})
    model, _ = checkpoint.load(tmp_path / "step_1")
    assert torch.equal(model.lm_head.weight, trainer.averaged_model().lm_head.weight)
    size = sum(file.stat().st_size for file in (tmp_path / "step_1").iterdir())
    assert plan.checkpoint_bytes == pytest.approx(size, rel=0.1)
    resumed = trainer_from(plan)
    resumed.restore(tmp_path / "step_1")
    for _ in range(2):
        assert float(resumed.step().loss) == float(trainer.step().loss)


def test_a_run_that_exists_is_resumed_and_never_planned_again(data: Path, tmp_path: Path):
    write_plan(small_plan(data, tmp_path))
    with pytest.raises(ValueError, match="already holds a run; add --resume"):
        small_plan(data, tmp_path)
    with pytest.raises(ValueError, match="other holds no run; name another"):
        plan_of(PlanOptions(run=tmp_path / "other", resume=True))


def test_a_huge_data_set_needs_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10 * 2**30))
    message = r"^data/arc would take at most \d\.\d GiB; 10\.0 GiB are free there: add --yes"
    with pytest.raises(ValueError, match=message):
        plan_of(PlanOptions(hw="cpu"))
    assert list(tmp_path.iterdir()) == []


TINY_RECIPE = {
    "puzzle": "sudoku-4x4",
    "preset": "relational",
    "data": {"num_train": 40, "num_test": 20},
    "lr": 0.5,
    "explore": 0.25,
}


def test_a_named_recipe_fills_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(NAMED, "tiny", TINY_RECIPE)
    options = PlanOptions(recipe="tiny", hw="cpu", settings=["explore=0.75"])
    plan = plan_of(options)
    command = "as 'hrm-data build sudoku-4x4 --out data/tiny --train 40 --test 20' does"
    assert command in capsys.readouterr().err
    assert (plan.data, plan.run) == (Path("data/tiny"), Path("runs/tiny"))
    assert (plan.config.blocks, plan.config.num_symbols) == ("relational", 4)
    assert (plan.recipe.puzzle, plan.recipe.lr, plan.recipe.explore) == ("sudoku-4x4", 0.5, 0.75)
    with pytest.raises(ValueError, match="recipe 'huge' is unknown; choose sudoku-small"):
        plan_of(PlanOptions(recipe="huge"))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_recipe_fits_its_puzzle(name: str, data: Path, tmp_path: Path):
    options = PlanOptions(run=tmp_path / "run", recipe=name, hw="cpu", data=data)
    with pytest.raises(DatasetError, match="has 16 positions of 6 tokens"):  # the last check
        plan_of(options)


def test_a_run_starts_from_a_shipped_model_of_another_board(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    plan = planned(tmp_path, "sudoku-4x4", data, init=Path("sudoku"))
    model = trainer_from(plan).model
    assert plan.config == model.config
    assert (model.config.num_symbols, model.config.seq_len) == (4, 16)
    larger, _ = checkpoint.load(Path("model/checkpoints/sudoku"))
    for name, weights in model.named_parameters():
        assert torch.equal(weights, larger.get_parameter(name))


def test_tuning_finds_a_micro_batch_and_keeps_the_batch(data: Path, tmp_path: Path):
    plan = tuned(small_plan(data, tmp_path, "micro_batch=2"), most=1)
    assert plan.micro_batch in (1, 2, 4, 8)
    assert plan.recipe.batch_size == 8


def test_tuning_may_grow_the_batch(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hrm_train.tuning.fastest", lambda trainer, *_: len(trainer.slots))
    plan = tuned(small_plan(data, tmp_path, "base_batch=16", "lr=1e-3"), most=4)
    assert (plan.recipe.batch_size, plan.micro_batch) == (32, 32)
    assert plan.recipe.scaled(plan.recipe.lr) == pytest.approx(2e-3)


def test_the_names_of_arc_variants_are_forecast(tmp_path: Path):
    """Each id takes its vector and seven bytes: 391,601 of them, 256 wide, take 0.38 GiB."""
    data = tmp_path / "data"
    line = ["build", "arc-7x7", "--out", data, "--augment", 300, "--hold-out-all"]
    succeeded(data_app, *line, "--tasks", "0d3d703e,25ff71a9,3618c87e,67a3c6ac")
    plan = planned(tmp_path, "arc-7x7", data, preset="small")
    trainer = trainer_from(plan)
    run_of(plan, trainer, wandb=False).save()
    saved = start_of(plan.run)
    size = sum(file.stat().st_size for file in saved.iterdir())
    assert plan.config.num_puzzle_ids > 1000
    assert plan.checkpoint_bytes == pytest.approx(size, rel=0.02)
    num_bytes = (saved / checkpoint.NAMES).stat().st_size / plan.config.num_puzzle_ids
    assert 6 < num_bytes <= NAME_BYTES
    _, meta = checkpoint.load(saved)
    assert meta[checkpoint.PUZZLE_IDS] == trainer.feed.source.identifiers()


PAIR = {"input": [[1]], "output": [[2]]}
TASK = {"train": [PAIR, PAIR], "test": [PAIR]}


def built(folder: Path, *tasks: str) -> Path:
    write_tasks(folder / "tasks", {f"training/{name}": TASK for name in tasks})
    line = ["build", "arc-7x7", "--dataset", str(folder / "tasks"), "--out", str(folder / "data")]
    succeeded(data_app, *line, "--augment", "0", "--hold-out-all")
    return folder / "data"


def arc_plan(folder: Path, data: Path, init: Path | None = None) -> RunPlan:
    more = {"preset": "relational", "init": init}
    return planned(folder, "arc-7x7", data, "total_samples=64", **more)


def test_an_unknown_arc_task_trains_on_its_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.json"
    pairs = [{"input": [[1, number]], "output": [[number, 1]]} for number in (2, 3, 4)]
    file.write_text(json.dumps({"train": pairs, "test": [{"input": [[1, 5]]}]}))
    shipped = ROOT / "model" / "checkpoints" / "arc-7x7"
    start = ["arc-small", "--data", file, "--run", "run", "--hw", "cpu"]
    for setting in (*PLAIN, "total_samples=64", "warmup_samples=0", "batch_size=4"):
        start += ["--set", setting]
    ended = succeeded(app, *start, "--init", shipped)
    in_four_turns = 12  # three demonstrations
    assert re.search(rf" s +{in_four_turns}\b", ended.output)
    for split in ("train", "test"):
        source = open_split(tmp_path / "data" / "mine", split, registry.get("arc-7x7"))
        assert (len(source), source.identifiers()[1]) == (12, "mine")
    succeeded(app, *start, "--resume", "--set", "total_samples=80")
    with pytest.raises(ValueError, match="holds ARC tasks, but sudoku is not ARC"):
        plan_of(PlanOptions(puzzle="sudoku", hw="cpu", data=file))


def saved(plan: RunPlan) -> Path:
    """The checkpoint of a run before its first step, with a vector of its own for each task."""
    trainer = trainer_from(plan)
    table_NE = trainer.model.puzzle_table
    row_N = torch.arange(1.0, 1 + len(table_NE))
    table_NE.copy_(row_N[:, None].expand_as(table_NE))
    run_of(plan, trainer, wandb=False).save()
    return start_of(plan.run)


def test_known_tasks_keep_their_vectors_and_others_begin_as_the_mean(tmp_path: Path):
    before = tmp_path / "before"
    start = saved(arc_plan(before, built(before, "aaaaaaaa", "bbbbbbbb")))
    old, _ = checkpoint.load(start)
    mean_E = old.puzzle_table.mean(0)
    data = built(tmp_path / "after", "bbbbbbbb", "cccccccc", "dddddddd")
    new_NE = trainer_from(arc_plan(tmp_path / "after", data, start)).model.puzzle_table
    assert torch.equal(new_NE[0], old.puzzle_table[0])  # the blank row
    assert torch.equal(new_NE[1], old.puzzle_table[2])
    for row in (2, 3):
        assert torch.equal(new_NE[row], mean_E)
    unnamed = tmp_path / "unnamed"
    checkpoint.save(unnamed / "step_1", old, {})
    new_NE = trainer_from(arc_plan(unnamed, data, unnamed / "step_1")).model.puzzle_table
    assert torch.equal(new_NE, mean_E.expand_as(new_NE))


def test_every_setting_that_a_page_or_a_script_names_exists():
    listed = ran("git", "ls-files", cwd=ROOT)
    known = {field.name for record in RECORDS.values() for field in dataclasses.fields(record)}
    named = set()
    for file in listed.stdout.splitlines():
        is_history = file.startswith(("benchmarks/results/", "CHANGELOG", "tests/"))
        if file.endswith((".md", ".sh", ".yaml")) and not is_history:
            text = (ROOT / file).read_text(encoding="utf-8")
            named |= set(re.findall(r"--set (\w+)=", text))
    assert len(named) > 20
    assert named <= known
    settings = re.findall(r"--set ([a-z_]+=[a-z\d][\w.%-]*)", text_of("docs/training.md"))
    draft(PlanOptions(puzzle="sudoku-4x4", settings=settings), PRESETS["cpu"])
