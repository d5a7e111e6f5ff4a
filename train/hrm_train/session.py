"""What `hrm-train` does with its options; it reports to standard error. Read `train`.

Before a run it says what the run needs: memory, disk, steps and learning rates, with hours if it is
only planned.
"""

import math
import shutil
import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import typer
from rich.console import Console

from hrm_host import command, memory, progress
from hrm_host.memory import GIB
from hrm_host.reading import counted
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe
from hrm_puzzles.arc.tasks import chosen, read_tasks
from hrm_puzzles.data import datasets
from hrm_puzzles.data.for_training import largest_bytes
from hrm_train import checkpoints, distributed, meter, telemetry, tuning
from hrm_train.distributed import console, say, say_whole
from hrm_train.evaluate import HEADER
from hrm_train.hardware import GIGABYTE, hardware_from_name
from hrm_train.options import Intervals, PlanOptions, TrainOptions
from hrm_train.plan import draft, plan_of, with_changes
from hrm_train.run import TrainingRun, run_of
from hrm_train.run_plan import RunPlan, change_text, read_plan, trainer_from, write_plan

FOR_A_CPU = ("sudoku-small", "maze-small", "arc-small")  # recipes

ASSUMED_PER_S = (100.0, 300.0, 1000.0, 3000.0)  # samples
UNIQUE = 0.979  # share of ARC variants that differ: 391,678 ids of 800 tasks in 500 variants
SPARE = 2  # checkpoints on disk beside the latest ones: the best, and the one being written


def train(options: TrainOptions) -> None:
    """Plans or resumes a run, reports what it needs, and trains or profiles it."""
    ranks = distributed.ranks()
    console.quiet = not ranks.is_first
    threading.excepthook = _ignore_disk_errors
    if options.wandb:
        telemetry.require_wandb()
    if ranks.is_first:
        _require_a_choice(options)
    plan = _plan(options)
    lock = nullcontext()
    if ranks.is_first:
        lock = checkpoints.sole_writer(plan.run)
    with lock:
        if options.resume:
            plan = ranks.of_first(partial(with_changes, plan, options))
        _train(plan, options)


def _require_a_choice(options: PlanOptions) -> None:
    """Raises ValueError if nobody named a puzzle and a CPU would build the whole ARC data set."""
    is_named = options.puzzle or options.recipe or options.data
    if is_named or options.resume or options.yes or options.data_path.exists():
        return
    machine = hardware_from_name(options.hw or "auto")
    if machine.device != "cpu":
        return
    puzzle = options.kind
    assert isinstance(puzzle, Arc)  # the default
    size_gib = largest_bytes(puzzle, options.examples) / GIB
    names = ", ".join(FOR_A_CPU)
    raise ValueError(
        f"without a recipe or --puzzle, hrm-train builds all of ARC (up to {size_gib:.1f} GiB) and "
        f"trains a large model, which is too much for a CPU; name a recipe, of {names}, or --yes"
    )


def _plan(options: TrainOptions) -> RunPlan:
    plan = plan_of(options)
    if not plan.is_new:
        return plan
    plan = replace(plan, intervals=options.intervals_for(plan.num_steps))
    if options.tune:
        tuned = partial(tuning.tuned, plan, most=options.tune_batch)
        plan = distributed.ranks().of_first(tuned)
    for line in needs_of(plan):
        say(line)
    say("time: unknown until the first steps are measured")
    return plan


def _train(plan: RunPlan, options: TrainOptions) -> None:
    path = plan.run
    if plan.hardware.device == "cpu":
        memory.keep_freed_memory()
    trainer = trainer_from(plan)
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
        table = meter.profile_steps(trainer.step, trainer.device, path, options.profile)
        say_whole(table)
        written = f"{path / meter.TABLE}, {path / meter.TRACE}"
        train_on = command.runnable("hrm-train", "--run", path, "--resume")
        say_whole(f"written: {written}; train with {train_on}")
    else:
        run = run_of(plan, trainer, wandb=options.wandb)
        if is_new or is_changed:
            _record(plan)
        _drive(run)
        family = plan.recipe.puzzle.partition("-")[0]
        arguments = [path / "best", "--fp16", "--int8", "--calib", family, "--data", plan.data]
        say_whole(f"next: {command.runnable('hrm-export', *arguments)}")


def _record(plan: RunPlan) -> None:
    """Writes the plan of a new run or of a resume with changes, once all ranks have tried it."""
    ranks = distributed.ranks()
    ranks.wait()
    if ranks.is_first:
        write_plan(plan)
        if plan.events:
            say(change_text(plan.events[-1]))


def _drive(run: TrainingRun) -> None:
    """Trains to the end; ends the command if a signal stopped the run."""
    trainer = run.trainer
    num_parameters = trainer.model.num_parameters
    device = trainer.hardware.device
    num_slots = trainer.recipe.batch_size
    say(f"{num_parameters:,} parameters on {device}, {counted(num_slots, 'slot')}, run {run.path}")
    say(HEADER)
    stages_on = progress.stages_on(console, first_line_s=0.0, line_every_s=60.0)
    with stages_on as stages:
        run.finish(stages)
    if run.stopped_by:
        stopped = f"stopped by {run.stopped_by} at step {trainer.progress.step}"
        go_on = command.runnable("hrm-train", "--run", run.path, "--resume")
        say_whole(f"{stopped}; continue with {go_on}")
        if run.stopped_by == "SIGINT":
            raise typer.Exit(command.INTERRUPTED)
        raise typer.Exit(command.UNSOLVED)
    say(f"finished at step {trainer.progress.step}; checkpoint {run.path / 'best'}")


def _ignore_disk_errors(failure: threading.ExceptHookArgs) -> None:
    """Ignores errors of TensorBoard's thread, since its next call raises them again."""
    if not isinstance(failure.exc_value, OSError):
        threading.__excepthook__(failure)


def show_dry_run(options: TrainOptions, console: Console) -> None:
    """Prints the plan of a new run; builds and writes nothing, and needs no device."""
    if options.resume:
        raise ValueError("--dry-run plans a new run; omit --resume")
    machine = hardware_from_name(options.hw or "auto", is_here=False)
    plan = draft(options, machine)
    plan = plan.with_puzzle_ids(_expected_ids(plan, options))
    plan = replace(plan, intervals=options.intervals_for(plan.num_steps))
    if options.fill is not None:
        plan = tuning.filled(plan, options.fill)
    basis = "memory: calculated; measured only at 81 tokens on an H100, never at 900"
    needs = [_model_line(plan), *needs_of(plan), basis]
    for line in [*needs, *times(plan)]:
        progress.print_line(console, line)


def needs_of(plan: RunPlan) -> list[str]:
    """Memory, steps and disk of a new run."""
    return [_memory(plan), _schedule(plan), _disk(plan)]


def _memory(plan: RunPlan) -> str:
    """The estimate for the planned micro-batch, and its share of a card of known memory."""
    needed = plan.memory()
    text = f"{needed.summary()} at a micro-batch of {plan.micro_batch}"
    if not plan.hardware.memory_gb:
        return text
    share = needed.total / (plan.hardware.memory_gb * GIGABYTE)
    return f"{text}, {share:.0%} of the device"


def times(plan: RunPlan) -> list[str]:
    """How long the run takes at some assumed speeds."""
    lines = ["speed: assumed, nothing was measured; a run measures its own in its first steps"]
    for speed in ASSUMED_PER_S:
        hours = progress.duration(plan.recipe.total_samples / speed)
        lines.append(f"at {speed:,.4g} samples/s: {hours}")
    return lines


def _expected_ids(plan: RunPlan, options: PlanOptions) -> int:
    """The number of puzzle ids in the data set, or about that of one that would be built."""
    puzzle = plan.puzzle
    if plan.data.exists():
        return datasets.open_split(plan.data, "train", puzzle).num_puzzle_ids
    if not isinstance(puzzle, Arc):
        return 1
    recipe = ArcRecipe(puzzle=puzzle.name, **options.examples)
    tasks = chosen(read_tasks(recipe.dataset), recipe.tasks)
    num_fitting = sum(task.side <= puzzle.side for task in tasks)
    return 1 + round(UNIQUE * num_fitting * recipe.augment)


def _model_line(plan: RunPlan) -> str:
    config = plan.config
    machine = plan.hardware
    device = machine.name
    if machine.gpu:
        device = f"{machine.name} ({machine.gpu}, {machine.memory_gb} GB)"
    return (
        f"{plan.num_parameters:,} parameters, {config.seq_len} tokens, "
        f"{counted(config.num_puzzle_ids, 'puzzle id')}; {device}, {machine.precision}"
    )


def _schedule(plan: RunPlan) -> str:
    """Steps, samples, passes over data that exist, learning rates and warm-up of the run."""
    recipe = plan.recipe
    lr = f"{recipe.scaled(recipe.lr):.3g}"
    if recipe.base_batch:
        lr = f"{lr} ({recipe.lr:.3g} at a batch of {recipe.base_batch})"
    warmup_share = 100 * recipe.warmup_samples / recipe.total_samples
    passes = ""
    if plan.data.exists():
        num_groups = datasets.open_split(plan.data, "train", plan.puzzle).num_groups
        passes = f" ({recipe.total_samples / num_groups:.3g} passes)"
    return (
        f"{counted(plan.num_steps, 'step')} of {counted(recipe.batch_size, 'puzzle')}, "
        f"{recipe.total_samples:,} samples{passes}; "
        f"lr {lr}, of puzzle vectors {recipe.scaled(recipe.puzzle_lr):.3g}, after "
        f"{recipe.warmup_samples:,} samples of warm-up ({warmup_share:.1f} %)"
    )


def _disk(plan: RunPlan) -> str:
    """The bytes that the run's checkpoints hold and write; a warning if the disk has less."""
    folder = next(path for path in plan.run.absolute().parents if path.is_dir())
    size = plan.checkpoint_bytes
    most_held = plan.intervals.keep + SPARE
    num_written = _num_written(plan.num_steps, plan.intervals)
    free = shutil.disk_usage(folder).free
    held_gib = most_held * size / GIB
    text = (
        f"a checkpoint takes {size / GIB:.2f} GiB; held: {held_gib:.2f} GiB, {most_held} at most; "
        f"written: up to {num_written * size / GIB:.1f} GiB, {num_written:,} and one every "
        f"{plan.intervals.checkpoint_minutes:g} minutes; {free / GIB:.1f} GiB are free"
    )
    if most_held * size < free:
        return text
    return f"warning: {text}; give --run on a larger disk"


def _num_written(num_steps: int, intervals: Intervals) -> int:
    """The checkpoints of a run whose every validation is the best yet."""
    saved = intervals.checkpoint_steps
    validated = intervals.validate_steps
    both = math.lcm(saved, validated)
    earlier = num_steps - 1
    return 1 + earlier // saved + earlier // validated - earlier // both
