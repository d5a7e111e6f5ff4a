"""hrm-train: puzzles in, checkpoint out.

hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku
hrm-train --run runs/sudoku --resume
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.geometry import start_from_geometry
from hrm_model.hrm import HRM
from hrm_puzzles import datasets, registry
from hrm_train.batches import Feed
from hrm_train.dataset import open_source, validation_rows
from hrm_train.hardware import hardware_from_name
from hrm_train.loop import Trainer
from hrm_train.presets import config_for, recipe_for
from hrm_train.recipe import Recipe, with_settings
from hrm_train.run import Intervals, Run, commit_of_source

app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console(stderr=True)
SETTINGS = "run.json"


@app.command(epilog="Example: hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku")
def train(
    run: Annotated[Path, typer.Option(help="Directory of the run: checkpoints, metrics, settings.")],
    data: Annotated[Path | None, typer.Option(help="Data set directory, as hrm-data builds it.")] = None,
    puzzle: Annotated[str, typer.Option(help="Which puzzle.")] = "sudoku",
    hw: Annotated[str, typer.Option(help="Hardware preset: auto, cpu, rtx4090, h200.")] = "auto",
    preset: Annotated[str, typer.Option(help="Model size and recipe: small or published.")] = "small",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of the model or the recipe.")] = None,
    init: Annotated[Path | None, typer.Option(help="Checkpoint whose weights to start from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run exactly where it stopped.")] = False,
    validate_steps: Annotated[int, typer.Option(min=1, help="Steps between validations.")] = 1000,
    validation_puzzles: Annotated[int, typer.Option(min=1, help="Puzzles in each validation.")] = 256,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Minutes between checkpoints.")] = 5.0,
) -> None:
    """Train an HRM on a puzzle, from a data set directory to a run directory with checkpoints."""
    plan = _read_plan(run) if resume else _new_plan(run, data, puzzle, hw, preset, settings or [], init)
    trainer, plan_meta = _trainer(plan)
    if resume:
        trainer.restore(checkpoint.resolve(run / "latest"))
    rows = validation_rows(
        open_source(Path(plan["data"]), "test", trainer.puzzle), validation_puzzles, trainer.recipe.seed
    )
    intervals = Intervals(validate_steps=validate_steps, checkpoint_minutes=checkpoint_minutes)
    _drive(Run(run, trainer, rows, intervals, plan_meta, console.print), trainer)


def _new_plan(
    run: Path, data: Path | None, puzzle: str, hw: str, preset: str, settings: list[str], init: Path | None
) -> dict[str, Any]:
    """Decides everything once and writes it down, so that --resume needs no other option."""
    if (run / SETTINGS).exists():
        raise ValueError(f"{run} already holds a run; add --resume to continue it or choose another --run")
    if data is None:
        raise ValueError(f"--data is missing; build one with 'hrm-data build {puzzle} --out data/{puzzle}'")
    kind, hardware = registry.get(puzzle), hardware_from_name(hw)
    model_settings, recipe_settings = _split_settings(settings)
    sizes = checkpoint.load_config(checkpoint.resolve(init)) if init else config_for(preset, kind)
    config = with_settings(sizes, model_settings)
    recipe = with_settings(recipe_for(preset, kind, hardware.batch_size(kind.seq_len)), recipe_settings)
    plan = {
        "data": str(data),
        "hw": hw,
        "init": str(init) if init else None,
        "model": json.loads(config.to_json()),
        "recipe": json.loads(recipe.to_json()),
    }
    open_source(data, "train", kind)
    run.mkdir(parents=True, exist_ok=True)
    (run / SETTINGS).write_text(json.dumps(plan, indent=2) + "\n")
    return plan


def _read_plan(run: Path) -> dict[str, Any]:
    if not (run / "latest").exists():
        raise ValueError(f"{run} holds no checkpoint to resume; start it without --resume")
    return {**checkpoint.read_json(run / SETTINGS), "init": None}  # the weights come from the checkpoint itself


def _split_settings(settings: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    pairs = dict(_pair(text) for text in settings)
    model_keys = set(HRMConfig.__dataclass_fields__)
    return (
        {key: value for key, value in pairs.items() if key in model_keys},
        {key: value for key, value in pairs.items() if key not in model_keys},
    )


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found:
        raise ValueError(f"--set {text!r} has no '='; write --set key=value")
    return key, value


def _trainer(plan: dict[str, Any]) -> tuple[Trainer, dict[str, Any]]:
    recipe, config = Recipe(**plan["recipe"]), HRMConfig.from_mapping(plan["model"])
    puzzle, hardware = registry.get(recipe.puzzle), hardware_from_name(plan["hw"])
    data = Path(plan["data"])
    feed = Feed(open_source(data, "train", puzzle), puzzle, seed=recipe.seed, augment=recipe.augment)
    meta = {
        "puzzle": puzzle.name,
        "data_fingerprint": datasets.fingerprint(data),
        "commit": commit_of_source(),
        "hardware": hardware.name,
    }
    model = _model(config, recipe, plan["init"], feed)
    return Trainer(model, puzzle, feed, recipe, hardware), meta


def _model(config: HRMConfig, recipe: Recipe, init: str | None, feed: Feed) -> HRM:
    torch.manual_seed(recipe.seed)
    model = HRM(config)
    if init:
        source = checkpoint.resolve(Path(init))
        checkpoint.load_state(model, checkpoint.load(source)[0].state_dict(), source)
    elif recipe.geometric_start:
        start_from_geometry(model, feed.puzzle.geometry)
    return model


def _drive(run: Run, trainer: Trainer) -> None:
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    console.print(
        f"{parameters:,} parameters on {trainer.hardware.device}, {trainer.recipe.batch_size} slots, run {run.path}"
    )
    total = trainer.recipe.total_samples
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("training", total=total, completed=trainer.progress.samples, speed="")
            result = run.finish(
                _metered(trainer, lambda done, speed: bar.update(task, completed=done, speed=speed), 1.0)
            )
    else:
        result = run.finish(
            _metered(trainer, lambda done, speed: console.print(f"{done} of {total} samples, {speed}"), 60.0)
        )
    if result is None:
        console.print(
            f"stopped by {run.stopped_by} at step {trainer.progress.step}; "
            f"continue with hrm-train --run {run.path} --resume"
        )
        raise typer.Exit(1)
    console.print(f"finished: {result.summary()}; checkpoint {run.path / 'best'}")


def _metered(trainer: Trainer, show: Callable[[int, str], None], every_s: float) -> Callable[[int], None]:
    """Calls `show` at most every `every_s` seconds with samples per second since the last time."""
    last_time, last_samples = time.monotonic(), trainer.progress.samples

    def on_step(samples: int) -> None:
        nonlocal last_time, last_samples
        now = time.monotonic()
        if now - last_time < every_s:
            return
        progress = trainer.progress
        speed = f"{(samples - last_samples) / (now - last_time):.0f} samples/s"
        show(samples, f"{speed}, {progress.curriculum_level:.0f} cells revealed")
        last_time, last_samples = now, samples

    return on_step


def main() -> None:
    """Runs the command; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except (ValueError, OSError, FloatingPointError) as error:
        console.print(f"hrm-train: {error}", style="red", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
