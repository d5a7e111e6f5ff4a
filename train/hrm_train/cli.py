"""hrm-train: puzzles in, checkpoint out.

hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku
hrm-train --run runs/sudoku --resume
hrm-train status runs/sudoku
"""

import json
import shlex
import threading
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hrm_host import command, memory, progress
from hrm_model import checkpoint
from hrm_train import checkpoints, distributed, meter, telemetry
from hrm_train import status as run_status
from hrm_train.forecast import show_dry_run
from hrm_train.plan import PlanOptions, open_plan, trainer_from
from hrm_train.run import Intervals, TrainingRun, run_of

main = command.Command("hrm-train", extra="train", cannot=(FloatingPointError,))
"""Entry point of `hrm-train`."""
console = Console(stderr=True)


@dataclass(frozen=True, kw_only=True)
class TrainOptions(Intervals, PlanOptions):
    """The options of the command, in the order of its help."""

    context: typer.Context
    tune: Annotated[bool, typer.Option("--tune", help="Try which micro-batch is fastest here, then train.")] = False
    tune_batch: Annotated[
        int, typer.Option(min=1, help="The batch may grow so many times with --tune, and the rates with it.")
    ] = 1
    profile: Annotated[bool, typer.Option("--profile", help="Profile a few steps instead, and keep none.")] = False
    profile_window: Annotated[tuple[int, int], typer.Option(help="Steps to leave out first, and steps to profile.")] = (
        meter.SKIP,
        meter.ACTIVE,
    )
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run would need, of any --hw, and end.")] = (
        False
    )
    samples_per_s: Annotated[
        float | None, typer.Option(min=0.001, help="Speed whose hours --dry-run tells, as a run or a bench showed it.")
    ] = None
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write to W&B (offline by default).")] = False


@main.callback(
    groups={
        "Run": "run resume init yes wandb keep checkpoint_steps checkpoint_minutes",
        "Validation": "validate_steps validate_whole_steps validation_puzzles",
        "Speed": "tune tune_batch profile profile_window dry_run samples_per_s",
    },
    invoke_without_command=True,
    epilog="Example: hrm-train --puzzle sudoku --data data/sudoku --hw cpu --run runs/sudoku",
)
@command.taking(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train an HRM on a puzzle, from a data set directory to a run directory with checkpoints."""
    if options.context.invoked_subcommand is not None:
        return
    console.quiet = not distributed.ranks().is_first
    threading.excepthook = _pass_over_disk_errors
    if options.dry_run:
        show_dry_run(options, Console(), options.samples_per_s)
        return
    if options.wandb:
        telemetry.require_wandb()
    plan = open_plan(options, _say, tune=options.tune_batch if options.tune else 0)
    if not options.resume:
        for line in (plan.memory().summary(), plan.schedule(), plan.disk(), *plan.warnings(options)):
            _say(line)
    path = plan.run
    with checkpoints.sole_writer(path) if distributed.ranks().is_first else nullcontext():
        if plan.hardware.device == "cpu":
            memory.keep_freed_memory()
        trainer = trainer_from(plan, _say)
        if (path / "latest").exists():
            trainer.restore(checkpoint.resolve(path / "latest"))
        if options.profile:
            console.print(meter.profile_steps(trainer.step, trainer.device, path, options.profile_window).table())
            _say(f"written: {path / meter.TABLE}, {path / meter.TRACE}; train with hrm-train --run {path} --resume")
        else:
            _drive(run_of(plan, trainer, options, _say, wandb=options.wandb))
            calib = plan.recipe.puzzle.partition("-")[0]
            export = ["hrm-export", path / "best", "--fp16", "--int8", "--calib", calib, "--data", plan.data]
            _say(f"next: {shlex.join(map(str, export))}")


@main.command(epilog="Example: hrm-train status runs/sudoku --json")
def status(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until the run ends.")] = False,
) -> None:
    """Show how a run stands: speed, validations, checkpoints, where time goes, and whether a process writes it."""
    if watch:
        with suppress(KeyboardInterrupt):
            run_status.watch(run, Console())
    elif as_json:
        print(json.dumps(run_status.read_status(run), indent=2))
    else:
        Console().print(run_status.table_of(run_status.read_status(run)))


def _say(sentence: str) -> None:
    console.print(sentence, soft_wrap=True, markup=False)


def _drive(run: TrainingRun) -> None:
    trainer = run.trainer
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    _say(f"{parameters:,} parameters on {trainer.hardware.device}, {trainer.recipe.batch_size} slots, run {run.path}")
    with progress.stages_on(console, first_line_s=0.0, line_every_s=60.0) as stages:
        result = run.finish(stages)
    if run.stopped_by:
        stopped = f"stopped by {run.stopped_by} at step {trainer.progress.step}"
        _say(f"{stopped}; continue with hrm-train --run {run.path} --resume")
        raise typer.Exit(command.INTERRUPTED if run.stopped_by == "SIGINT" else command.UNSOLVED)
    _say(f"finished{f': {result.summary()}' if result else ''}; checkpoint {run.path / 'best'}")


def _pass_over_disk_errors(failure: threading.ExceptHookArgs) -> None:
    if not isinstance(failure.exc_value, OSError):  # what TensorBoard's thread raises comes again at our next call
        threading.__excepthook__(failure)
