"""hrm-train: puzzles in, checkpoint out.

hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku
hrm-train --run runs/sudoku --resume
hrm-train status runs/sudoku
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from hrm_model import checkpoint
from hrm_model.config import HRMConfig
from hrm_model.geometry import start_from_geometry
from hrm_model.hrm import HRM
from hrm_puzzles import datasets, registry
from hrm_train import status as run_status
from hrm_train.batches import Feed
from hrm_train.dataset import open_source
from hrm_train.display import display_for
from hrm_train.hardware import hardware_from_name
from hrm_train.loop import Trainer
from hrm_train.presets import config_for, recipe_for
from hrm_train.recipe import Recipe, with_settings
from hrm_train.run import Intervals, Run, commit_of_source
from hrm_train.telemetry import TensorBoard, WeightsAndBiases, Writer
from hrm_train.validation import held_out

app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console(stderr=True)
SETTINGS = run_status.SETTINGS


@app.callback(
    invoke_without_command=True,
    epilog="Example: hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku",
)
def train(
    context: typer.Context,
    run: Annotated[Path | None, typer.Option(help="Directory of the run: checkpoints, metrics, settings.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data set directory, as hrm-data builds it.")] = None,
    puzzle: Annotated[str, typer.Option(help="Which puzzle.")] = "sudoku",
    hw: Annotated[str, typer.Option(help="Hardware preset: auto, cpu, rtx4090, h200.")] = "auto",
    preset: Annotated[str, typer.Option(help="Model size and recipe: small or published.")] = "small",
    settings: Annotated[list[str] | None, typer.Option("--set", help="key=value of the model or the recipe.")] = None,
    init: Annotated[Path | None, typer.Option(help="Checkpoint whose weights to start from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run exactly where it stopped.")] = False,
    validate_steps: Annotated[int, typer.Option(min=1, help="Steps between validations on a tenth.")] = 1000,
    validate_whole_steps: Annotated[int, typer.Option(min=1, help="Steps between validations on all.")] = 10_000,
    validation_puzzles: Annotated[int, typer.Option(min=1, help="At most so many held-out puzzles in all.")] = 4096,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 2000,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Minutes between checkpoints.")] = 5.0,
    keep: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints stay, beside the best.")] = 2,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write to W&B (offline by default).")] = False,
) -> None:
    """Train an HRM on a puzzle, from a data set directory to a run directory with checkpoints."""
    if context.invoked_subcommand is not None:
        return
    if run is None:
        raise ValueError("--run is missing; name the directory that shall hold the checkpoints")
    plan = _read_plan(run) if resume else _new_plan(run, data, puzzle, hw, preset, settings or [], init)
    trainer, plan_meta = _trainer(plan)
    if resume:
        trainer.restore(checkpoint.resolve(run / "latest"))
    rows = held_out(open_source(Path(plan["data"]), "test", trainer.puzzle), validation_puzzles, trainer.recipe.seed)
    intervals = Intervals(
        validate_steps=validate_steps,
        validate_whole_steps=validate_whole_steps,
        checkpoint_steps=checkpoint_steps,
        checkpoint_minutes=checkpoint_minutes,
        keep=keep,
    )
    _drive(Run(run, trainer, rows, intervals, plan_meta, _writers(run, plan, wandb), _say))


@app.command(epilog="Example: hrm-train status runs/sudoku --json")
def status(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show how a run stands: speed, validations, checkpoints, where time goes, and whether a process writes it."""
    found = run_status.read_status(run)
    if as_json:
        print(run_status.to_json(found))
    else:
        run_status.show(found, Console())


def _say(sentence: str) -> None:
    console.print(sentence, soft_wrap=True)


def _writers(run: Path, plan: dict[str, Any], wandb: bool) -> list[Writer]:
    return [TensorBoard(run), *([WeightsAndBiases(run, plan)] if wandb else [])]


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


def _drive(run: Run) -> None:
    trainer = run.trainer
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    _say(f"{parameters:,} parameters on {trainer.hardware.device}, {trainer.recipe.batch_size} slots, run {run.path}")
    result = run.finish(display_for(console, trainer.recipe.total_samples, trainer.progress.samples))
    if run.stopped_by:
        _say(
            f"stopped by {run.stopped_by} at step {trainer.progress.step}; "
            f"continue with hrm-train --run {run.path} --resume"
        )
        raise typer.Exit(1)
    _say(f"finished{f': {result.summary()}' if result else ''}; checkpoint {run.path / 'best'}")


def main() -> None:
    """Runs the command; a user's mistake ends in one sentence and exit code 2."""
    try:
        app()
    except (ValueError, OSError, FloatingPointError) as error:
        console.print(f"hrm-train: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
