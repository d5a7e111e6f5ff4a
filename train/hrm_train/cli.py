"""hrm-train: puzzles in, checkpoint out.

hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku
hrm-train --run runs/sudoku --resume
hrm-train status runs/sudoku
"""

import errno
import json
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_host import memory, progress
from hrm_model import checkpoint
from hrm_train import checkpoints, distributed, meter, plan, telemetry
from hrm_train import run as training
from hrm_train import status as run_status
from hrm_train.hardware import PRESETS
from hrm_train.recipe import SIZES

app = typer.Typer(add_completion=False, rich_markup_mode=None)
console = Console(stderr=True)


@app.callback(
    invoke_without_command=True,
    epilog="Example: hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku",
)
def train(
    context: typer.Context,
    run: Annotated[Path | None, typer.Option(help="Directory of the run. [default: runs/PUZZLE]")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Data set directory. [default: data/PUZZLE, built if absent]")
    ] = None,
    puzzle: Annotated[str, typer.Option(help="Which puzzle.")] = "arc",
    hw: Annotated[str | None, typer.Option(help=f"Machine: auto or {', '.join(PRESETS)}. [default: auto]")] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"Model: {', '.join(SIZES)}. [default: published on a GPU, small on a CPU]")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the model, the recipe or the machine.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="hrm, or transformer for the plain one. [default: hrm]")] = None,
    init: Annotated[Path | None, typer.Option(help="Checkpoint whose weights to start from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run exactly where it stopped.")] = False,
    validate_steps: Annotated[int, typer.Option(min=1, help="Steps between validations on a tenth.")] = 1000,
    validate_whole_steps: Annotated[int, typer.Option(min=1, help="Steps between validations on all.")] = 10_000,
    validation_puzzles: Annotated[int, typer.Option(min=1, help="At most so many held-out puzzles in all.")] = 4096,
    checkpoint_steps: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 2000,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Minutes between checkpoints.")] = 5.0,
    keep: Annotated[int, typer.Option(min=1, help="How many of the last checkpoints stay, beside the best.")] = 2,
    tune: Annotated[bool, typer.Option("--tune", help="Try which micro-batch is fastest here, then train.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Profile a few steps instead, and keep none.")] = False,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write to W&B (offline by default).")] = False,
) -> None:
    """Train an HRM on a puzzle, from a data set directory to a run directory with checkpoints."""
    if context.invoked_subcommand is not None:
        return
    console.quiet = not distributed.ranks().is_first
    if wandb:
        telemetry.require_wandb()
    chosen = [*(settings or []), *([f"arch={arch}"] if arch else [])]
    opened = plan.open_plan(
        run, puzzle, hw=hw, preset=preset, data=data, init=init, settings=chosen, resume=resume, tune=tune, say=_say
    )
    if not resume:
        _say(opened.memory().summary())
    intervals = training.Intervals(
        validate_steps=validate_steps,
        validate_whole_steps=validate_whole_steps,
        checkpoint_steps=checkpoint_steps,
        checkpoint_minutes=checkpoint_minutes,
        keep=keep,
    )
    path = opened.run
    with checkpoints.sole_writer(path) if distributed.ranks().is_first else nullcontext():
        if opened.hardware.device == "cpu":
            memory.keep_freed_memory()
        trainer = plan.trainer_from(opened, _say)
        if (path / "latest").exists():
            trainer.restore(checkpoint.resolve(path / "latest"))
        if profile:
            console.print(meter.profile_steps(trainer.step, trainer.device, path).table())
            _say(f"written: {path / meter.TABLE}, {path / meter.TRACE}; train with hrm-train --run {path} --resume")
        else:
            _drive(training.run_of(opened, trainer, intervals, validation_puzzles, _say, wandb=wandb))


@app.command(epilog="Example: hrm-train status runs/sudoku --json")
def status(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show how a run stands: speed, validations, checkpoints, where time goes, and whether a process writes it."""
    found = run_status.read_status(run)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        run_status.show(found, Console())


def _say(sentence: str) -> None:
    console.print(sentence, soft_wrap=True, markup=False)


def _drive(run: training.TrainingRun) -> None:
    trainer = run.trainer
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    _say(f"{parameters:,} parameters on {trainer.hardware.device}, {trainer.recipe.batch_size} slots, run {run.path}")
    with progress.stages_on(console, first_line_s=0.0, line_every_s=60.0) as stages:
        result = run.finish(stages)
    if run.stopped_by:
        stopped = f"stopped by {run.stopped_by} at step {trainer.progress.step}"
        _say(f"{stopped}; continue with hrm-train --run {run.path} --resume")
        raise typer.Exit(1)
    _say(f"finished{f': {result.summary()}' if result else ''}; checkpoint {run.path / 'best'}")


def main() -> None:
    """Runs the command; a user's mistake and a full disk end in one sentence and exit code 2."""

    def pass_over_disk_errors(failure: threading.ExceptHookArgs) -> None:
        if not isinstance(failure.exc_value, OSError):  # what TensorBoard's thread raises comes again at our next call
            threading.__excepthook__(failure)

    threading.excepthook = pass_over_disk_errors
    try:
        app()
    except (ValueError, OSError, FloatingPointError) as error:
        console.quiet = False
        advice = "; make room there and go on with --resume" if getattr(error, "errno", None) == errno.ENOSPC else ""
        console.print(f"hrm-train: {error}{advice}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)
