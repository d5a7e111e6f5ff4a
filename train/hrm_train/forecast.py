"""What a run would need, on any machine and before it begins: memory by micro-batch, steps, rates and hours."""

from dataclasses import replace

import torch
from rich.console import Console
from rich.table import Table

from hrm_host.memory import GIB
from hrm_host.progress import duration
from hrm_model.hrm import HRM
from hrm_puzzles import registry
from hrm_puzzles.arc.arc import Arc
from hrm_train import batches
from hrm_train.hardware import hardware_from_name
from hrm_train.options import PlanOptions
from hrm_train.plan import FILLED, RunPlan, draft

PUBLISHED_ARC_IDS = 876_000  # 960 tasks in 1,000 variants, less those that fall together
SHARES = (1 / 4, 1 / 2, 1, 2, 4)  # of the planned micro-batch
SPEEDS = (100.0, 300.0, 1000.0, 3000.0)  # samples/s whose hours are told where none is given


def show_dry_run(options: PlanOptions, console: Console, samples_per_s: float | None) -> None:
    """Prints the plan of a new run; builds and writes nothing, and needs no device."""
    if options.resume:
        raise ValueError("--dry-run plans a new run; leave --resume away")
    plan = draft(options, hardware_from_name(options.hw or "auto", is_here=False))
    kind, machine = registry.get(plan.recipe.puzzle), plan.hardware
    published = PUBLISHED_ARC_IDS if isinstance(kind, Arc) else 1  # what building the data set gives
    is_there = plan.data.exists()
    plan = plan.with_puzzle_ids(batches.open_source(plan.data, "train", kind).num_puzzle_ids if is_there else published)
    with torch.device("meta"):
        num_parameters = sum(parameter.numel() for parameter in HRM(plan.config).parameters())
    lines = [
        f"{num_parameters:,} parameters, {plan.config.seq_len} tokens, {plan.config.num_puzzle_ids:,} puzzle ids; "
        f"{machine.name}{f' ({machine.gpu}, {machine.memory_gb} GB)' if machine.gpu else ''}, {machine.precision}",
        plan.schedule(),
        plan.disk(),
        *plan.warnings(options),
    ]
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    console.print(_memory_table(plan))
    for speed in SPEEDS if samples_per_s is None else (samples_per_s,):
        console.print(f"at {speed:,g} samples/s: {duration(plan.recipe.total_samples / speed)}", highlight=False)


def _memory_table(plan: RunPlan) -> Table:
    """Estimates as `hrm_train.memory` makes them, without the savings of torch.compile."""
    planned, machine, slots = plan.micro_batch, plan.hardware, plan.recipe.batch_size
    table = Table("micro-batch", "for each update", "memory", "of the device", title_justify="left")
    for rows in sorted({min(slots, max(1, round(share * planned))) for share in SHARES}):
        total = replace(plan, hardware=replace(machine, micro_batch=rows)).memory().total
        share = total / (machine.memory_gb * 1e9) if machine.memory_gb else None
        filled = "unknown" if share is None else f"{100 * share:.0f} %{', too much' if share > FILLED else ''}"
        mark = " (planned)" if rows == planned else ""
        table.add_row(f"{rows}{mark}", str(-(-slots // rows)), f"{total / GIB:.2f} GiB", filled)
    return table
