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

from hrm_host import memory
from hrm_host.progress import stages_on
from hrm_model import checkpoint
from hrm_puzzles.data import datasets
from hrm_train import distributed, meter
from hrm_train import status as run_status
from hrm_train.batches import open_source
from hrm_train.checkpoints import sole_writer
from hrm_train.evaluate import held_out
from hrm_train.hardware import PRESETS
from hrm_train.loop import Trainer
from hrm_train.plan import RunPlan, open_plan, trainer_from
from hrm_train.recipe import SIZES
from hrm_train.run import Intervals, TrainingRun, commit_of_source
from hrm_train.telemetry import TensorBoard, WeightsAndBiases, Writer, require_wandb

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
        require_wandb()
    plan = open_plan(
        run=run,
        puzzle=puzzle,
        hw=hw,
        preset=preset,
        data=data,
        init=init,
        settings=[*(settings or []), *([f"arch={arch}"] if arch else [])],
        resume=resume,
        tune=tune,
        say=_say,
    )
    if not resume:
        _say(plan.memory().summary())
    intervals = Intervals(
        validate_steps=validate_steps,
        validate_whole_steps=validate_whole_steps,
        checkpoint_steps=checkpoint_steps,
        checkpoint_minutes=checkpoint_minutes,
        keep=keep,
    )
    with sole_writer(plan.run) if distributed.ranks().is_first else nullcontext():
        if plan.hardware.device == "cpu":
            memory.keep_freed_memory()
        trainer = trainer_from(plan, _say)
        if (plan.run / "latest").exists():
            trainer.restore(checkpoint.resolve(plan.run / "latest"))
        if profile:
            console.print(meter.profile_steps(trainer.step, trainer.device, plan.run).table())
            written = f"{plan.run / meter.TABLE}, {plan.run / meter.TRACE}"
            _say(f"written: {written}; train with hrm-train --run {plan.run} --resume")
        else:
            _drive(plan, trainer, intervals, validation_puzzles, wandb)


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


def _drive(plan: RunPlan, trainer: Trainer, intervals: Intervals, validation_puzzles: int, wandb: bool) -> None:
    rows = held_out(open_source(plan.data, "test", trainer.puzzle), validation_puzzles, trainer.recipe.seed)
    meta = {
        "puzzle": plan.recipe.puzzle,
        "data": plan.data.name,
        "data_fingerprint": datasets.fingerprint(plan.data),  # reads the whole data set once
        "hardware": plan.hardware.name,
        "commit": commit_of_source(),
    }
    writers: list[Writer] = [TensorBoard(plan.run)] if distributed.ranks().is_first else []
    if writers and wandb:
        writers.append(WeightsAndBiases(plan.run, json.loads(plan.to_json())))
    run = TrainingRun(plan.run, trainer, rows, intervals, meta, writers, _say)
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    _say(f"{parameters:,} parameters on {trainer.hardware.device}, {trainer.recipe.batch_size} slots, run {run.path}")
    with stages_on(console, first_line_s=0.0, line_every_s=60.0) as stages:
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


if __name__ == "__main__":
    main()
