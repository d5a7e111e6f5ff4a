"""What a run would need on any machine: memory, disk, steps, learning rates and hours."""

import math
import shutil
import time
from dataclasses import replace

import torch
from rich.console import Console

from hrm_host.memory import GIB
from hrm_host.progress import duration
from hrm_model.families import model_of
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_puzzles.arc.build import ArcRecipe
from hrm_puzzles.arc.tasks import chosen, read_tasks
from hrm_train import batches, status
from hrm_train.hardware import GIGABYTE, hardware_from_name, prepare
from hrm_train.options import Intervals, PlanOptions, TrainOptions
from hrm_train.plan import draft
from hrm_train.run_plan import RunPlan, filled, read_plan
from hrm_train.window import Slots, window_loss

SPEEDS = (100.0, 300.0, 1000.0, 3000.0)  # samples/s; the forecast shows the hours at each
PROBED_ROWS = 4  # largest micro-batch whose speed is measured for a forecast
LONGEST_PROBE_S = 5.0  # a window that takes longer is measured once
PROBES = 3  # timed windows; the fastest counts, and the first one warms up
BASIS = "memory: calculated; measured only at 81 tokens on an H100, never at 900"
UNIQUE = 0.979  # share of ARC variants that differ: 391,678 ids of 800 tasks in 500 variants
TILE = 64  # channels of a GPU's matrix tiles
SPARE = 2  # checkpoints on disk beside the latest ones: the best, and the one being written
LONGEST_WARMUP = 10  # warn if the warm-up takes more than one part in this many of the run


def show_dry_run(options: TrainOptions, console: Console) -> None:
    """Prints the plan of a new run; builds and writes nothing, and needs no device."""
    if options.resume:
        raise ValueError("--dry-run plans a new run; omit --resume")
    machine = hardware_from_name(options.hw or "auto", is_here=False)
    plan = draft(options, machine)
    plan = plan.with_puzzle_ids(_expected_ids(plan, options))
    plan = replace(plan, intervals=options.intervals_for(plan.num_steps))
    if options.fill is not None:
        plan = filled(plan, options.fill)
    needs = [_model_line(plan), *needs_of(plan, options), BASIS]
    for line in [*needs, *times(plan, options.samples_per_s)]:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def needs_of(plan: RunPlan, options: PlanOptions) -> list[str]:
    """Memory, steps and disk of a new run, then warnings."""
    return [_memory(plan), _schedule(plan), _disk(plan), *warnings(plan, options)]


def _memory(plan: RunPlan) -> str:
    """The estimate for the planned micro-batch, and its share of a card of known memory."""
    needed = plan.memory()
    text = f"{needed.summary()} at a micro-batch of {plan.micro_batch}"
    if not plan.hardware.memory_gb:
        return text
    share = needed.total / (plan.hardware.memory_gb * GIGABYTE)
    return f"{text}, {share:.0%} of the device"


def times(plan: RunPlan, samples_per_s: float | None) -> list[str]:
    """How long the run takes, and the basis of this estimate."""
    measured = measured_speed(plan)
    if samples_per_s is not None:
        basis = "speed: as given"
        speeds = (samples_per_s,)
    elif measured is not None:
        basis = f"speed: measured by {plan.run}"
        speeds = (measured,)
    elif plan.hardware.device == "cpu":
        basis = "speed: measured on this CPU in a few windows, without the time for validations"
        speeds = (_speed_here(plan),)
    else:
        basis = "speed: assumed, nothing was measured; a run measures its own in its first steps"
        speeds = SPEEDS
    lines = [basis]
    for speed in speeds:
        hours = duration(plan.recipe.total_samples / speed)
        lines.append(f"at {speed:,.4g} samples/s: {hours}")
    return lines


def measured_speed(plan: RunPlan) -> float | None:
    """The last speed of the run in the plan's directory, if its steps cost the same."""
    if not (plan.run / status.SETTINGS).exists():
        return None
    if _cost_of_a_step(read_plan(plan.run)) != _cost_of_a_step(plan):
        return None
    return status.read_status(plan.run)["samples_per_s"]


def _cost_of_a_step(plan: RunPlan) -> tuple[object, ...]:
    recipe = plan.recipe
    return plan.config, plan.hardware, recipe.batch_size, recipe.window, recipe.continue_loss


def _speed_here(plan: RunPlan) -> float:
    """Samples per second of a window on this CPU, with blank rows."""
    prepare(plan.hardware)
    recipe = plan.recipe
    rows = min(PROBED_ROWS, plan.micro_batch)
    model = model_of(replace(plan.config, num_puzzle_ids=1))
    slots = Slots.empty(model, rows, torch.device("cpu"), plan.hardware.dtype)
    vector_BE = model.puzzle_table[slots.puzzle_ids_B]
    shortest_s = math.inf
    for _ in range(PROBES):
        begin_s = time.perf_counter()
        found = window_loss(model, slots, vector_BE, recipe, plan.config.max_segments)
        found.loss.backward()
        slots.halt(found.margin_B, plan.config.max_segments)
        shortest_s = min(shortest_s, time.perf_counter() - begin_s)
        if shortest_s > LONGEST_PROBE_S:
            break
    return rows * recipe.window / shortest_s


def _expected_ids(plan: RunPlan, options: PlanOptions) -> int:
    """The number of puzzle ids in the data set, or about that of one that would be built."""
    puzzle = registry.get(plan.recipe.puzzle)
    if plan.data.exists():
        return batches.open_source(plan.data, "train", puzzle).num_puzzle_ids
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
        f"{config.num_puzzle_ids:,} puzzle ids; {device}, {machine.precision}"
    )


def _schedule(plan: RunPlan) -> str:
    """Steps, samples, learning rates and warm-up of the run."""
    recipe = plan.recipe
    lr = f"{recipe.scaled(recipe.lr):.3g}"
    if recipe.base_batch:
        lr = f"{lr} ({recipe.lr:.3g} at a batch of {recipe.base_batch})"
    warmup_share = 100 * recipe.warmup_samples / recipe.total_samples
    return (
        f"{plan.num_steps:,} steps of {recipe.batch_size} puzzles, "
        f"{recipe.total_samples:,} samples{_passes(plan)}; "
        f"lr {lr}, of puzzle vectors {recipe.scaled(recipe.puzzle_lr):.3g}, after "
        f"{recipe.warmup_samples:,} samples of warm-up ({warmup_share:.1f} %)"
    )


def _passes(plan: RunPlan) -> str:
    """The length of the run in passes over its data, if the data set exists."""
    if not plan.data.exists():
        return ""
    source = batches.open_source(plan.data, "train", registry.get(plan.recipe.puzzle))
    return f" ({plan.recipe.total_samples / source.num_groups:.3g} passes)"


def _disk(plan: RunPlan) -> str:
    """The bytes that the run's checkpoints hold and write; a warning if the disk has less."""
    folder = next(path for path in plan.run.absolute().parents if path.is_dir())
    size = plan.memory().checkpoint
    most_held = plan.intervals.keep + SPARE
    num_written = _num_written(plan.num_steps, plan.intervals)
    free = shutil.disk_usage(folder).free
    held_gib = most_held * size / GIB
    written_gib = num_written * size / GIB
    text = (
        f"a checkpoint takes {size / GIB:.2f} GiB; held: {held_gib:.2f} GiB, {most_held} at most; "
        f"written: up to {written_gib:.1f} GiB, {num_written:,} and one every "
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
    return 1 + (num_steps - 1) // saved + (num_steps - 1) // validated - (num_steps - 1) // both


def warnings(plan: RunPlan, options: PlanOptions) -> list[str]:
    """Settings that are allowed but probably a mistake."""
    found = _warm_up_warnings(plan, options)
    width = plan.config.hidden_size
    if plan.hardware.device == "cuda" and width % TILE:
        found.append(
            f"warning: hidden_size {width} is not a multiple of {TILE}, which a GPU multiplies best"
        )
    return found


def _warm_up_warnings(plan: RunPlan, options: PlanOptions) -> list[str]:
    """A named recipe that sets both its warm-up and its length means them."""
    recipe = plan.recipe
    if recipe.warmup_samples <= recipe.total_samples // LONGEST_WARMUP:
        return []
    lengths = {"total_samples", "warmup_samples"}
    changed = {text.partition("=")[0] for text in options.settings or []}
    if lengths <= options.named_settings.keys() and not lengths & changed:
        return []
    return [
        f"warning: the warm-up of {recipe.warmup_samples:,} samples takes more than a tenth of "
        "the run; --set warmup_samples=10% would be a tenth"
    ]
