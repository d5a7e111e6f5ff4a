"""What a run would need on any machine: memory, disk, steps, learning rates and hours."""

import shutil

from rich.console import Console
from rich.table import Table

from hrm_host.memory import GIB
from hrm_host.progress import duration
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_train import batches, status
from hrm_train.hardware import hardware_from_name
from hrm_train.memory import FILLED
from hrm_train.options import PlanOptions
from hrm_train.plan import draft
from hrm_train.run_plan import RunPlan, filled, read_plan

PUBLISHED_ARC_IDS = 876_000  # puzzle ids of 960 tasks in 1,000 variants, without duplicates
SHARES = (1 / 4, 1 / 2, 1, 2, 4)  # factors of the planned micro-batch
SPEEDS = (100.0, 300.0, 1000.0, 3000.0)  # samples/s; the forecast shows the hours at each
BASIS = "memory: calculated; measured only at 81 tokens on an H100, never at 900"
CHECKPOINTS = 4  # checkpoints on disk at once: the last two, the best, and the one being written
LONGEST_WARMUP = 10  # warn if the warm-up takes more than one part in this many of the run


def show_dry_run(options: PlanOptions, console: Console, samples_per_s: float | None) -> None:
    """Prints the plan of a new run; builds and writes nothing, and needs no device."""
    if options.resume:
        raise ValueError("--dry-run plans a new run; omit --resume")
    machine = hardware_from_name(options.hw or "auto", is_here=False)
    plan = _with_expected_ids(draft(options, machine))
    if options.fill is not None:
        plan = filled(plan, options.fill)
    lines = [_model_line(plan), schedule(plan), disk(plan), *warnings(plan, options)]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(_memory_table(plan))
    console.print(BASIS, soft_wrap=True, markup=False, highlight=False)
    for line in times(plan, samples_per_s):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def times(plan: RunPlan, samples_per_s: float | None) -> list[str]:
    """How long the run takes, and the basis of this estimate."""
    measured = measured_speed(plan)
    if samples_per_s is not None:
        basis = "speed: as given"
        speeds = (samples_per_s,)
    elif measured is not None:
        basis = f"speed: measured by {plan.run}"
        speeds = (measured,)
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


def _with_expected_ids(plan: RunPlan) -> RunPlan:
    """The plan with the number of puzzle ids in its data set, or as a build would produce."""
    puzzle = registry.get(plan.recipe.puzzle)
    if plan.data.exists():
        source = batches.open_source(plan.data, "train", puzzle)
        return plan.with_puzzle_ids(source.num_puzzle_ids)
    if isinstance(puzzle, Arc):
        return plan.with_puzzle_ids(PUBLISHED_ARC_IDS)
    return plan.with_puzzle_ids(1)


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


def schedule(plan: RunPlan) -> str:
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


def disk(plan: RunPlan) -> str:
    """The disk space that the run's checkpoints need; a warning if the disk has less."""
    folder = next(path for path in plan.run.absolute().parents if path.is_dir())
    size = plan.memory().checkpoint
    free = shutil.disk_usage(folder).free
    text = (
        f"a checkpoint takes {size / GIB:.2f} GiB, {CHECKPOINTS} at once at most; "
        f"{free / GIB:.1f} GiB are free"
    )
    if CHECKPOINTS * size < free:
        return text
    return f"warning: {text}; give --run on a larger disk"


def warnings(plan: RunPlan, options: PlanOptions) -> list[str]:
    """Settings that are allowed but probably a mistake.

    A named recipe that sets both its warm-up and its length means them.
    """
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


def _memory_table(plan: RunPlan) -> Table:
    """Estimates of `hrm_train.memory` by micro-batch, without the savings of torch.compile."""
    planned = plan.micro_batch
    num_slots = plan.recipe.batch_size
    sizes = {min(num_slots, max(1, round(share * planned))) for share in SHARES}
    table = Table("micro-batch", "for each update", "memory", "of the device", title_justify="left")
    for rows in sorted(sizes):
        total = plan.with_micro_batch(rows).memory().total
        name = str(rows)
        if rows == planned:
            name = f"{rows} (planned)"
        num_parts = -(-num_slots // rows)
        share = _filled(total, plan.hardware.memory_gb)
        table.add_row(name, str(num_parts), f"{total / GIB:.2f} GiB", share)
    return table


def _filled(total_bytes: int, memory_gb: int) -> str:
    """The share of a device's memory, if the device is known."""
    if not memory_gb:
        return "unknown"
    share = total_bytes / (memory_gb * 1e9)
    if share > FILLED:
        return f"{100 * share:.0f} %, too much"
    return f"{100 * share:.0f} %"
