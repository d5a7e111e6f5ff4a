"""What `hrm-train` does with its options; it reports to standard error. Read `train`."""

import shlex
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import typer
from rich.console import Console

from hrm_host import command, memory, progress
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.data.for_training import largest_bytes
from hrm_train import (
    checkpoints,
    distributed,
    forecast,
    meter,
    telemetry,
    tuning,
)
from hrm_train.hardware import hardware_from_name
from hrm_train.options import PlanOptions, TrainOptions
from hrm_train.plan import plan_of, with_changes
from hrm_train.run import TrainingRun, run_of
from hrm_train.run_plan import RunPlan, read_plan, trainer_from, write_plan

FIRST_LINE_S = 0.0  # seconds before progress shows
LINE_EVERY_S = 60.0  # seconds between progress lines, if the output is a pipe

FOR_A_CPU = ("sudoku-small", "maze-small", "arc-small")  # recipes

console = Console(stderr=True)


def train(options: TrainOptions) -> None:
    """Plans or resumes a run, reports what it needs, and trains or profiles it."""
    ranks = distributed.ranks()
    console.quiet = not ranks.is_first
    threading.excepthook = _ignore_disk_errors
    if options.dry_run:
        forecast.show_dry_run(options, Console())
        return
    if options.wandb:
        telemetry.require_wandb()
    if ranks.is_first:
        _confirm(options)
    plan = _plan(options)
    lock = nullcontext()
    if ranks.is_first:
        lock = checkpoints.sole_writer(plan.run)
    with lock:
        if options.resume:
            plan = ranks.first(lambda: with_changes(plan, options))
        _train(plan, options)


def _confirm(options: PlanOptions) -> None:
    """Explain the recipes and ask, if a CPU would build the whole ARC data set by default.

    Raises ValueError if the person declines, or if there is no terminal to ask on.
    """
    puzzle = options.kind
    if not isinstance(puzzle, Arc) or not _is_default(options):
        return
    hrm_train = command.runnable("hrm-train")
    example = f"choose a recipe, for example {hrm_train} --recipe sudoku-small"
    machine = hardware_from_name(options.hw or "auto")
    if machine.device != "cpu":
        return
    size_gib = largest_bytes(puzzle, options.examples) / memory.GIB
    _say(f"Without --puzzle or --recipe, hrm-train builds all of ARC (up to {size_gib:.1f} GiB)")
    _say("and trains a large model, which is too much for a CPU. Recipes for a CPU:")
    for name in FOR_A_CPU:
        _say(f"  {hrm_train} --recipe {name}")
    if not sys.stdin.isatty():
        raise ValueError(f"ARC on a CPU needs --yes; or {example}")
    if not typer.confirm("Build and train ARC here?", err=True):
        raise ValueError(f"nothing is trained: {example}")


def _is_default(options: PlanOptions) -> bool:
    """Whether nobody named a puzzle, and its data set is still to be built."""
    if options.resume or options.yes:
        return False
    if options.puzzle or options.recipe or options.data:
        return False
    return not options.data_path.exists()


def _plan(options: TrainOptions) -> RunPlan:
    plan = plan_of(options, _say, partial(_adjusted, options))
    if not options.resume:
        for line in forecast.needs_of(plan, options):
            _say(line)
        _say("time: unknown until the first steps are measured")
    return plan


def _adjusted(options: TrainOptions, plan: RunPlan) -> RunPlan:
    plan = replace(plan, intervals=options.intervals_for(plan.num_steps))
    if options.tune:
        return tuning.tuned(plan, most=options.tune_batch, say=_say)
    return plan


def _train(plan: RunPlan, options: TrainOptions) -> None:
    path = plan.run
    if plan.hardware.device == "cpu":
        memory.keep_freed_memory()
    trainer = trainer_from(plan, _say)
    is_new = plan.is_new
    is_changed = not is_new and plan.events != read_plan(path).events
    if is_changed:
        trainer.rehearse_fitting()
    start = checkpoints.start_of(path)
    if start is not None:
        trainer.restore(start)
    if options.profile:
        if is_new:
            _record(plan)
        table = meter.profile_steps(trainer.step, trainer.device, path, options.profile_window)
        _say(table)
        written = f"{path / meter.TABLE}, {path / meter.TRACE}"
        _say(
            f"written: {written}; train with {command.runnable('hrm-train')} --run {path} --resume"
        )
    else:
        run = run_of(plan, trainer, _say, wandb=options.wandb)
        if is_new or is_changed:
            _record(plan)
        _drive(run)
        _say(f"next: {_export_command(plan)}")


def _record(plan: RunPlan) -> None:
    """Writes the plan of a new run or of a resume with changes, once all ranks have tried it."""
    ranks = distributed.ranks()
    ranks.wait()
    if ranks.is_first:
        write_plan(plan)
        if plan.events:
            _say(plan.events[-1].summary())


def _export_command(plan: RunPlan) -> str:
    family = plan.recipe.puzzle.partition("-")[0]
    arguments = [plan.run / "best", "--fp16", "--int8", "--calib", family, "--data", plan.data]
    return f"{command.runnable('hrm-export')} {shlex.join(map(str, arguments))}"


def _say(sentence: str) -> None:
    console.print(sentence, soft_wrap=True, markup=False)


def _drive(run: TrainingRun) -> None:
    """Trains to the end; ends the command if a signal stopped the run."""
    trainer = run.trainer
    num_parameters = trainer.model.num_parameters
    device = trainer.hardware.device
    num_slots = trainer.recipe.batch_size
    _say(f"{num_parameters:,} parameters on {device}, {num_slots} slots, run {run.path}")
    stages_on = progress.stages_on(console, first_line_s=FIRST_LINE_S, line_every_s=LINE_EVERY_S)
    with stages_on as stages:
        run.finish(stages)
    if run.stopped_by:
        stopped = f"stopped by {run.stopped_by} at step {trainer.progress.step}"
        _say(f"{stopped}; continue with {command.runnable('hrm-train')} --run {run.path} --resume")
        if run.stopped_by == "SIGINT":
            raise typer.Exit(command.INTERRUPTED)
        raise typer.Exit(command.UNSOLVED)
    _say(f"finished at step {trainer.progress.step}; checkpoint {run.path / 'best'}")


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """Ignores errors of TensorBoard's thread, since its next call raises them again."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)
