"""What `hrm-train` does with its options; what it says goes to standard error. Read `train`."""

import shlex
import threading
from contextlib import nullcontext

import typer
from rich.console import Console

from hrm_host import command, memory, progress
from hrm_train import checkpoints, distributed, meter, telemetry
from hrm_train.forecast import show_dry_run
from hrm_train.options import TrainOptions
from hrm_train.plan import open_plan, trainer_from
from hrm_train.run import TrainingRun, run_of

console = Console(stderr=True)


def train(options: TrainOptions) -> None:
    """Plan or resume a run, say what it needs, and train or profile; a run that a signal stopped ends the command."""
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
        start = checkpoints.start_of(path)
        if start is not None:
            trainer.restore(start)
        if options.profile:
            _say(meter.profile_steps(trainer.step, trainer.device, path, options.profile_window))
            _say(f"written: {path / meter.TABLE}, {path / meter.TRACE}; train with hrm-train --run {path} --resume")
        else:
            _drive(run_of(plan, trainer, options, _say, wandb=options.wandb))
            calib = plan.recipe.puzzle.partition("-")[0]
            export = ["hrm-export", path / "best", "--fp16", "--int8", "--calib", calib, "--data", plan.data]
            _say(f"next: {shlex.join(map(str, export))}")


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
